"""`elasticdl zoo`: a Dockerfile for model files, built and pushed by whatever builds images here."""

import hashlib
import io
import json
import subprocess
import tarfile
import urllib.request

import pytest

from edl_allreduce.cli import main as cli
from edl_allreduce.cli.zoo import BUILDERS, without_tls, works
from kubelab.servers import registry


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def custom_model(): ...")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def builder(tmp_path_factory, monkeypatch):
    """A program named docker that notes what it is asked to do; the only one on the path."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "docker"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n[ "$2" != "refused" ]\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin")
    return folder / "asked"


def test_the_zoo_is_copied_to_where_jobs_look_for_it(zoo):
    assert cli.main(["zoo", "init"]) == 0
    assert (zoo / "Dockerfile").read_text().splitlines()[1:] == [
        "FROM elasticdl/elasticdl:dev",
        "USER root",
        "COPY . /model_zoo",
        "USER 65532:65532",
    ]


def test_requirements_wheels_and_a_cluster_spec_go_in_as_well(zoo):
    (zoo / "models").mkdir()
    (zoo / "models" / "requirements.txt").write_text("einops")
    (zoo / "wheels").mkdir()
    (zoo / "wheels" / "edl_allreduce-0.1.0-py3-none-any.whl").touch()
    (zoo / "spec.py").touch()
    flags = ["--model_zoo=models", "--local_pkg_dir=wheels", "--cluster_spec=spec.py"]
    assert cli.main(["zoo", "init", "--base_image=base", "--extra_pypi_index=http://index", *flags]) == 0
    assert (zoo / "Dockerfile").read_text().splitlines()[1:] == [
        "FROM base",
        "USER root",
        "COPY wheels/*.whl /tmp/wheels/",
        "RUN python3 -m pip install --no-cache-dir --extra-index-url http://index /tmp/wheels/*.whl",
        "COPY models/requirements.txt /tmp/requirements.txt",
        "RUN python3 -m pip install --no-cache-dir --extra-index-url http://index -r /tmp/requirements.txt",
        "COPY models /model_zoo",
        "COPY spec.py /cluster_spec/spec.py",
        "USER 65532:65532",
    ]


def test_written_again_it_is_replaced_but_a_file_of_somebody_else_is_not(zoo, capsys):
    assert cli.main(["zoo", "init"]) == 0
    assert cli.main(["zoo", "init", "--base_image=other"]) == 0
    (zoo / "Dockerfile").write_text("FROM mine\n")
    assert cli.main(["zoo", "init"]) == 2
    assert "is not replaced" in capsys.readouterr().err
    assert (zoo / "Dockerfile").read_text() == "FROM mine\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["init", "--model_zoo=nowhere"], "no such file or directory"),
        (["init", "--cluster_spec=/etc/hostname"], "lies outside of"),
        (["init", "--local_pkg_dir=."], "holds no wheel"),
        (["build", "--image=me/zoo:1", "."], "no Dockerfile"),
        (["build", "."], "--image"),
        (["pus"], "Did you mean push?"),
    ],
)
def test_what_is_wrong_is_named_with_its_cure(zoo, capsys, words, said):
    assert cli.main(["zoo", *words]) == 2
    assert said in capsys.readouterr().err


def test_images_are_built_and_pushed_with_what_is_there(zoo, builder, capsys):
    cli.main(["zoo", "init"])
    assert cli.main(["zoo", "build", "--image=me/zoo:1", "."]) == 0
    assert cli.main(["zoo", "push", "me/zoo:1"]) == 0
    asked = [line for line in builder.read_text().splitlines() if line != "info"]
    assert asked == ["build -t me/zoo:1 .", "push me/zoo:1"]
    assert cli.main(["zoo", "push", "refused"]) == 1
    assert "`docker push refused` ended with 1" in capsys.readouterr().err


def test_without_a_builder_the_cure_is_named(zoo, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(zoo))
    assert cli.main(["zoo", "push", "me/zoo:1"]) == 1
    assert "apt-get install" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "image", "flags"),
    [
        ("buildah", "localhost:5000/me/zoo:1", ["--tls-verify=false"]),
        ("podman", "127.0.0.1:5000/me/zoo:1", ["--tls-verify=false"]),
        ("docker", "127.0.0.1:5000/me/zoo:1", []),
        ("podman", "registry.example.com:5000/me/zoo:1", []),
        ("podman", "127.0.0.1", []),
        ("podman", "127.0.0.1.example.com/me/zoo:1", []),
        ("buildah", "127.example.com:5000/me/zoo:1", []),
    ],
)
def test_only_a_registry_on_this_machine_needs_no_certificate(program, image, flags):
    assert without_tls(program, image) == flags


@pytest.mark.programs
@pytest.mark.timeout(900)  # the registry is built once
def test_an_image_is_built_and_pushed_and_the_registry_has_all_of_it(zoo, tmp_path_factory):
    program = next(filter(works, BUILDERS), None)
    if program is None:
        pytest.skip(f"none of {', '.join(BUILDERS)} works here")
    assert cli.main(["zoo", "init", "--base_image=scratch"]) == 0
    with registry(tmp_path_factory.mktemp("registry")) as server:
        image = f"127.0.0.1:{server.port}/me/zoo:1"
        try:
            assert cli.main(["zoo", "build", f"--image={image}"]) == 0
            assert cli.main(["zoo", "push", image]) == 0
        finally:
            removed = subprocess.run([program, "rmi", image], check=False)
        assert removed.returncode == 0, "it was there"
        manifest = json.loads(fetch(server, "manifests/1"))
        config = json.loads(fetch(server, f"blobs/{manifest['config']['digest']}"))
        assert config["config"]["User"] == "65532:65532"
        names = [name for layer in manifest["layers"] for name in names_in(fetch_blob(server, layer))]
        assert "model_zoo/mine.py" in names

        pulled = subprocess.run([program, "pull", *without_tls(program, image), image], check=False)
        assert pulled.returncode == 0
        subprocess.run([program, "rmi", image], check=True)


def fetch(server, what: str) -> bytes:
    kinds = "application/vnd.oci.image.manifest.v1+json,application/vnd.docker.distribution.manifest.v2+json"
    url = f"http://127.0.0.1:{server.port}/v2/me/zoo/{what}"
    asked = urllib.request.Request(url, headers={"Accept": kinds})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return answer.read()


def fetch_blob(server, entry: dict) -> bytes:
    blob = fetch(server, f"blobs/{entry['digest']}")
    assert f"sha256:{hashlib.sha256(blob).hexdigest()}" == entry["digest"]
    return blob


def names_in(layer: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        return tar.getnames()
