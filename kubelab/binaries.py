"""Kubernetes' own programs: found, or built once from pinned source and kept.

Each folder under `go/` is a Go module whose go.mod and go.sum pin versions and checksums. The result goes to
the cache directory under a name made of these two files, so a change of version is a new build and an old one
stays usable for whoever still has it. Programs in $KUBEBUILDER_ASSETS are taken as they are.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from kubelab import commands, places
from kubelab.errors import BuildFailed, MissingTool
from kubelab.locks import locked
from kubelab.waiting import stopwatch


@dataclass(frozen=True)
class Module:
    """One Go module and the programs that are built from it: name -> package."""

    name: str
    versioned_by: str
    programs: dict[str, str]

    @property
    def source(self) -> Path:
        """The folder with go.mod and go.sum."""
        return places.PACKAGE / "go" / self.name

    @property
    def version(self) -> str:
        """The version that go.mod requires."""
        found = re.search(rf"{re.escape(self.versioned_by)} (v\S+)", (self.source / "go.mod").read_text())
        return found.group(1) if found else "v1"

    @cached_property
    def directory(self) -> Path:
        """Where its programs are kept."""
        digest = hashlib.sha256(platform.machine().encode())
        for file in sorted(self.source.rglob("*")):
            digest.update(file.read_bytes() if file.is_file() else b"")
        return places.cache() / "binaries" / f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"


_KUBERNETES = "k8s.io/kubernetes"
MODULES = (
    Module(
        "kubernetes",
        _KUBERNETES,
        {
            "etcd": "go.etcd.io/etcd/server/v3",
            **{
                name: f"{_KUBERNETES}/cmd/{name}"
                for name in (
                    *("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
                    *("kubectl", "kubelet", "kube-proxy"),
                )
            },
        },
    ),
    Module("coredns", "github.com/coredns/coredns", {"coredns": "kubelab/go/coredns"}),
    Module("kwok", "sigs.k8s.io/kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    Module(
        "gofakes3",
        "github.com/johannesboyne/gofakes3",
        {"gofakes3": "github.com/johannesboyne/gofakes3/cmd/gofakes3"},
    ),
    Module(
        "fake-gcs-server",
        "github.com/fsouza/fake-gcs-server",
        {"fake-gcs-server": "github.com/fsouza/fake-gcs-server"},
    ),
    Module("registry", "github.com/distribution/distribution/v3", {"registry": "kubelab/go/registry"}),
    Module("tools", "tools", {"pause": "kubelab/go/tools/pause", "probe": "kubelab/go/tools/probe"}),
)


_OF_TESTS = ("gofakes3", "fake-gcs-server", "registry")
"""Servers that a test starts beside a cluster; each is built when one does."""


def find(program: str) -> Path | None:
    """A program that is there already, or None."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (Path(assets) / program).is_file():
        return Path(assets).resolve() / program
    path = _module(program).directory / program
    return path if path.is_file() else None


def program(name: str) -> Path:
    """A program, built if need be."""
    return find(name) or _built(_module(name)) / name


def ensure(*modules: str) -> None:
    """Build what is missing of the given modules, or of all."""
    for module in MODULES:
        if (not modules or module.name in modules) and any(find(name) is None for name in module.programs):
            _built(module)


def complete() -> bool:
    """Whether nothing that a cluster needs has to be built."""
    needed = (module for module in MODULES if module.name not in _OF_TESTS)
    return all(find(name) for module in needed for name in module.programs)


def hollow_stages() -> list[Path]:
    """KWOK's own description of how hollow nodes and pods behave; it is kept beside the program."""
    found = sorted((program("kwok").parent / "stages").glob("*.yaml"))
    return found or sorted((_built(_module("kwok")) / "stages").glob("*.yaml"))


def _module(program: str) -> Module:
    return next(module for module in MODULES if program in module.programs)


def _built(module: Module) -> Path:
    with locked(places.cache() / "binaries" / f"{module.name}.lock"):
        if not module.directory.is_dir():
            go = commands.find("go")
            if go is None:
                raise MissingTool(
                    f"{', '.join(module.programs)} must be built once, and there is no Go compiler. "
                    "Install Go 1.21 or later (https://go.dev/dl), or point $KUBEBUILDER_ASSETS at a "
                    "directory that has the programs."
                )
            with TemporaryDirectory(dir=module.directory.parent) as scratch:
                _build(go, module, Path(scratch))
                # TemporaryDirectory wants to remove what it made, so the result moves out of it.
                (Path(scratch) / "bin").rename(module.directory)
    return module.directory


def _build(go: str, module: Module, scratch: Path) -> None:
    major, minor = [*module.version.lstrip("v").split("."), "0"][:2]
    values = {"gitVersion": module.version, "gitMajor": major, "gitMinor": minor}
    stamps = [f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items()]
    flags = " ".join(["-s", "-w", *stamps])
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
        "GOWORK": "off",
    }
    packages = list(module.programs.values())
    (scratch / "bin").mkdir()
    total = len(
        _output([go, "list", "-deps", *packages], module.source, environment).split()
    )  # also downloads the sources
    say = _Progress(f"building {module.name} {module.version}", total)
    jobs = os.environ.get("KUBELAB_BUILD_JOBS")
    argv = [
        *("nice", "-n", "10", go, "build", "-v", "-ldflags", flags, *(["-p", jobs] if jobs else [])),
        *("-o", str(scratch / "bin") + "/", *packages),
    ]
    with subprocess.Popen(
        argv, cwd=module.source, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        last: list[str] = []
        for line in process.stderr:
            last = [*last[-30:], line]
            say.one_more()
    if process.returncode != 0:
        raise BuildFailed(f"go build of {module.name} returned {process.returncode}:\n{''.join(last)}")
    for name, package in module.programs.items():
        # Go names a program after the last part of its package's path that is not a version.
        made = [part for part in package.split("/") if not re.fullmatch(r"v\d+", part)][-1]
        (scratch / "bin" / made).rename(scratch / "bin" / name)
    if module.name == "kwok":
        folder = _output(
            [go, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"], module.source, environment
        ).strip()
        (scratch / "bin" / "stages").mkdir()
        for stage in ("node/fast", "node/heartbeat-with-lease", "pod/fast"):
            for file in sorted((Path(folder) / "kustomize" / "stage" / stage).glob("*.yaml")):
                if file.name != "kustomization.yaml":
                    shutil.copy(file, scratch / "bin" / "stages" / file.name)
        for file in (scratch / "bin" / "stages").iterdir():
            file.chmod(0o644)  # Go's module cache is read-only
    say.done()


def _output(argv: list[str], cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildFailed(f"{' '.join(argv[:3])} returned {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class _Progress:
    """One line that changes on a terminal; a line now and then elsewhere."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._count = 0
        self._elapsed = stopwatch()
        self._said = -100.0
        self._terminal = sys.stderr.isatty()
        self._say()

    def one_more(self) -> None:
        """One more package was compiled."""
        self._count += 1
        self._say()

    def done(self) -> None:
        """Everything was compiled and linked."""
        end = "\n" if self._terminal else ""
        print(f"{end}{self._what}: done after {self._elapsed():.0f} s", file=sys.stderr, flush=True)

    def _say(self) -> None:
        seconds = self._elapsed()
        if seconds - self._said < (0.2 if self._terminal else 15):
            return
        self._said = seconds
        text = f"{self._what} (once): {self._count} of up to {self._total} packages, {seconds:.0f} s"
        print(
            f"\r{text}" if self._terminal else text,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )
