"""What may stand in `status`, which the controller alone writes; names of progress are Kubeflow Trainer's."""

from __future__ import annotations

from typing import Any

from edl_allreduce.core.trainingjob import Condition, Phase
from edl_allreduce.spec.resource.names import Object
from edl_allreduce.spec.resource.schema import LONGEST_NAME, number, obj, text

LONGEST_MESSAGE = 32768
MOST_METRICS = 256


def status_schema() -> Object:
    return obj(
        "How the job is doing. Written by its controller.",
        {
            "phase": {
                "type": "string",
                "description": "In one word, for people; programs read conditions.",
                "enum": [phase.value for phase in Phase],
            },
            "observedGeneration": _whole("The metadata.generation of the spec that this status is about."),
            "selector": text("Label selector of the worker pods, for the scale subresource.", 1024),
            "startTime": _moment("When the job's first objects were made."),
            "completionTime": _moment("When the job ended."),
            "workers": obj(
                "Worker pods.",
                {
                    "ready": number("Those that run."),
                    "target": number("How many there should be now."),
                },
            ),
            "conditions": _conditions(),
            "trainerStatus": _trainer(),
            "plan": obj(
                "What the autoscaler means to do with this job.",
                {
                    "reason": text("Why it has the workers that it has, in one sentence.", LONGEST_MESSAGE),
                    "expectedStart": _moment("When a job that waits will begin, as far as can be told now."),
                    "expectedEnd": _moment("When it will end, as far as can be told now."),
                },
            ),
            "goodput": text("Share of the job's time in which steps were made that count.", 32),
        },
    )


def _trainer() -> Object:
    metric = obj("", {"name": text("Of the metric.", LONGEST_NAME), "value": text("A number as text.", 64)})
    return obj(
        "How far training is, as its master told it last.",
        {
            "progressPercentage": number("Steps that are made, in per cent of all.", maximum=100),
            "estimatedRemainingSeconds": _whole("Until the last step at the present speed. Unit: seconds."),
            "metrics": {
                "type": "array",
                "description": "The loss, and what the last evaluation measured.",
                "maxItems": MOST_METRICS,
                "x-kubernetes-list-type": "atomic",
                "items": {**metric, "required": ["name", "value"]},
            },
            "lastUpdatedTime": _moment("When the master told this."),
            "step": _whole("Steps that are made."),
            "totalSteps": _whole("Steps of the whole training."),
            "epoch": _whole("The pass over the data that is under way, counted from 1."),
            "recordsPerSecond": _whole("Speed of all workers together. Unit: records per second."),
        },
    )


def _conditions() -> Object:
    """Kubernetes' own fields of a condition."""
    item = obj(
        "",
        {
            "type": text(f"One of {', '.join(Condition)}.", 316),
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": text(
                "In one word.", 1024, minLength=1, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
            ),
            "message": text("In a sentence, with the cure where there is one.", LONGEST_MESSAGE),
            "lastTransitionTime": _moment("Since when the status is what it is."),
            "observedGeneration": _whole("The generation of the spec that it is about."),
        },
        required=["type", "status", "reason", "message", "lastTransitionTime"],
    )
    return {
        "type": "array",
        "description": "What holds and what does not, each with its reason: `kubectl wait` waits for them.",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": item,
    }


def _whole(about: str) -> Object:
    return {"type": "integer", "format": "int64", "description": about, "minimum": 0}


def _moment(about: str, **more: Any) -> Object:
    return {"type": "string", "format": "date-time", "description": about, **more}
