"""The Helm chart installs the very files of manifests/controller; where there is a Helm, it says the same."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2] / "manifests"
CHART = ROOT / "helm" / "elasticdl-controller"
TEMPLATE = (CHART / "templates" / "controller.yaml").read_text()


def objects(*texts: str) -> dict[tuple[str, str], dict]:
    found = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def plain() -> dict[tuple[str, str], dict]:
    """What `kubectl apply -k manifests/controller` applies, but for the namespace, which Helm makes."""
    names = yaml.safe_load((ROOT / "controller" / "kustomization.yaml").read_text())["resources"]
    files = [ROOT / "controller" / name for name in names if name.endswith(".yaml")]
    files += sorted((ROOT / "crd").glob("[!k]*.yaml"))
    return objects(*(file.read_text() for file in files if file.name != "namespace.yaml"))


def test_its_files_are_those_of_the_manifests_and_all_of_them():
    linked = [*(CHART / "files").iterdir(), *(CHART / "crds").iterdir()]
    assert all(file.is_symlink() and file.exists() for file in linked)
    assert {file.stem for file in (CHART / "files").iterdir()} == set(
        re.findall(r'"(\w+)"', TEMPLATE.split("}}")[1])
    )
    assert objects(*(file.read_text() for file in linked)).keys() == plain().keys()


def test_what_values_replace_is_there_to_be_replaced():
    text = "".join(file.read_text() for file in (CHART / "files").iterdir())
    replaced = re.findall(r'\| replace "([^"]+)"', TEMPLATE)
    assert len(replaced) == 4 and all(words in text for words in replaced)


@pytest.mark.skipif(
    shutil.which("helm") is None, reason="no Helm is here: go install helm.sh/helm/v3/cmd/helm"
)
def test_helm_makes_the_same_of_it():
    argv = ["helm", "template", "x", str(CHART), "--include-crds", "--kube-version=1.35.0"]
    said = subprocess.run(
        [*argv, "--namespace=elasticdl-system"], check=True, capture_output=True, text=True
    ).stdout
    made = objects(said)
    container = made["Deployment", "elasticdl-controller"]["spec"]["template"]["spec"]["containers"][0]
    assert container.pop("args") == []
    assert made == plain()
    more = ["--namespace=other", "--set=image=example/own:2,replicas=3,args={--max_load=0.9}"]
    said = subprocess.run([*argv, *more], check=True, capture_output=True, text=True).stdout
    deployment = objects(said)["Deployment", "elasticdl-controller"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert (deployment["metadata"]["namespace"], deployment["spec"]["replicas"]) == ("other", 3)
    assert (container["image"], container["args"]) == ("example/own:2", ["--max_load=0.9"])
    said = subprocess.run([*argv, "--set=replicas=1"], check=True, capture_output=True, text=True).stdout
    budget = ("PodDisruptionBudget", "elasticdl-controller")
    assert plain().keys() - objects(said).keys() == {budget}, "it would hold every drain of its node"
