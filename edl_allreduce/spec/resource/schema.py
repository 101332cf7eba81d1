"""What may stand in `spec`, generated from the declarations of flags: `kubectl explain` is as good as help.

Every text, list and map has a bound: the API server must be able to tell what a rule costs.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from edl_allreduce.spec.declare import Flag, flag_of
from edl_allreduce.spec.flags import kind_of
from edl_allreduce.spec.resource.documents import MOVED, WITHOUT_EFFECT
from edl_allreduce.spec.resource.names import Object
from edl_allreduce.spec.resource.places import FIELDS, PLAIN, SHAPED, in_words_of_the_resource
from edl_allreduce.spec.resource.shapes import BATCH_WORKERS, MOUNTS, REPLICAS, TEMPLATES

MOST_WORKERS: Final = 10_000
LONGEST_TEXT: Final = 4096
LONGEST_NAME: Final = 253
MOST_ITEMS: Final = 64
QUANTITY: Final = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[mkMGTPE]|([eE](\+|-)?[0-9]+))?$"
"""Kubernetes' own pattern of an amount."""

_SECTIONS: Final[Mapping[str, str]] = {
    "workers": "How many workers the job may have, and what their pods look like.",
    "master": "The pod that looks after the workers; it holds no model and needs little.",
    "model": "What is trained: a model file of a zoo. Not with jobCommand.",
    "data": "Records, and how they are read.",
    "training": "Batch, length and numerics.",
    "elasticity": "How the job behaves when workers come and go.",
    "output": "Checkpoints and results: paths in the pods, so mount a volume there.",
    "logging": "Logs, and records of what happened.",
}
_UNITS: Final = ("SECONDS", "STEPS", "RECORDS")


@cache
def spec_schema() -> Object:
    """The schema of `spec`, without its rules."""
    spec = obj("What to train, on what, and with how many workers at least and at most.", {})
    for name, about in _SECTIONS.items():
        spec["properties"][name] = obj(about, {})
    for name, path in PLAIN.items():
        _place(spec, path, _plain(name))
    spec["properties"]["image"]["minLength"] = 1
    for path, schema in _shaped():
        _place(spec, path, schema)
    # Not filled in by the API server: in the documents' spelling it stands elsewhere.
    least = spec["properties"]["workers"]["properties"]["min"]
    least |= {"format": "int32", "maximum": MOST_WORKERS}
    least["description"] += f" Default: {least.pop('default')}."
    for path, schema in _documents():
        _place(spec, path, schema)
    # Filled in by the API server, so that rules can compare it with what was there before.
    spec["properties"]["training"]["default"] = {}
    spec["required"] = ["image"]
    return spec


def unknown(value: Any, schema: Object, where: str = "") -> Iterator[str]:
    """Paths of what no schema knows."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    known = schema.get("properties", {})
    if isinstance(value, dict) and known:
        for key, inner in value.items():
            if key in known:
                yield from unknown(inner, known[key], f"{where}{key}.")
            else:
                yield f"{where}{str(key)[:80]}"
    elif isinstance(value, list):
        for each in value:
            yield from unknown(each, schema.get("items", {}), where)


def _place(spec: Object, path: tuple[str, ...], schema: Object) -> None:
    at = spec
    for key in path[:-1]:
        at = at["properties"].setdefault(key, obj("", {}))
    at["properties"][path[-1]] = schema


# ----------------------------------------------------------------------------------------------------- kinds


def obj(about: str, properties: Object, **more: Any) -> Object:
    described = {"description": about} if about else {}
    return {"type": "object", **described, "properties": properties, **more}


def text(about: str, longest: int = LONGEST_TEXT, **more: Any) -> Object:
    return {"type": "string", "description": about, "maxLength": longest, **more}


def number(about: str, least: int = 0, **more: Any) -> Object:
    return {"type": "integer", "format": "int32", "description": about, "minimum": least, **more}


def _plain(name: str) -> Object:
    flag, kind = flag_of(FIELDS[name]), kind_of(name)
    about = _about(flag)
    default = _default(FIELDS[name].default)
    if issubclass(kind, enum.StrEnum):
        return {"type": "string", "description": about, "enum": [each.value for each in kind], **default}
    if kind is str:
        return text(about, **default)
    if kind is bool:
        return {"type": "boolean", "description": about, **default}
    least = {} if flag.minimum is None else {"minimum": int(flag.minimum) if kind is int else flag.minimum}
    form = {"type": "integer", "format": "int64"} if kind is int else {"type": "number"}
    return {**form, "description": about, **least, **default}


def _about(flag: Flag) -> str:
    unit = f" Unit: {flag.metavar.lower()}." if flag.metavar in _UNITS else ""
    return in_words_of_the_resource(flag.help) + unit


def _default(value: object) -> Object:
    """Nothing and no text are no default: a field that is left out is not filled with them."""
    if value is None or value == "":
        return {}
    return {"default": value.value if isinstance(value, enum.Enum) else value}


# ---------------------------------------------------------------------------------------------------- shapes


def _help(name: str) -> str:
    return _about(flag_of(FIELDS[name]))


def _shaped() -> Iterator[tuple[tuple[str, ...], Object]]:
    yield (
        SHAPED["num_workers"],
        number(
            "Most workers that the job may have; it trains with fewer while there is no room. The batch of a "
            "step is training.minibatchSize x training.batchWorkers, or x workers.max without that.",
            1,
            maximum=MOST_WORKERS,
        ),
    )
    yield (
        REPLICAS,
        number(
            "How many workers the job should have now, between min and max: what `kubectl scale` and a "
            "HorizontalPodAutoscaler set. Left out: the controller's autoscaler decides.",
            1,
            maximum=MOST_WORKERS,
        ),
    )
    yield (
        BATCH_WORKERS,
        number(
            "Workers that the batch of a step is counted for: minibatchSize x batchWorkers records. "
            "With it workers.max may be changed later. Left out: workers.max.",
            1,
            maximum=MOST_WORKERS,
        ),
    )
    for role, section in (("worker", "workers"), ("master", "master")):
        yield (
            (section, "resources"),
            obj(
                f"As in a container of Kubernetes. {_help(f'{role}_resource_request')}",
                {
                    "requests": _quantities(f"What a pod asks for. Default: {_request(role)}."),
                    "limits": _quantities("How much it may use. Left out: what it asks for."),
                },
            ),
        )
    yield SHAPED["worker_tolerations"], _tolerations()
    yield SHAPED["worker_node_selector"], _texts("Labels of the nodes that workers run on.")
    yield SHAPED["volume"], _volumes()
    yield MOUNTS, _mounts()
    yield SHAPED["envs"], _variables("Environment variables of all pods.")
    yield (
        SHAPED["cluster_spec_json"],
        obj(
            "What your cluster wants pods and the master's Service to look like, beyond the fields above.",
            {name: _template(name) for name in TEMPLATES},
        ),
    )
    yield (
        ("suspend",),
        {
            "type": "boolean",
            "default": False,
            "description": "True: workers finish their step, write a checkpoint (output.checkpointDir) and "
            "their pods go. False again: the job goes on from there.",
        },
    )
    yield (
        ("managedBy",),
        text(
            "The controller that looks after this job, where it is not ours: elasticdl.org/controller, or "
            "kueue.x-k8s.io/multikueue. Cannot be changed.",
            LONGEST_NAME,
        ),
    )
    yield ("deadline",), text(_help("deadline"), 64, format="date-time")


def _request(role: str) -> str:
    return str(FIELDS[f"{role}_resource_request"].default)


def _quantities(about: str) -> Object:
    amount = {"x-kubernetes-int-or-string": True, "pattern": QUANTITY, "maxLength": 64}
    return {
        "type": "object",
        "description": about,
        "maxProperties": 16,
        "additionalProperties": {**amount, "anyOf": [{"type": "integer"}, {"type": "string"}]},
    }


def _texts(about: str) -> Object:
    values = {"type": "string", "maxLength": LONGEST_TEXT}
    return {
        "type": "object",
        "description": about,
        "maxProperties": MOST_ITEMS,
        "additionalProperties": values,
    }


def _list(about: str, item: Object, keys: tuple[str, ...] = ()) -> Object:
    kind = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)} if keys else {}
    kind = kind or {"x-kubernetes-list-type": "atomic"}
    return {"type": "array", "description": about, "maxItems": MOST_ITEMS, **kind, "items": item}


def _tolerations() -> Object:
    return _list(
        "Taints of nodes that workers may use, such as those of spot nodes.",
        obj(
            "",
            {
                "key": text("Name of the taint.", 317, minLength=1),
                "operator": {
                    "type": "string",
                    "description": "Equal: this value only. Exists: any value.",
                    "enum": ["Equal", "Exists"],
                },
                "value": text("Value of the taint.", 63),
                "effect": {
                    "type": "string",
                    "description": "Left out: any effect.",
                    "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"],
                },
            },
            required=["key"],
        ),
    )


def _volumes() -> Object:
    claim = obj(
        "A PersistentVolumeClaim of the same namespace.",
        {"claimName": text("Its name.", LONGEST_NAME, minLength=1)},
        required=["claimName"],
    )
    host = obj(
        "A path of the node.",
        {
            "path": text("Where on the node.", minLength=1),
            "type": text("Kubernetes' type of a host path; left out: no check.", 32),
        },
        required=["path"],
    )
    name = text("By which volumeMounts finds it.", 63, minLength=1)
    properties = {"name": name, "persistentVolumeClaim": claim, "hostPath": host}
    item = obj("", properties, required=["name"])
    return _list("Volumes of all pods.", item, ("name",))


def _mounts() -> Object:
    properties = {
        "name": text("Of a volume in volumes.", 63, minLength=1),
        "mountPath": text("Where pods see it: an absolute path.", 1024, pattern="^/"),
        "subPath": text("A path in the volume, where not all of it is wanted.", 1024),
    }
    item = obj("", properties, required=["name", "mountPath"])
    return _list("Where all pods see the volumes.", item, ("mountPath",))


def _variables(about: str) -> Object:
    value = {"name": text("Of the variable.", LONGEST_NAME, minLength=1), "value": text("Its value.")}
    return _list(about, obj("", value, required=["name"]), ("name",))


def _template(name: str) -> Object:
    whose = {"pods": "all pods", "service": "the master's Service"}.get(name, f"pods of {name}")
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    pieces: Object = {
        "labels": _texts("Labels; those of the job itself stay."),
        "annotations": _texts("Annotations; those of the job itself stay."),
    }
    if name != "service":
        pieces |= {
            "affinity": {**loose, "description": "Kubernetes' affinity of a pod."},
            "tolerations": _list("Kubernetes' tolerations, as they are.", loose),
            "env": _list("Kubernetes' variables, also with valueFrom.", loose),
        }
    return obj(f"Added to {whose}.", pieces)


# ------------------------------------------------------------------------------------ the documents' spelling


def _documents() -> Iterator[tuple[tuple[str, ...], Object]]:
    whole = {"type": "integer", "format": "int32", "minimum": 0}
    kinds: Mapping[tuple[str, ...], Object] = {
        ("trainer", "resources"): {
            "type": "object",
            "properties": {kind: _quantities("As in workers.resources.") for kind in ("requests", "limits")},
        },
        ("VolumeMounts",): _mounts(),
        ("NodeSelector",): _texts(""),
        ("pserver",): {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        ("imagePullSecrets",): _list(
            "", {"type": "object", "properties": {"name": text("Of a Secret.", LONGEST_NAME)}}
        ),
        ("hostNetwork",): {"type": "boolean"},
        ("host_network",): {"type": "boolean"},
        ("trainer", "etcd-endpoint"): {"type": "string", "maxLength": LONGEST_TEXT},
        ("master", "etcd-endpoint"): {"type": "string", "maxLength": LONGEST_TEXT},
    }
    yield ("trainer",), obj("The spelling of PaddlePaddle EDL's documents; `workers` is ours.", {})
    yield ("trainer", "entrypoint"), text("The documents' spelling of jobCommand.")
    yield ("trainer", "workspace"), text("Where entrypoint runs, and where Python finds its modules.", 1024)
    for path, ours in MOVED.items():
        limit = {"maximum": MOST_WORKERS} if path[-1].endswith("-instance") else {}
        about = f"The documents' spelling of {'.'.join(ours)}."
        yield path, {**kinds.get(path, {**whole, **limit}), "description": about}
    yield (
        ("fault_tolerant",),
        {
            "type": "boolean",
            "description": "Of the documents. Every job survives the loss of workers, whatever it says.",
        },
    )
    for path, why in WITHOUT_EFFECT.items():
        yield path, {**kinds.get(path, whole), "description": f"Of the documents, without effect: {why}."}
