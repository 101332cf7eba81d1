"""The resource says what the flags say: places, descriptions, defaults, least values, choices."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from edl_allreduce.spec import JobSpec
from edl_allreduce.spec.declare import Group, flag_of
from edl_allreduce.spec.flags import kind_of
from edl_allreduce.spec.resource import crd
from edl_allreduce.spec.resource.crd import COMMAND
from edl_allreduce.spec.resource.places import FIELDS, LEFT_OUT, PLAIN, SHAPED, in_words_of_the_resource
from edl_allreduce.spec.resource.schema import spec_schema, unknown

FILE = Path(__file__).resolve().parents[2] / "manifests" / "crd" / "trainingjob.yaml"
VERSION = crd()["spec"]["versions"][0]
FILLED_IN_ELSEWHERE = {"min_workers"}
"""Defaults that the API server must not fill in."""


def at(path: tuple[str, ...]) -> dict:
    schema = spec_schema()
    for key in path:
        schema = schema["properties"][key]
    return schema


def walk(schema: dict, where: str = "") -> Iterator[tuple[str, dict]]:
    yield where, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{where}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from walk(schema[key], f"{where}[]")


def test_the_file_is_what_the_declarations_give():
    assert yaml.safe_load(FILE.read_text()) == crd(), f"make it again: {COMMAND}"


def test_every_flag_has_one_place_or_a_reason_to_have_none():
    places = [PLAIN.keys(), SHAPED.keys(), LEFT_OUT.keys()]
    assert set().union(*places) == set(FIELDS)
    assert sum(map(len, places)) == len(FIELDS)
    assert all(at(path) for path in (*PLAIN.values(), *SHAPED.values()))
    assert len(set(PLAIN.values())) == len(PLAIN)


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_a_field_has_kind_default_and_bounds_of_its_flag(name):
    flag, field, schema = flag_of(FIELDS[name]), FIELDS[name], at(PLAIN[name])
    kinds = {str: "string", int: "integer", float: "number", bool: "boolean"}
    kind = kind_of(name)
    assert schema["type"] == ("string" if issubclass(kind, enum.StrEnum) else kinds[kind])
    assert schema["description"].startswith(in_words_of_the_resource(flag.help))
    if name not in FILLED_IN_ELSEWHERE:
        assert schema.get("default", "") == ("" if field.default is None else field.default)
    assert schema.get("minimum") == flag.minimum
    if issubclass(kind, enum.StrEnum):
        assert schema["enum"] == list(kind)
    for unit in ("SECONDS", "STEPS", "RECORDS"):
        assert (f"Unit: {unit.lower()}." in schema["description"]) == (flag.metavar == unit)


def test_descriptions_speak_of_fields_and_not_of_flags():
    """Whoever reads `kubectl explain` does not type flags."""
    said = [f"{where}: {schema.get('description', '')}" for where, schema in walk(spec_schema())]
    assert [text for text in said if re.search(r"--[a-z]", text)] == []


def test_everything_has_a_description():
    silent = [where for where, schema in walk(VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"])
              if not schema.get("description") and not where.endswith("[]")]  # fmt: skip
    assert silent == []


def test_every_text_list_and_map_has_a_bound():
    loose = []
    for where, schema in walk(VERSION["schema"]["openAPIV3Schema"]):
        kind = schema.get("type")
        if kind == "string" and not {"maxLength", "enum", "format"} & schema.keys():
            loose.append(where)
        if kind == "array" and not {"maxItems", "x-kubernetes-list-type"} <= schema.keys():
            loose.append(where)
        if "additionalProperties" in schema and "maxProperties" not in schema:
            loose.append(where)
    assert [where for where in loose if where not in (".apiVersion", ".kind")] == []


def test_a_field_stands_under_the_heading_of_its_flag():
    assert PLAIN["training_data"] == ("data", "trainingData")
    assert PLAIN["checkpoint_dir_for_init"] == ("output", "checkpointDirForInit")
    assert {flag_of(FIELDS[name]).group for name in PLAIN} <= set(Group)


def test_what_is_not_in_the_schema_is_found_wherever_it_stands():
    spec = {"image": "i", "worker": {}, "workers": {"maximum": 3}, "volumes": [{"nmae": "a"}],
            "templates": {"pods": {"affinity": {"anything": 1}, "label": {}}}}  # fmt: skip
    found = ["worker", "workers.maximum", "volumes.nmae", "templates.pods.label"]
    assert list(unknown(spec, spec_schema())) == found


def test_subresources_and_names_are_those_that_tools_look_for():
    assert VERSION["subresources"]["scale"]["specReplicasPath"] == ".spec.workers.replicas"
    assert crd()["spec"]["names"]["shortNames"] == ["tj"]
    assert [column["name"] for column in VERSION["additionalPrinterColumns"]][:4] == [
        "Phase", "Ready", "Target", "Min",
    ]  # fmt: skip
    assert JobSpec().max_workers == 0


def test_the_clusters_own_roles_may_do_with_trainingjobs_what_they_may_do_with_other_things():
    applied = yaml.safe_load((FILE.parent / "kustomization.yaml").read_text())["resources"]
    assert set(applied) == {FILE.name, "access.yaml"}
    roles = list(yaml.safe_load_all((FILE.parent / "access.yaml").read_text()))
    verbs: dict[str, set[str]] = {}
    for role in roles:
        for label in role["metadata"]["labels"]:
            _, _, into = label.partition("rbac.authorization.k8s.io/aggregate-to-")
            for rule in role["rules"]:
                assert rule["apiGroups"] == [crd()["spec"]["group"]]
                names = (f"{verb} {resource}" for verb in rule["verbs"] for resource in rule["resources"])
                verbs.setdefault(into, set()).update(names)
    assert verbs["edit"] == verbs["admin"] >= {"create trainingjobs", "patch trainingjobs/scale"}
    assert verbs["view"] and all(one.split()[0] in ("get", "list", "watch") for one in verbs["view"])
    everybody = set.union(*verbs.values())
    assert not everybody & {"update trainingjobs/status", "patch trainingjobs/status"}, "the controller's"
