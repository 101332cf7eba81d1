"""Every manifest that the guides name, applied to a real API server that accepts no unknown field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.controlplane

ROOT = Path(__file__).resolve().parents[2] / "manifests"
FILES = sorted(
    str(path.relative_to(ROOT))
    for path in ROOT.rglob("*.yaml")
    if path.name != "kustomization.yaml"
    and not {"overlays", "helm"} & set(path.parts)
    and not path.is_symlink()
    and "kind: TrainingJob\n" not in path.read_text()  # tests/trainingjob applies those
    and "kind: PodMonitor\n" not in path.read_text()  # of Prometheus' operator, which is not here
)
FOLDERS = sorted(str(path.parent.relative_to(ROOT)) for path in ROOT.rglob("kustomization.yaml"))


def strictly(cluster, namespace: str, text: str) -> tuple[str, ...]:
    """How to apply it: in the namespaces that it names, which are made, or else in the test's own."""
    own = sorted(set(re.findall(r"^ +namespace: (\S+)$", text, re.MULTILINE)))
    there = cluster.kubectl("get", "namespaces", "--output=name").split()
    for name in own:
        if f"namespace/{name}" not in there:
            cluster.create_namespace(name)
    where = () if own else ("-n", namespace)
    anew = ("--force-conflicts",)  # other tests may have applied the same file in another way
    return ("apply", "--server-side", "--validate=strict", "--dry-run=server", *anew, *where)


@pytest.mark.parametrize("file", FILES)
def test_a_manifest_is_accepted_as_it_is(controlplane, namespace, file):
    controlplane.kubectl("apply", "-n", namespace, "-f", str(ROOT / "elasticdl-rbac.yaml"))  # as they say
    how = strictly(controlplane, namespace, (ROOT / file).read_text())
    assert "serverside-applied" in controlplane.kubectl(*how, "-f", str(ROOT / file))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_kustomization_is_accepted_as_it_is(controlplane, namespace, folder):
    how = strictly(controlplane, namespace, controlplane.kubectl("kustomize", str(ROOT / folder)))
    assert "serverside-applied" in controlplane.kubectl(*how, "-k", str(ROOT / folder))


def test_names_of_the_guides_lead_to_the_same_files():
    for name in ("elasticdl-rbac.yaml", "high.yaml", "low.yaml"):
        assert (ROOT / name).resolve() == ROOT / "base" / name


def test_models_of_the_guides_are_in_the_zoo():
    texts = [path.read_text() for path in (*ROOT.rglob("*.yaml"), *ROOT.parent.glob("docs/kubernetes/*.md"))]
    models = {model for text in texts for model in re.findall(r"--model_def=(\S+)\.\w+", text)}
    assert len(models) >= 2
    for model in models:
        assert (ROOT.parent / "model_zoo" / f"{model.replace('.', '/')}.py").exists(), model
