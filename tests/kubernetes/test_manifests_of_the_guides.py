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
    if path.name != "kustomization.yaml" and "overlays" not in path.parts and not path.is_symlink()
)
FOLDERS = sorted(str(path.parent.relative_to(ROOT)) for path in ROOT.rglob("kustomization.yaml"))


@pytest.mark.parametrize("file", FILES)
def test_a_manifest_is_accepted_as_it_is(controlplane, namespace, file):
    strict = ("apply", "--server-side", "--validate=strict", "--dry-run=server", "-n", namespace)
    controlplane.kubectl("apply", "-n", namespace, "-f", str(ROOT / "elasticdl-rbac.yaml"))  # as they say
    assert "serverside-applied" in controlplane.kubectl(*strict, "-f", str(ROOT / file))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_kustomization_is_accepted_as_it_is(controlplane, namespace, folder):
    strict = ("apply", "--server-side", "--validate=strict", "--dry-run=server", "-n", namespace)
    assert "serverside-applied" in controlplane.kubectl(*strict, "-k", str(ROOT / folder))


def test_names_of_the_guides_lead_to_the_same_files():
    for name in ("elasticdl-rbac.yaml", "high.yaml", "low.yaml"):
        assert (ROOT / name).resolve() == ROOT / "base" / name


def test_models_of_the_guides_are_in_the_zoo():
    texts = [path.read_text() for path in (*ROOT.rglob("*.yaml"), *ROOT.parent.glob("docs/kubernetes/*.md"))]
    models = {model for text in texts for model in re.findall(r"--model_def=(\S+)\.\w+", text)}
    assert len(models) >= 2
    for model in models:
        assert (ROOT.parent / "model_zoo" / f"{model.replace('.', '/')}.py").exists(), model
