"""Container images without a registry: make archives, keep an unpacked store, give it to nodes.

All images live once in a containerd root in the cache directory. A new node gets that root as hard links and
with real copies of its two databases: a fraction of a second instead of half a minute of unpacking.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from kubelab import binaries, commands, places
from kubelab.errors import CommandFailed, MissingTool
from kubelab.locks import locked
from kubelab.machines import Machine
from kubelab.processes import Component, end_all
from kubelab.waiting import eventually

PAUSE = "docker.io/kubelab/pause:1"
BUSYBOX = "docker.io/kubelab/busybox:1"
"""A shell, small tools, and `probe serve :PORT | get URL`, for tests of the cluster itself.

(Debian's static busybox cannot resolve names: its wget ends with a segmentation fault.)
"""


def _home() -> Path:
    return places.cache() / "images"


def seed(destination: Path) -> None:
    """Give a node all images that are in the store."""
    ensure_basic()
    with locked(_home() / "lock"):
        commands.run("cp", "-al", store(), destination)
        for database in store().rglob("*.db"):
            copy = destination / database.relative_to(store())
            copy.unlink()
            shutil.copy(database, copy)


def ensure_basic() -> None:
    """See that the images which every cluster needs are in the store."""
    busybox = commands.find("busybox")
    if busybox is None:
        raise MissingTool("busybox is not installed: apt-get install busybox-static")
    for name, files, entrypoint in (
        (PAUSE, {"pause": binaries.program("pause")}, ["/pause"]),
        (BUSYBOX, {"bin/busybox": Path(busybox), "bin/probe": binaries.program("probe")}, ["/bin/sh"]),
    ):
        content = hashlib.sha256(b"".join(file.read_bytes() for file in files.values())).hexdigest()
        if _loaded().get(name) != content:
            links = commands.run(busybox, "--list").split() if name == BUSYBOX else []
            with TemporaryDirectory() as scratch:
                archive = Path(scratch) / "image.tar"
                write_archive(archive, name, files, {f"bin/{link}": "busybox" for link in links}, entrypoint)
                load(archive, name, content)


def names() -> set[str]:
    """The images in the store."""
    return set(_loaded())


def is_loaded(name: str, content: str) -> bool:
    """Whether the store has an image of this name and with this content."""
    return _loaded().get(name) == content


def load(archive: Path, name: str, content: str) -> None:
    """Import an archive into the store, and remember what it was."""
    with locked(_home() / "lock"), _importer() as machine:
        import_archive(machine, archive)
        record = {**_loaded(), name: content}
        (_home() / "loaded.json").write_text(json.dumps(record, indent=1))


def import_archive(machine: Machine, archive: Path) -> None:
    """Import an archive into the containerd of a machine; a large image on a busy machine takes minutes."""
    machine.run("ctr", "-n", "k8s.io", "images", "import", archive, timeout=1800)


def store() -> Path:
    """The containerd root that nodes are given."""
    return _home() / "containerd"


def has_blob(root: Path, digest: str) -> bool:
    """Whether a containerd root has a piece of an image, by its SHA-256."""
    return (root / "io.containerd.content.v1.content" / "blobs" / "sha256" / digest).exists()


def _loaded() -> dict[str, str]:
    try:
        return dict(json.loads((_home() / "loaded.json").read_text()))
    except FileNotFoundError:
        return {}


@contextmanager
def _importer() -> Iterator[Machine]:
    """A machine with nothing but a containerd on the store."""
    run = _home() / "importer"
    end_all(run)  # what a killed command left
    machine = Machine(run, "importer")
    machine.boot()
    try:
        config = run / "containerd.toml"
        config.write_text(
            f'''version = 2
root = "{store()}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[plugins."io.containerd.internal.v1.opt"]
  path = "/run/containerd/opt"
[plugins."io.containerd.gc.v1.scheduler"]
  mutation_threshold = 1  # what a replaced image leaves goes at once
'''
        )
        containerd = Component(
            "containerd", run, ["/usr/bin/containerd", "--config", str(config)], machine.pid
        )
        containerd.start()

        def answers() -> bool:
            try:
                machine.run("ctr", "version")
            except CommandFailed:
                return False
            return True

        eventually(answers, f"containerd of the image store answers (log: {containerd.log})", 30)
        yield machine
    finally:
        end_all(run)
        shutil.rmtree(run)


def write_archive(
    archive: Path, name: str, files: dict[str, Path], links: dict[str, str], entrypoint: list[str]
) -> None:
    """Write an image of one layer as `docker save` would: files (all executable) and symbolic links."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for directory in ("bin", "tmp", "etc"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
            tar.addfile(entry)
        for path, file in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = file.stat().st_size, 0o755
            with file.open("rb") as source:
                tar.addfile(entry, source)
        for path, target in links.items():
            if path not in files:
                entry = tarfile.TarInfo(path)
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                tar.addfile(entry)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}
    config = json.dumps(
        {
            "architecture": machine.get(commands.run("uname", "-m").strip(), "amd64"),
            "os": "linux",
            "config": {"Entrypoint": entrypoint, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(archive, "w") as tar:
        for path, content in (
            ("manifest.json", manifest),
            ("config.json", config),
            ("layer.tar", layer.getvalue()),
        ):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
