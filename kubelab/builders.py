"""Build images with docker, podman or buildah, whichever works here, and load them into nodes.

buildah needs neither a daemon nor a registry: with chroot isolation and a base image that debootstrap makes,
a Dockerfile is built from nothing but Debian's packages.
"""

from __future__ import annotations

import hashlib
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
from kubelab.errors import BuildFailed, CommandFailed, KubelabError, MissingTool
from kubelab.images import full_name
from kubelab.locks import locked

DEBIAN = "bookworm"
# Counts up when the recipe below changes.
_BASE = f"localhost/kubelab/python:{DEBIAN}-1"
# The builder compresses what it writes as OCI, whatever it is told, and what is compressed is not found the
# next time: more than this is written another way, as it is.
_LARGE = 64 * 1024 * 1024


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

    def __init__(self, storage: Path | None = None) -> None:
        self._storage = ("--root", storage / "storage", "--runroot", storage / "run") if storage else ()

    def works(self) -> bool:
        return commands.find(self.program) is not None and os.geteuid() == 0

    def _argv(self, *arguments: str | Path) -> list[str]:
        # It mounts its storage and would leave that behind.
        return ["unshare", "--mount", self.program, *map(str, (*self._storage, *arguments))]

    def _call(self, *arguments: str | Path, timeout: float = 1800) -> str:
        return commands.run(*self._argv(*arguments), timeout=timeout).strip()

    def build(self, context: Path, dockerfile: Path, tag: str, arguments: dict[str, str]) -> str:
        with locked(places.cache() / "images" / "buildah.lock"):
            given = arguments if "BASE_IMAGE" in arguments else {**arguments, "BASE_IMAGE": self._base()}
            options = [part for name, value in given.items() for part in ("--build-arg", f"{name}={value}")]
            flags = ("--isolation=chroot", "--layers", "--tag", tag, "--file", str(dockerfile), *options)
            _run_visibly(self._argv("bud", *flags, context))
            self._call("rmi", "--prune")  # versions that lost their tag to this one
            return self._call("inspect", "--type", "image", "--format", "{{.FromImageID}}", tag)

    def _base(self) -> str:
        """A stand-in for the official Python image, made from Debian's packages."""
        try:
            self._call("inspect", "--type", "image", _BASE)
        except CommandFailed:
            with images.scratch() as directory:
                root = Path(directory) / "root"
                debootstrap(root)
                container = self._call("from", "scratch")
                self._call("copy", "--quiet", container, root, "/")
                self._call("config", "--cmd", "python3", "--env", "PIP_BREAK_SYSTEM_PACKAGES=1", container)
                self._call("commit", "--quiet", "--rm", container, _BASE)
        return _BASE

    def export(self, tag: str, archive: Path, roots: list[Path]) -> None:
        known = {blob.name: blob for blob in images.common_blobs(roots)}
        with (
            TemporaryDirectory(dir=archive.parent) as scratch,
            locked(places.cache() / "images" / "buildah.lock"),
        ):
            layout = Path(scratch) / "layout"
            (layout / "blobs" / "sha256").mkdir(parents=True)
            manifest = json.loads(self._call("inspect", "--type", "image", "--format", "{{.Manifest}}", tag))
            new = (layer for layer in manifest["layers"] if layer["digest"].partition(":")[2] not in known)
            if sum(layer["size"] for layer in new) > _LARGE:
                self._call("push", "--quiet", "--disable-compression", tag, f"dir:{scratch}/plain")
                _arrange(Path(scratch) / "plain", layout)
            else:
                # The builder does not write what lies there already, and everybody has that.
                for name, blob in known.items():
                    (layout / "blobs" / "sha256" / name).hardlink_to(blob)
                self._call("push", "--quiet", tag, f"oci:{layout}:image")
            _pack(layout, tag, archive, set(known))


def _arrange(plain: Path, layout: Path) -> None:
    """Make an OCI layout of the directory that the builder wrote without compressing anything."""
    manifest = (plain / "manifest.json").read_bytes()
    digest = hashlib.sha256(manifest).hexdigest()
    for file in plain.iterdir():
        if len(file.name) == len(digest):
            file.rename(layout / "blobs" / "sha256" / file.name)
    (layout / "blobs" / "sha256" / digest).write_bytes(manifest)
    kind = json.loads(manifest)["mediaType"]
    entry = {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(manifest)}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (layout / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))


def _pack(layout: Path, tag: str, archive: Path, known: set[str]) -> None:
    """Pack an OCI layout that holds one image, without the blobs that everybody has already."""
    index = json.loads((layout / "index.json").read_text())
    (entry,) = index["manifests"]
    entry["annotations"] = {"io.containerd.image.name": full_name(tag)}
    (layout / "index.json").write_text(json.dumps(index))
    with tarfile.open(archive, "w") as tar:
        for name in ("oci-layout", "index.json"):
            tar.add(layout / name, name)
        for blob in sorted((layout / "blobs" / "sha256").iterdir()):
            if blob.name not in known:
                tar.add(blob, f"blobs/sha256/{blob.name}")


def _builders() -> tuple[Builder, ...]:
    own = places.cache() / "images" / "buildah"  # not mixed with what the user has built
    return (_Docker("docker"), _Docker("podman"), _Buildah(own))


def choose() -> Builder:
    """The first builder that works here; as root on Debian, buildah is installed when there is none."""
    builders = _builders()
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


def export(image: str, archive: Path, roots: list[Path]) -> None:
    """Write an image that some builder here knows to an archive."""
    said = []
    for builder in (*_builders(), _Buildah()):
        if builder.works():
            try:
                return builder.export(image, archive, roots)
            except CommandFailed as error:
                said.append(str(error))
    raise KubelabError(f"no local builder has image {image}: {'; '.join(said) or 'none works here'}")


def roots(cluster: Cluster | None) -> list[Path]:
    """Where an image is to go: the store, and the nodes of a cluster."""
    nodes = cluster.nodes.values() if cluster else []
    return [images.store(), *(node.directory / "containerd" for node in nodes)]


def give_to_nodes(builder: Builder, tag: str, image_id: str, cluster: Cluster | None = None) -> None:
    """Load a built image into the store and into a cluster's nodes, unless they have it."""
    name = full_name(tag)
    stored = images.is_loaded(name, image_id)
    if stored and (cluster is None or cluster.has_image(image_id)):
        return
    with images.scratch() as directory:
        archive = Path(directory) / "image.tar"
        builder.export(tag, archive, roots(cluster))
        if not stored:
            images.load(archive, [name], image_id)
        if cluster is not None:
            cluster.load(archive, [name])
