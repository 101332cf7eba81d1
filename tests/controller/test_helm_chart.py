"""The Helm chart installs the very files of manifests/controller, and a real Helm carries it in and out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from edl_allreduce.spec.resource import path
from kubelab import binaries, eventually
from kubelab.api import condition
from tests.controller.process import MANIFESTS, SYSTEM, RunningController, kubeconfig_of_the_account
from tests.controller.test_on_a_real_api_server import MASTER, submit
from tests.docs.blocks import blocks
from tests.trainingjob.conftest import remove

ROOT = Path(__file__).resolve().parents[2] / "manifests"
CHART = ROOT / "helm" / "elasticdl-controller"
PAGE = ROOT.parent / "docs" / "kubernetes" / "controller.md"
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


class Terminal:
    """What people type at the top of the project, with an empty home."""

    def __init__(self, directory: Path, helm: str, **environment: str) -> None:
        for name, program in (("helm", helm), ("kubectl", binaries.find("kubectl"))):
            if program is not None:
                (directory / name).symlink_to(program)
        own = {"HOME": str(directory), "PATH": f"{directory}:{os.environ['PATH']}"}
        self._environment = {**own, **environment}

    def type(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line], cwd=ROOT.parent, env=self._environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def terminal(tmp_path) -> Terminal:
    program = binaries.find("helm") or shutil.which("helm")
    if program is None:
        pytest.skip("no Helm is here: the test that installs the chart builds one, or put one into PATH")
    return Terminal(tmp_path, str(program))


def container_of(deployment: dict) -> dict:
    return deployment["spec"]["template"]["spec"]["containers"][0]


def test_helm_makes_the_same_of_it(terminal, tmp_path):
    version = "--kube-version=1.35.0"
    terminal.type(f"helm lint --strict {CHART} {version}")
    terminal.type(f"helm package {CHART} --destination={tmp_path}")
    (package,) = tmp_path.glob("*.tgz")

    def made(chart: Path, *flags: str) -> dict[tuple[str, str], dict]:
        return objects(terminal.type(f"helm template x {chart} --include-crds {version} {' '.join(flags)}"))

    for chart in (CHART, package):
        as_it_is = made(chart, f"--namespace={SYSTEM}")
        assert container_of(as_it_is["Deployment", "elasticdl-controller"]).pop("args") == []
        assert as_it_is == plain()
    values = "--set 'image=example/own:2,replicas=3,args={--max_load=0.9}'"
    deployment = made(CHART, "--namespace=other", values)["Deployment", "elasticdl-controller"]
    container = container_of(deployment)
    assert (deployment["metadata"]["namespace"], deployment["spec"]["replicas"]) == ("other", 3)
    assert (container["image"], container["args"]) == ("example/own:2", ["--max_load=0.9"])
    budget = ("PodDisruptionBudget", "elasticdl-controller")
    only_one = made(CHART, "--set replicas=1")
    assert plain().keys() - only_one.keys() == {budget}, "it would hold every drain of its node"


@pytest.fixture
def bare(controlplane):
    """A control plane that never saw the controller; hollow nodes take its pods."""
    gone = ("delete", "--ignore-not-found", "-f", str(MANIFESTS / "rbac.yaml"))
    controlplane.kubectl(*gone, "-f", str(ROOT / "crd" / "access.yaml"))
    controlplane.add_hollow_nodes(2)
    controlplane.kubectl("taint", "nodes", "--all", "kubelab/hollow-")
    yield controlplane
    remove(controlplane)
    controlplane.kubectl("delete", "lease", "-n", SYSTEM, "--all")


@pytest.mark.controlplane
@pytest.mark.timeout(600)
def test_helm_installs_upgrades_and_uninstalls_it(helm, bare, namespace, tmp_path):
    (lines,) = (block.text.splitlines() for block in blocks(PAGE) if "helm install" in block.text)
    install, newest_type, upgrade, uninstall = lines
    terminal = Terminal(tmp_path, str(helm), KUBECONFIG=str(bare.kubeconfig))
    deployment = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/elasticdl-controller"

    def budgets() -> str:
        return bare.kubectl("get", "poddisruptionbudgets", "-n", SYSTEM, "-o", "name").strip()

    assert newest_type.partition("  ")[0] in terminal.type(install), "what Helm leaves to a person"
    assert bare.api.get(deployment)["status"]["readyReplicas"] == 2 and budgets()

    # The rights that Helm made are enough for a controller: it runs here, because hollow nodes run nothing.
    controller = RunningController(kubeconfig_of_the_account(bare, tmp_path), "first")
    try:
        controller.says("leads in term 1")
        submit(bare, namespace)

        def created() -> bool:
            status = bare.api.get(path(namespace, "job")).get("status") or {}
            return (condition(status.get("conditions"), "Created") or {}).get("status") == "True"

        eventually(created, "its status says that it was made", 60)
        assert "forbidden" not in controller.log and "lacks a right" not in controller.log
    finally:
        controller.end()

    terminal.type(newest_type)
    terminal.type(upgrade)
    found = bare.api.get(deployment)
    assert (found["spec"]["replicas"], container_of(found)["args"]) == (1, ["--max_load=0.9"])
    assert not budgets(), "it would hold every drain of its node"

    terminal.type(uninstall)
    kinds = "deployments,poddisruptionbudgets,roles,rolebindings,clusterroles,clusterrolebindings"
    left = bare.kubectl("get", kinds, "-n", SYSTEM, "-o", "name")
    assert "elasticdl" not in left
    # Helm does not delete CRDs, and that is right: with them all jobs would go.
    assert bare.pod(namespace, MASTER) is not None and bare.api.get(path(namespace, "job"))
