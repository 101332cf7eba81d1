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
from kubelab.machines import Component, Machine
from kubelab.processes import end_all
from kubelab.waiting import eventually

_IMAGES = ("ctr", "--namespace", "k8s.io", "images")
PAUSE = "docker.io/kubelab/pause:1"
BUSYBOX = "docker.io/kubelab/busybox:1"
"""A shell, small tools, and `probe serve :PORT | get URL`, for tests of the cluster itself.

(Debian's static busybox cannot resolve names: its wget ends with a segmentation fault.)
"""


def full_name(tag: str) -> str:
    """The name by which a node knows an image."""
    first, slash, _ = tag.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return tag
    return f"docker.io/{tag}" if slash else f"docker.io/library/{tag}"


def _home() -> Path:
    return places.cache() / "images"


def scratch() -> TemporaryDirectory[str]:
    """A temporary directory on the file system of the store, for hard links."""
    _home().mkdir(parents=True, exist_ok=True)
    return TemporaryDirectory(dir=_home())


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
            with scratch() as directory:
                archive = Path(directory) / "image.tar"
                write_archive(archive, name, files, {f"bin/{link}": "busybox" for link in links}, entrypoint)
                load(archive, [name], content)


def is_loaded(name: str, content: str) -> bool:
    """Whether the store has an image of this name and with this content."""
    return _loaded().get(name) == content


def load(archive: Path, names: list[str], content: str) -> None:
    """Import an archive into the store, in the place of what had these names, and remember what it was."""
    with locked(_home() / "lock"), _importer() as machine:
        import_archive(machine, archive, names)
        _keep_only({**_loaded(), **dict.fromkeys(names, content)}, machine)


def forget(name: str) -> None:
    """Remove an image from the store."""
    with locked(_home() / "lock"), _importer() as machine:
        _keep_only({known: content for known, content in _loaded().items() if known != name}, machine)


def import_archive(machine: Machine, archive: Path, names: list[str]) -> None:
    """Import an archive into the containerd of a machine; a large image on a busy machine takes minutes."""
    there = machine.run(*_IMAGES, "list", "--quiet").split()
    # An image that is replaced keeps a name until the new one is unpacked: without one, containerd may remove
    # its layers just when the new one is put on top of them.
    replaced = [name for name in names if name in there]
    for name in replaced:
        machine.run(*_IMAGES, "tag", "--force", name, f"{name}-replaced")
    machine.run(*_IMAGES, "import", archive, timeout=1800)
    if replaced:
        machine.run(*_IMAGES, "remove", *(f"{name}-replaced" for name in replaced))


def _keep_only(record: dict[str, str], machine: Machine) -> None:
    """Write down what is in the store, and remove all else: other names, and what replaced images left."""
    (_home() / "loaded.json").write_text(json.dumps(record, indent=1))
    # So that at least one is removed: --sync makes containerd clean up before it returns.
    machine.run(*_IMAGES, "tag", "--force", min(record), "kubelab/rubbish")
    rubbish = set(machine.run(*_IMAGES, "list", "--quiet").split()) - set(record)
    machine.run(*_IMAGES, "remove", "--sync", *sorted(rubbish), timeout=600)


def store() -> Path:
    """The containerd root that nodes are given."""
    return _home() / "containerd"


def common_blobs(roots: list[Path]) -> list[Path]:
    """The pieces of images, named by their SHA-256, that all of these containerd roots have."""
    folders = [root / "io.containerd.content.v1.content" / "blobs" / "sha256" for root in roots]
    return [file for file in folders[0].glob("*") if all((other / file.name).exists() for other in folders)]


def _loaded() -> dict[str, str]:
    try:
        return dict(json.loads((_home() / "loaded.json").read_text()))
    except FileNotFoundError:
        return {}


def wait_for_containerd(machine: Machine) -> None:
    """Wait until the containerd of a machine answers."""

    def answers() -> bool:
        try:
            machine.run("ctr", "version")
        except CommandFailed:
            return False
        return True

    eventually(answers, f"containerd on {machine.name} answers (logs: {machine.log.parent})", 30)


@contextmanager
def _importer() -> Iterator[Machine]:
    """A machine with nothing but a containerd on the store."""
    run = _home() / "importer"
    end_all(run)  # what a killed command left
    machine = Machine("importer", run)
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
'''
        )
        Component("containerd", run, ["/usr/bin/containerd", "--config", str(config)], machine).start()
        wait_for_containerd(machine)
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
