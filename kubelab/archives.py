"""Images from wherever they were built into the nodes."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from kubelab import commands, images, places
from kubelab.cluster import Cluster
from kubelab.errors import CommandFailed, KubelabError
from kubelab.state import State


def load(image: str, cluster: str = "kubelab") -> list[str]:
    """Load an archive file or a locally built image into the store, and into a cluster if it is up."""
    if Path(image).is_file():
        return load_archive(Path(image).resolve(), cluster)
    with TemporaryDirectory(dir=_scratch()) as scratch:
        archive = Path(scratch) / "image.tar"
        export(image, archive)
        return load_archive(archive, cluster)


def load_archive(archive: Path, cluster: str = "kubelab") -> list[str]:
    """Load an archive; return the names of the images in it."""
    names = _names(archive)
    if not names:
        raise KubelabError(f"{archive} holds no named image; write it with: docker save -o FILE NAME:TAG")
    with archive.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    for name in names:
        if not images.is_loaded(name, content):
            images.load(archive, name, content)
    state = State.load(places.run_directory(cluster))
    if state is not None and state.ready:
        Cluster.attach(cluster).load(archive, names[0], content)
    return names


def export(image: str, archive: Path) -> None:
    """Write an image that docker, podman or buildah knows to an archive."""
    said = []
    for argv in (
        ("docker", "save", "-o", str(archive), image),
        ("podman", "save", "-q", "-o", str(archive), image),
        ("buildah", "push", "-q", "--disable-compression", image, f"docker-archive:{archive}:{image}"),
    ):
        if commands.find(argv[0]):
            try:
                commands.run(*argv, timeout=1800)
            except CommandFailed as error:
                said.append(str(error))
            else:
                return
    raise KubelabError(f"no local builder has image {image}: {'; '.join(said) or 'none is installed'}")


def _scratch() -> Path:
    directory = places.cache() / "images"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _names(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        for path, tags in (("manifest.json", _docker_names), ("index.json", _oci_names)):
            try:
                file = tar.extractfile(path)
            except KeyError:
                continue
            if file is not None and (found := tags(json.loads(file.read()))):
                return found
    return []


def _docker_names(manifest: list[dict[str, list[str] | None]]) -> list[str]:
    return [name for image in manifest for name in image.get("RepoTags") or []]


def _oci_names(index: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    keys = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
    notes = [entry.get("annotations", {}) for entry in index["manifests"]]
    return [name for note in notes for key in keys if (name := note.get(key))]
