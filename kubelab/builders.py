"""Build images with docker, podman or buildah, whichever works here, and load them into nodes.

buildah needs neither a daemon nor a registry: with chroot isolation and a base image that debootstrap makes,
a Dockerfile is built from nothing but Debian's packages.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from abc import ABC, abstractmethod
from pathlib import Path
from tempfile import TemporaryDirectory

from kubelab import commands, images, places, tiers
from kubelab.cluster import Cluster
from kubelab.errors import BuildFailed, CommandFailed, MissingTool
from kubelab.locks import locked

DEBIAN = "bookworm"
# Counts up when the recipe below changes.
_BASE = f"localhost/kubelab/python:{DEBIAN}-1"


class Builder(ABC):
    """A program that builds Dockerfiles."""

    program: str

    @abstractmethod
    def works(self) -> bool:
        """Whether it can build here."""

    @abstractmethod
    def build(self, context: Path, dockerfile: Path, tag: str, arguments: dict[str, str]) -> str:
        """Build and return the image's id."""

    @abstractmethod
    def export(self, tag: str, archive: Path, roots: list[Path]) -> None:
        """Write an image to an archive; what all these containerd roots have already may be left out."""


class _Docker(Builder):
    def __init__(self, program: str) -> None:
        self.program = program

    def works(self) -> bool:
        try:
            commands.run(self.program, "info", timeout=20)
        except (CommandFailed, MissingTool):
            return False
        return True

    def build(self, context: Path, dockerfile: Path, tag: str, arguments: dict[str, str]) -> str:
        options = [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
        _run_visibly([self.program, "build", "-t", tag, "-f", str(dockerfile), *options, str(context)])
        return commands.run(self.program, "image", "inspect", "--format", "{{.Id}}", tag).strip()

    def export(self, tag: str, archive: Path, roots: list[Path]) -> None:
        commands.run(self.program, "save", "-o", archive, tag, timeout=1800)


class _Buildah(Builder):
    program = "buildah"

    def works(self) -> bool:
        return commands.find(self.program) is not None and os.geteuid() == 0

    def _argv(self, *arguments: str | Path) -> list[str]:
        home = places.cache() / "images" / "buildah"
        storage = ("--root", home / "storage", "--runroot", home / "run")
        # It mounts its storage and would leave that behind.
        return ["unshare", "--mount", self.program, *map(str, (*storage, *arguments))]

    def _call(self, *arguments: str | Path, timeout: float = 1800) -> str:
        return commands.run(*self._argv(*arguments), timeout=timeout).strip()

    def build(self, context: Path, dockerfile: Path, tag: str, arguments: dict[str, str]) -> str:
        with locked(places.cache() / "images" / "buildah.lock"):
            given = arguments if "BASE" in arguments else {**arguments, "BASE": self._base()}
            options = [part for name, value in given.items() for part in ("--build-arg", f"{name}={value}")]
            flags = ("--isolation=chroot", "--layers", "--tag", tag, "--file", str(dockerfile), *options)
            _run_visibly(self._argv("bud", *flags, context))
            return self._call("inspect", "--type", "image", "--format", "{{.FromImageID}}", tag)

    def _base(self) -> str:
        """A stand-in for the official Python image, made from Debian's packages."""
        try:
            self._call("inspect", "--type", "image", _BASE)
        except CommandFailed:
            with TemporaryDirectory(dir=places.cache() / "images") as scratch:
                root = Path(scratch) / "root"
                debootstrap(root)
                container = self._call("from", "scratch")
                self._call("copy", "--quiet", container, root, "/")
                self._call("config", "--cmd", "python3", "--env", "PIP_BREAK_SYSTEM_PACKAGES=1", container)
                self._call("commit", "--quiet", "--rm", container, _BASE)
        return _BASE

    def export(self, tag: str, archive: Path, roots: list[Path]) -> None:
        with TemporaryDirectory(dir=archive.parent) as scratch:
            with locked(places.cache() / "images" / "buildah.lock"):
                # Into a plain directory: nothing is compressed, which would cost more than all the rest.
                self._call("push", "--quiet", "--disable-compression", tag, f"dir:{scratch}")
            _pack(Path(scratch), tag, archive, roots)


def _pack(directory: Path, tag: str, archive: Path, roots: list[Path]) -> None:
    """Pack an image that lies in a directory, without the layers that everybody has already."""
    manifest = (directory / "manifest.json").read_bytes()
    content = json.loads(manifest)
    digest = hashlib.sha256(manifest).hexdigest()
    entry = {
        "mediaType": content["mediaType"],
        "digest": f"sha256:{digest}",
        "size": len(manifest),
        "annotations": {"io.containerd.image.name": full_name(tag)},
    }
    with tarfile.open(archive, "w") as tar:

        def add(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))

        add("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        add("index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        add(f"blobs/sha256/{digest}", manifest)
        for part in (content["config"], *content["layers"]):
            name = part["digest"].partition(":")[2]
            if part is content["config"] or not all(images.has_blob(root, name) for root in roots):
                tar.add(directory / name, f"blobs/sha256/{name}")


def choose() -> Builder:
    """The first builder that works here; as root on Debian, buildah is installed when there is none."""
    builders = (_Docker("docker"), _Docker("podman"), _Buildah())
    if not any(builder.works() for builder in builders):
        tiers.install(["buildah", "debootstrap"])
    for builder in builders:
        if builder.works():
            return builder
    raise MissingTool("no image builder works here; on Debian: apt-get install buildah debootstrap")


def debootstrap(root: Path) -> None:
    """Make a minimal Debian with Python and pip."""
    if commands.find("debootstrap") is None:
        raise MissingTool("debootstrap is not installed: apt-get install debootstrap")
    print(f"making a base image from Debian {DEBIAN}'s packages (once, about a minute)", file=sys.stderr)
    packages = "python3,python3-pip,ca-certificates"
    commands.run("debootstrap", "--variant=minbase", f"--include={packages}", DEBIAN, root, timeout=1800)
    (root / "usr/bin/python").symlink_to("python3")
    for trace in ("etc/hostname", "etc/resolv.conf", "etc/hosts"):  # of the machine that it was made on
        (root / trace).unlink(missing_ok=True)
    for rubbish in (
        "var/cache/apt",
        "var/lib/apt/lists",
        "var/log",
        "usr/share/doc",
        "usr/share/man",
        "usr/share/locale",
    ):
        shutil.rmtree(root / rubbish, ignore_errors=True)
        (root / rubbish).mkdir(parents=True)


def _run_visibly(argv: list[str]) -> None:
    """Building takes a while: what the builder says is shown when it fails, and as it comes on a terminal."""
    show = sys.stderr.isatty()
    done = subprocess.run(
        argv,
        stdout=sys.stderr if show else subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        said = "" if show else ":\n" + done.stdout.decode(errors="replace")[-3000:]
        raise BuildFailed(f"{argv[0]} returned {done.returncode}{said}")


def give_to_nodes(builder: Builder, tag: str, image_id: str, cluster: Cluster | None = None) -> None:
    """Load a built image into the store and into a cluster's nodes, unless they have it."""
    name = full_name(tag)
    if images.is_loaded(name, image_id) and (cluster is None or cluster.has_image(image_id)):
        return
    with TemporaryDirectory(dir=places.cache() / "images") as scratch:
        archive = Path(scratch) / "image.tar"
        nodes = cluster.nodes.values() if cluster else []
        builder.export(tag, archive, [images.store(), *(node.directory / "containerd" for node in nodes)])
        if cluster is None:
            images.load(archive, name, image_id)
        else:
            cluster.load(archive, name, image_id)


def full_name(tag: str) -> str:
    """The name by which a node knows an image."""
    first, slash, _ = tag.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return tag
    return f"docker.io/{tag}" if slash else f"docker.io/library/{tag}"
