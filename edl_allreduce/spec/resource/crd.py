"""The CustomResourceDefinition: schema, rules, columns, subresources.

`python -m edl_allreduce.spec.resource` prints it, which is how manifests/crd/trainingjob.yaml is made.
"""

from __future__ import annotations

import copy
from typing import Final

from edl_allreduce.spec.resource.names import CRD_NAME, GROUP, KIND, PLURAL, VERSION, Object
from edl_allreduce.spec.resource.schema import spec_schema
from edl_allreduce.spec.resource.status import status_schema
from edl_allreduce.spec.validate import LONGEST_JOB_NAME

COMMAND: Final = "python -m edl_allreduce.spec.resource > manifests/crd/trainingjob.yaml"

NEVER: Final = ("model", "data", "elasticity", "output", "jobCommand", "distributionStrategy", "trainer")
"""Parts of spec that never change: the model that is half trained was trained with them."""
PAUSED: Final = ("image", "imagePullPolicy", "master", "volumes", "volumeMounts", "env", "logging")
"""Parts that pods are made of: they change only while the job has none."""
PODS_OF_WORKERS: Final = (
    "min",  # a flag of the master, which it reads once
    "image",
    "priority",
    "resources",
    "nodeSelector",
    "tolerations",
    "populateEnvNames",
    "serviceAccount",
    "threads",
)


def crd() -> Object:
    """The whole object, as it is applied."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME, "labels": {"app": "elasticdl"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": "trainingjob",
                "shortNames": ["tj"],
                "categories": ["all", "elasticdl"],
            },
            "versions": [_version()],
        },
    }


def _version() -> Object:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _schema()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.workers.replicas",
                "statusReplicasPath": ".status.workers.ready",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": _columns(),
    }


def _schema() -> Object:
    spec = copy.deepcopy(spec_schema())
    spec["x-kubernetes-validations"] = [*_sizes(), *_exclusions(), *_immutable()]
    spec["properties"]["workers"]["x-kubernetes-validations"] = _of_workers()
    spec["properties"]["volumes"]["items"]["x-kubernetes-validations"] = [
        rule(
            "has(self.persistentVolumeClaim) != has(self.hostPath)",
            "a volume is either a persistentVolumeClaim or a hostPath",
        )
    ]
    return {
        "type": "object",
        "description": "A training that shares the cluster: it has between min and max workers, as there is "
        "room, loses no step when they come and go, and outlives its master.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "description": KIND},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status_schema(),
        },
        "x-kubernetes-validations": [
            rule(
                f"self.metadata.name.size() <= {LONGEST_JOB_NAME}",
                f"pods are named after the job: its name has at most {LONGEST_JOB_NAME} characters",
            ),
            rule(
                "!self.metadata.name.contains('.')",
                "pods are named after the job: its name has no dots",
            ),
        ],
    }


def rule(condition: str, message: str, **more: str) -> Object:
    return {"rule": condition, "message": message, **more}


# ----------------------------------------------------------------------------------------------------- rules

_MAX = "(has(self.workers) && has(self.workers.max) ? self.workers.max : self.trainer.max__dash__instance)"
_MIN = (
    "(has(self.workers) && has(self.workers.min) ? self.workers.min : "
    "has(self.trainer) && has(self.trainer.min__dash__instance) ? self.trainer.min__dash__instance : 1)"
)
_HAS_MAX = "has(self.workers) && has(self.workers.max)"
_HAS_TRAINERS = "has(self.trainer) && has(self.trainer.max__dash__instance)"
_SIZED = f"({_HAS_MAX} || {_HAS_TRAINERS})"


def _of_workers() -> list[Object]:
    return [
        rule(
            "!has(self.min) || !has(self.max) || self.min <= self.max",
            "workers.min is more than workers.max",
        ),
    ]


def _sizes() -> list[Object]:
    return [
        rule(f"({_HAS_MAX}) != ({_HAS_TRAINERS})", "give workers.max (trainer.max-instance in older files)"),
        rule(
            "!has(self.trainer) || !has(self.trainer.min__dash__instance) || "
            "!has(self.trainer.max__dash__instance) || "
            "self.trainer.min__dash__instance <= self.trainer.max__dash__instance",
            "trainer.min-instance is more than trainer.max-instance",
        ),
        rule(
            f"!has(self.workers) || !has(self.workers.replicas) || !{_SIZED} || "
            f"(self.workers.replicas >= {_MIN} && self.workers.replicas <= {_MAX})",
            "workers.replicas must be between workers.min and workers.max; "
            "suspend: true stops a job for a while",
        ),
        rule(
            f"!has(self.training) || !has(self.training.batchWorkers) || !{_SIZED} || "
            f"(self.training.batchWorkers >= {_MIN} && self.training.batchWorkers <= {_MAX})",
            "training.batchWorkers must be between workers.min and workers.max",
        ),
    ]


def _exclusions() -> list[Object]:
    command = "(has(self.jobCommand) || has(self.trainer) && has(self.trainer.entrypoint))"
    return [
        rule(
            f"!({command} && has(self.model) && has(self.model.modelDef))",
            "a job runs jobCommand or trains model.modelDef: give one of them",
        ),
        rule(
            f"{command} || has(self.model) && has(self.model.modelDef)",
            "what to train? give model.modelDef (directory.file.custom_model) or jobCommand",
        ),
    ]


def _immutable() -> list[Object]:
    """A rule that names `oldSelf` holds for changes only."""
    same_batch = (
        "has(self.training.batchWorkers) || !has(self.workers) || !has(oldSelf.workers) || "
        f"({_unchanged('max', '.workers')})"
    )
    return [
        *(
            rule(_unchanged(name), f"{name} cannot be changed: what is trained so far was trained with it")
            for name in NEVER
        ),
        rule(
            " && ".join(f"({_unchanged(name, '.training')})" for name in _training()),
            "training cannot be changed: what is trained so far was trained with it",
        ),
        rule(
            "has(oldSelf.training.batchWorkers) ? has(self.training.batchWorkers) && "
            "self.training.batchWorkers == oldSelf.training.batchWorkers : "
            f"!has(self.training.batchWorkers) || !{_old(_SIZED)} || "
            f"self.training.batchWorkers == {_old(_MAX)}",
            "training.batchWorkers cannot be changed; where it was not given it can be set to the present "
            "workers.max",
        ),
        rule(
            same_batch,
            "workers.max decides the batch of a step; to change it, set training.batchWorkers to the present "
            "workers.max in the same change",
        ),
        *(
            rule(f"{_PAUSED} || {_unchanged(name)}", f"{name} can be changed only while suspend is true")
            for name in PAUSED
        ),
        *(
            rule(
                f"{_PAUSED} || !has(self.workers) || !has(oldSelf.workers) || "
                f"({_unchanged(name, '.workers')})",
                f"workers.{name} can be changed only while suspend is true",
            )
            for name in PODS_OF_WORKERS
        ),
        rule(_unchanged("managedBy"), "managedBy cannot be changed"),
    ]


_PAUSED = "(has(oldSelf.suspend) && oldSelf.suspend)"


def _unchanged(name: str, of: str = "") -> str:
    mine, old = f"self{of}.{name}", f"oldSelf{of}.{name}"
    return f"has({mine}) == has({old}) && (!has({mine}) || {mine} == {old})"


def _training() -> list[str]:
    return [name for name in spec_schema()["properties"]["training"]["properties"] if name != "batchWorkers"]


def _old(condition: str) -> str:
    return condition.replace("self.", "oldSelf.")


# --------------------------------------------------------------------------------------------------- columns


def _columns() -> list[Object]:
    return [
        _column("Phase", ".status.phase", "Where the job stands."),
        _column("Ready", ".status.workers.ready", "Workers that run.", "integer"),
        _column("Target", ".status.workers.target", "How many there should be now.", "integer"),
        _column("Min", ".spec.workers.min", "Fewest workers.", "integer"),
        _column("Max", ".spec.workers.max", "Most workers.", "integer"),
        _column("Progress %", ".status.trainerStatus.progressPercentage", "Steps made, of all.", "integer"),
        _column("ETA", ".status.plan.expectedEnd", "When it is expected to end."),
        _column("Goodput", ".status.goodput", "Share of its time in which steps were made that count."),
        _column("Age", ".metadata.creationTimestamp", "Since it was submitted.", "date"),
        {
            **_column("Starts", ".status.plan.expectedStart", "When one that waits is expected to begin."),
            "priority": 1,
        },
        {**_column("Plan", ".status.plan.reason", "Why it has so many workers."), "priority": 1},
    ]


def _column(name: str, path: str, about: str, kind: str = "string") -> Object:
    return {"name": name, "type": kind, "jsonPath": path, "description": about}


def text() -> str:
    """As it is kept in manifests/."""
    import yaml  # type: ignore[import-untyped]  # comes with the kubernetes client

    return f"# Written by `{COMMAND}`.\n" + str(yaml.safe_dump(crd(), sort_keys=False, width=110))
