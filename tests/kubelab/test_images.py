"""Images reach the nodes without a registry, and old versions of them do not pile up."""

import hashlib
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from kubelab import builders, commands, images, places
from kubelab.archives import load_archive
from kubelab.errors import BuildFailed, KubelabError
from tests.kubelab.command import cluster_command

DOCKERFILE = """ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY base /base
COPY source /source
"""


def _stored(layer: str) -> bool:
    return layer in {blob.name for blob in images.common_blobs([images.store()])}


def _layer(archive: Path) -> str:
    with tarfile.open(archive) as tar:
        return hashlib.sha256(tar.extractfile("layer.tar").read()).hexdigest()


@pytest.mark.cluster
def test_a_loaded_image_runs_and_the_one_it_replaces_is_forgotten(cluster, namespace, start_pod, tmp_path):
    name = f"kubelab-test/says:{os.getpid()}"
    layers = []
    try:
        for word in ("one", "two"):
            script = tmp_path / word
            script.write_text(f"#!/bin/sh\necho version {word}\n")
            shell = {"bin/busybox": Path(commands.find("busybox") or ""), "bin/say": script}
            images.write_archive(tmp_path / "image.tar", name, shell, {"bin/sh": "busybox"}, ["/bin/say"])
            said = cluster_command("load", str(tmp_path / "image.tar"), "--name", cluster.name)
            assert said == f"loaded docker.io/{name}\n"
            for node in ("node-a", "node-b"):
                own = {"image": f"docker.io/{name}", "command": ["/bin/say"], "imagePullPolicy": "Never"}
                start_pod(f"{word}-{node}", "", node, phase="Succeeded", container=own)
                assert cluster.logs(namespace, f"{word}-{node}") == f"version {word}\n"
            layers.append(_layer(tmp_path / "image.tar"))
            assert [_stored(layer) for layer in layers] == [False] * (len(layers) - 1) + [True]
    finally:
        images.forget(f"docker.io/{name}")
    assert not _stored(layers[-1])


def test_an_archive_without_a_name_is_refused_with_a_cure(tmp_path):
    (tmp_path / "index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:0"}]}))
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        tar.add(tmp_path / "index.json", "index.json")
    with pytest.raises(KubelabError, match="holds no named image; write it with: docker save"):
        load_archive(tmp_path / "image.tar")


@pytest.mark.cluster
@pytest.mark.skipif(commands.find("buildah") is None, reason="buildah is not installed")
def test_after_a_change_of_source_only_what_changed_is_built_and_packed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(builders, "_LARGE", 512 * 1024)  # the first layer is larger, the others are not
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(DOCKERFILE)
    (context / "base").write_bytes(os.urandom(1 << 20))
    root = tmp_path / "containerd" / "io.containerd.content.v1.content"
    builder = builders._Buildah(tmp_path / "cache" / "kubelab" / "images" / "buildah")
    archive = tmp_path / "image.tar"
    (tmp_path / "cache" / "kubelab" / "images").mkdir(parents=True)
    sizes, ids = [], set()
    for version in ("one", "two", "three"):
        (context / "source").write_text(version)
        tag, arguments = "kubelab-test/built:1", {"BASE_IMAGE": "scratch"}
        ids.add(builder.build(context, context / "Dockerfile", tag, arguments))
        builders.export(tag, archive, [tmp_path / "containerd"])
        sizes.append(archive.stat().st_size)
        shutil.unpack_archive(archive, root)  # what a containerd would keep of it
        (entry,) = json.loads((root / "index.json").read_text())["manifests"]
        manifest = json.loads((root / "blobs" / entry["digest"].replace(":", "/")).read_text())
        kinds = [layer["mediaType"] for layer in manifest["layers"] if layer["size"] > 1 << 20]
        assert kinds == ["application/vnd.oci.image.layer.v1.tar"], "else it would be compressed every time"
    assert len(ids) == 3
    assert sizes[0] > 1 << 20 and max(sizes[1:]) < 100_000
    with pytest.raises(KubelabError, match="no local builder has image kubelab-test/unknown:1"):
        builders.export("kubelab-test/unknown:1", archive, [tmp_path])
    kept = builder._call("images", "--all", "--quiet").split()
    assert len(kept) == 2, "the last version and the step before it, which the next build begins with"


@pytest.mark.parametrize("program", ["docker", "podman"])
def test_docker_and_podman_are_asked_as_they_want_to_be(tmp_path, monkeypatch, program):
    heard = tmp_path / "heard"
    fake = tmp_path / "bin" / program
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$@" >> {heard}\n[ "$1" != image ] || echo sha256:1234\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    builder = builders._Docker(program)
    assert builder.works()
    made = builder.build(tmp_path, tmp_path / "Dockerfile", "a/b:1", {"BASE_IMAGE": "debian"})
    builder.export("a/b:1", tmp_path / "image.tar", [])
    assert made == "sha256:1234"
    assert heard.read_text().splitlines() == [
        "info",
        f"build -t a/b:1 -f {tmp_path}/Dockerfile --build-arg BASE_IMAGE=debian {tmp_path}",
        "image inspect --format {{.Id}} a/b:1",
        f"save -o {tmp_path}/image.tar a/b:1",
    ]
    fake.write_text("#!/bin/sh\necho no space left; exit 1\n")
    assert not builder.works()
    with pytest.raises(BuildFailed, match="no space left"):
        builder.build(tmp_path, tmp_path / "Dockerfile", "a/b:1", {})


def test_of_the_directories_of_wheels_those_used_last_are_kept(tmp_path):
    for age, name in enumerate(("new", "middle", "old", "oldest")):
        (tmp_path / name / "wheels").mkdir(parents=True)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    places.keep_last_used(tmp_path / "old", 2)
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new"}
    places.keep_last_used(tmp_path / "new", 2)
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new"}


def test_names_are_completed_as_docker_does():
    assert images.full_name("busybox:1") == "docker.io/library/busybox:1"
    assert images.full_name("elasticdl/elasticdl:dev") == "docker.io/elasticdl/elasticdl:dev"
    assert images.full_name("localhost/a:1") == "localhost/a:1"
    assert images.full_name("registry.example:5000/a/b:1") == "registry.example:5000/a/b:1"
