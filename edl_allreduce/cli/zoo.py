"""`elasticdl zoo`: put model files into an image, build it, push it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from edl_allreduce.cli import subcommands
from edl_allreduce.errors import SetupError, UsageError
from edl_allreduce.spec.words import Parser

_PROGRAM: Final = "elasticdl zoo"
_BASE: Final = "elasticdl/elasticdl:dev"
_MARK: Final = "# Written by `elasticdl zoo init`."
BUILDERS: Final = ("docker", "podman", "buildah")


def main(argv: Sequence[str]) -> int:
    return subcommands.run(_PROGRAM, "Put model files into an image for Kubernetes.", _COMMANDS, argv)


# --- init ---------------------------------------------------------------------------------------------


def _init(argv: Sequence[str]) -> int:
    parser = Parser(
        f"{_PROGRAM} init",
        "[flags]",
        "Write a Dockerfile into this directory that adds a model zoo to an image of this software.\n"
        "requirements.txt of the zoo is installed where there is one.",
        f"Example:\n  cd model_zoo && {_PROGRAM} init && {_PROGRAM} build --image=registry/me/zoo:1 .",
    )
    parser.add_argument(
        "--base_image", default=_BASE, metavar="IMAGE", help=f"made by docker/build; default: {_BASE}"
    )
    parser.add_argument("--model_zoo", default=".", metavar="DIR", help="below this directory; default: .")
    parser.add_argument("--extra_pypi_index", default="", metavar="URL", help="another index for packages")
    parser.add_argument("--cluster_spec", default="", metavar="FILE", help="for jobs with --cluster_spec")
    parser.add_argument(
        "--local_pkg_dir",
        default="",
        metavar="DIR",
        help="wheels to install into the image",
    )
    asked = parser.read(argv)
    here = Path.cwd()
    zoo = _inside(here, asked.model_zoo, "--model_zoo")
    lines = [_MARK, f"FROM {asked.base_image}", "USER root"]
    if asked.local_pkg_dir:
        wheels = _inside(here, asked.local_pkg_dir, "--local_pkg_dir")
        if not list((here / wheels).glob("*.whl")):
            raise UsageError(f"--local_pkg_dir={asked.local_pkg_dir} holds no wheel (*.whl).")
        lines += [f"COPY {wheels}/*.whl /tmp/wheels/", _pip(asked.extra_pypi_index, "/tmp/wheels/*.whl")]
    if (here / zoo / "requirements.txt").exists():
        # Before the zoo itself, so that a changed model does not install everything again.
        lines += [
            f"COPY {zoo}/requirements.txt /tmp/requirements.txt",
            _pip(asked.extra_pypi_index, "-r /tmp/requirements.txt"),
        ]
    lines.append(f"COPY {zoo} /model_zoo")
    if asked.cluster_spec:
        spec = _inside(here, asked.cluster_spec, "--cluster_spec")
        lines.append(f"COPY {spec} /cluster_spec/{Path(spec).name}")
    lines.append("USER 65532:65532")
    _write(here / "Dockerfile", "\n".join(lines) + "\n")
    print(f"Wrote Dockerfile. Next: {_PROGRAM} build --image=IMAGE .")
    return 0


def _inside(here: Path, path: str, flag: str) -> str:
    """Builders copy only from below the directory of the Dockerfile."""
    found = (here / path).resolve()
    if not found.exists():
        raise UsageError(f"{flag}={path}: there is no such file or directory.")
    if not found.is_relative_to(here.resolve()):
        raise UsageError(f"{flag}={path} lies outside of {here}: run this in a directory above it.")
    return str(found.relative_to(here.resolve()))


def _pip(index: str, what: str) -> str:
    option = f"--extra-index-url {index} " if index else ""
    return f"RUN python3 -m pip install --no-cache-dir {option}{what}"


def _write(path: Path, text: str) -> None:
    if path.exists() and not path.read_text(errors="replace").startswith(_MARK):
        raise UsageError(f"{path} is somebody's own and is not replaced; move it away first.")
    path.write_text(text)


# --- build and push -----------------------------------------------------------------------------------


def _build(argv: Sequence[str]) -> int:
    parser = Parser(
        f"{_PROGRAM} build",
        "--image=IMAGE [PATH]",
        f"Build the image with {', '.join(BUILDERS[:-1])} or {BUILDERS[-1]}, whichever is there.",
    )
    parser.add_argument("--image", required=True, metavar="IMAGE", help="name and tag of the image")
    parser.add_argument("path", nargs="?", type=Path, default=Path(), metavar="PATH", help="default: .")
    asked = parser.read(argv)
    if not (asked.path / "Dockerfile").exists():
        raise UsageError(f"There is no Dockerfile in {asked.path}; `{_PROGRAM} init` writes one there.")
    return _run(_builder(), "build", "-t", asked.image, str(asked.path))


def _push(argv: Sequence[str]) -> int:
    parser = Parser(f"{_PROGRAM} push", "IMAGE", "Push the image to its registry, with your login there.")
    parser.add_argument("image", metavar="IMAGE", help="name and tag of the image")
    image: str = parser.read(argv).image
    program = _builder()
    return _run(program, "push", *without_tls(program, image), image)


def without_tls(program: str, image: str) -> list[str]:
    """Flags for a registry on this machine, which has no certificate: docker knows that, others are told."""
    host, slash, _ = image.partition("/")
    name = host.partition(":")[0]
    here = slash and (name == "localhost" or re.fullmatch(r"127(\.\d{1,3}){3}", name))
    return ["--tls-verify=false"] if here and program != "docker" else []


def _builder() -> str:
    program = next(filter(works, BUILDERS), None)
    if program is None:
        raise SetupError(
            f"none of {', '.join(BUILDERS)} works here (`docker info` says why it does not). On Debian: "
            "sudo apt-get install -y podman"
        )
    return program


def _run(program: str, *words: str) -> int:
    code = subprocess.run([program, *words], check=False).returncode
    if code:
        raise SetupError(f"`{program} {' '.join(words)}` ended with {code}; its own words are above.")
    return 0


def works(program: str) -> bool:
    """Whether it is installed, and docker's daemon runs."""
    if shutil.which(program) is None:
        return False
    return subprocess.run([program, "info"], capture_output=True, check=False).returncode == 0


_COMMANDS: Final[dict[str, subcommands.SubCommand]] = {
    "init": ("write a Dockerfile for a model zoo", _init),
    "build": ("build the image", _build),
    "push": ("push it to its registry", _push),
}
