"""Kubernetes' own programs and some that run beside it: found, or built once from pinned source and kept.

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
from dataclasses import dataclass, field
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
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What else is kept of the source of `versioned_by`: folder beside the programs -> files."""
    beside: bool = False
    """A cluster runs without it; it is built when somebody asks for it."""

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
    Module(
        "kwok",
        "sigs.k8s.io/kwok",
        {"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
        {
            "stages": tuple(
                f"kustomize/stage/{name}/*.yaml"
                for name in ("node/fast", "node/heartbeat-with-lease", "pod/fast")
            )
        },
    ),
    Module(
        "gofakes3",
        "github.com/johannesboyne/gofakes3",
        {"gofakes3": "github.com/johannesboyne/gofakes3/cmd/gofakes3"},
        beside=True,
    ),
    Module("helm", "helm.sh/helm/v3", {"helm": "helm.sh/helm/v3/cmd/helm"}, beside=True),
    Module(
        "kueue",
        "sigs.k8s.io/kueue",
        {"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
        {
            "crds": ("config/components/crd/bases/*.yaml",),
            "webhooks": ("config/components/webhook/manifests.yaml",),
        },
        beside=True,
    ),
    Module(
        "fake-gcs-server",
        "github.com/fsouza/fake-gcs-server",
        {"fake-gcs-server": "github.com/fsouza/fake-gcs-server"},
        beside=True,
    ),
    Module(
        "registry",
        "github.com/distribution/distribution/v3",
        {"registry": "kubelab/go/registry"},
        beside=True,
    ),
    Module("tools", "tools", {"pause": "kubelab/go/tools/pause", "probe": "kubelab/go/tools/probe"}),
)


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
    return all(find(name) for module in MODULES if not module.beside for name in module.programs)


def files(owner: str, folder: str) -> list[Path]:
    """What is kept of a program's source, such as its CRDs; where the program was found it may be missing."""
    found = sorted((program(owner).parent / folder).glob("*.yaml"))
    return found or sorted((_built(_module(owner)) / folder).glob("*.yaml"))


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
    for name, patterns in module.files.items():
        folder = scratch / "bin" / name
        folder.mkdir()
        where = [go, "list", "-m", "-f", "{{.Dir}}", module.versioned_by]
        source = Path(_output(where, module.source, environment).strip())
        for file in sorted(file for pattern in patterns for file in source.glob(pattern)):
            if file.name != "kustomization.yaml":
                shutil.copy(file, folder / file.name)
                (folder / file.name).chmod(0o644)  # Go's module cache is read-only
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
