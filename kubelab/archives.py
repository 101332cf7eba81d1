"""Images from wherever they were built into the nodes."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

from kubelab import builders, images, places
from kubelab.cluster import Cluster
from kubelab.errors import KubelabError
from kubelab.state import State


def load(image: str, cluster: str = "kubelab") -> list[str]:
    """Load an archive file or a locally built image into the store, and into a cluster if it is up."""
    if Path(image).is_file():
        return load_archive(Path(image).resolve(), cluster)
    with images.scratch() as directory:
        archive = Path(directory) / "image.tar"
        builders.export(image, archive, builders.roots(_up(cluster)))
        return load_archive(archive, cluster)


def load_archive(archive: Path, cluster: str = "kubelab") -> list[str]:
    """Load an archive; return the names of the images in it."""
    names = _names(archive)
    if not names:
        raise KubelabError(f"{archive} holds no named image; write it with: docker save -o FILE NAME:TAG")
    with archive.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    if not all(images.is_loaded(name, content) for name in names):
        images.load(archive, names, content)
    if running := _up(cluster):
        running.load(archive, names)
    return names


def _up(cluster: str) -> Cluster | None:
    state = State.load(places.run_directory(cluster))
    return Cluster.attach(cluster) if state is not None and state.ready else None


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
    return [images.full_name(name) for image in manifest for name in image.get("RepoTags") or []]


def _oci_names(index: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    """As containerd reads them: its own note first; of the other one a tag alone is no name."""
    notes = [entry.get("annotations", {}) for entry in index["manifests"]]
    keys = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
    names = [next((note[key] for key in keys if key in note), "") for note in notes]
    return [name for name in names if "/" in name or ":" in name]
