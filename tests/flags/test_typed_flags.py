"""Text flags are parsed once, into typed parts that everybody reads."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import edl_allreduce
from edl_allreduce.errors import UsageError
from edl_allreduce.spec import JobSpec, parse_job, typed
from edl_allreduce.spec.typed import TYPED, TypedFlag

PACKAGE = Path(edl_allreduce.__file__).parent
TRAIN = ["--job_name=j", "--model_def=a.b.c", "--training_data=/x", "--image_name=i"]

PARSED_ELSEWHERE = {
    "cli/data.py": {"parse_params"},  # a flag of its own, not a job's
    # Names of functions, which may be dotted; which file a name means depends on the model file.
    "cluster/pinned.py": {"split_model_def"},
    "worker/keras/zoo.py": {"split_model_def"},
    "worker/start/preflight.py": {"split_model_def"},
}


def spec_of(*flags: str) -> JobSpec:
    return parse_job("train", [*TRAIN, *flags]).spec


def test_each_part_is_of_a_flag_and_is_kept():
    spec = spec_of("--volume=claim_name=data,mount_path=/data", "--envs=A=1", "--worker_tolerations=spot")
    fields = JobSpec.__dataclass_fields__
    for flag, part in TYPED.items():
        assert flag in fields
        assert getattr(spec.typed, part) is getattr(spec.typed, part)
    assert spec.typed.worker_resources is spec.typed.worker_resources


def test_what_the_check_parsed_is_what_is_read(monkeypatch):
    """The check of the flags is the one time that they are parsed."""
    texts: list[str] = []
    original = typed.parse_volumes
    noting = TypedFlag("volume", lambda text: texts.append(text) or original(text))
    noting.__set_name__(typed.TypedFlags, "volumes")
    monkeypatch.setattr(typed.TypedFlags, "volumes", noting)
    spec = spec_of("--volume=claim_name=data,mount_path=/data")
    assert spec.typed.volumes.mounts[0].mount_path == "/data"
    assert texts == ["claim_name=data,mount_path=/data"]


def test_a_job_that_was_not_checked_names_the_flag_that_is_wrong():
    with pytest.raises(UsageError, match=r"--volume: .*claim_name and host_path"):
        _ = JobSpec(volume="mount_path=/data").typed.volumes


def test_nobody_parses_a_text_flag_again():
    """Other modules read `spec.typed`; the functions that parse belong to this package."""
    found: dict[str, set[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        if name.startswith("spec/"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("edl_allreduce.spec."):
                parsing = {a.name for a in node.names if a.name.startswith(("parse_", "split_"))}
                if parsing - {"parse_job"}:
                    found.setdefault(name, set()).update(parsing)
    assert found == PARSED_ELSEWHERE


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object"),
        ('{"pods": {}}', "unknown pods; known are pod_spec"),
        ('{"pod_spec": []}', "pod_spec: expected a JSON object"),
        ('{"pod_spec": {"image": "x"}}', r"unknown pod_spec\.image; pod_spec has labels"),
        ('{"pod_spec": {"labels": []}}', r"pod_spec\.labels: expected a JSON object"),
        ('{"worker_spec": {"tolerations": {}}}', r"worker_spec\.tolerations: expected a JSON array"),
        ('{"worker_spec": {"tolerations": ["x"]}}', r"worker_spec\.tolerations: .* array of objects"),
        ('{"pod_spec": {"env": [{"value": "x"}]}}', r"pod_spec\.env: expected a name"),
    ],
)
def test_the_clusters_json_has_one_set_of_rules_and_is_refused_with_the_flags(given, words):
    with pytest.raises(UsageError, match=f"--cluster_spec_json: {words}"):
        spec_of(f"--cluster_spec_json={given}")


def test_the_clusters_json_keeps_what_was_given():
    given = {"pod_spec": {"labels": {"team": "ml"}}, "ps_spec": {}, "worker_spec": {"env": [{"name": "A"}]}}
    adaptation = spec_of(f"--cluster_spec_json={json.dumps(given)}").typed.adaptation
    pod, worker = adaptation.of("pod_spec", "worker_pod_spec", "worker_spec")
    assert (pod.labels, pod.affinity, worker.env) == ({"team": "ml"}, None, ({"name": "A"},))
    assert spec_of().typed.adaptation.pieces == {}
