"""Where each flag stands in a TrainingJob.

One rule for most: `--training_data`, which `--help` shows under "data", is `spec.data.trainingData`. Those of
pods stand where people who know Kubernetes look for them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

from edl_allreduce.spec.declare import Group, flag_of, flags_of
from edl_allreduce.spec.job import JobSpec

FIELDS: Final[Mapping[str, dataclasses.Field[Any]]] = {f.name: f for f in flags_of(JobSpec)}

SECTIONS: Final[Mapping[Group, tuple[str, ...]]] = {
    Group.JOB: (),
    Group.MODEL: ("model",),
    Group.DATA: ("data",),
    Group.TRAINING: ("training",),
    Group.ELASTICITY: ("elasticity",),
    Group.OUTPUT: ("output",),
    Group.LOGGING: ("logging",),
    Group.SHARING: (),
}

# Plain values that do not stand where the rule would put them.
_ELSEWHERE: Final[Mapping[str, tuple[str, ...]]] = {
    "image_name": ("image",),
    "image_pull_policy": ("imagePullPolicy",),
    "worker_image": ("workers", "image"),
    "worker_pod_priority": ("workers", "priority"),
    "worker_service_account": ("workers", "serviceAccount"),
    "populate_env_names": ("workers", "populateEnvNames"),
    "threads_per_worker": ("workers", "threads"),
    "min_workers": ("workers", "min"),
    "master_pod_priority": ("master", "priority"),
    "restart_policy": ("master", "restartPolicy"),
    "service_account": ("master", "serviceAccount"),
    "port": ("master", "port"),
}

# What `shapes.py` writes and reads: two flags become one object, or a text becomes a list.
SHAPED: Final[Mapping[str, tuple[str, ...]]] = {
    "num_workers": ("workers", "max"),
    "max_workers": ("workers", "max"),
    "worker_resource_request": ("workers", "resources", "requests"),
    "worker_resource_limit": ("workers", "resources", "limits"),
    "worker_tolerations": ("workers", "tolerations"),
    "worker_node_selector": ("workers", "nodeSelector"),
    "master_resource_request": ("master", "resources", "requests"),
    "master_resource_limit": ("master", "resources", "limits"),
    "volume": ("volumes",),
    "envs": ("env",),
    "cluster_spec_json": ("templates",),
}

LEFT_OUT: Final[Mapping[str, str]] = {
    "job_name": "metadata.name",
    "namespace": "metadata.namespace",
    "queue_name": "a label: Kueue looks there",
    "detach": "of the command that submits",
    "job_dir": "of local jobs",
    "yaml": "of the command that submits",
    "follow": "of the command that submits",
    "force_use_kube_config_file": "of the command that submits",
    "no_controller": "of the command that submits",
    "cluster_spec": "Python code that runs where a job is submitted; a controller runs nobody's code",
    "bind": "of masters that are started by hand",
    "master_addr": "of workers",
    "worker_id": "of workers",
}
"""Flags that are no field of spec, and why."""


def _place(name: str) -> tuple[str, ...]:
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    first, *rest = name.split("_")
    return (*SECTIONS[flag_of(FIELDS[name]).group], first + "".join(word.capitalize() for word in rest))


PLAIN: Final[Mapping[str, tuple[str, ...]]] = {
    name: _place(name) for name in FIELDS if name not in LEFT_OUT and name not in SHAPED
}
"""Flags whose value is written as it is."""

_SHOWN: Final[Mapping[str, str]] = {
    **{name: ".".join(path) for name, path in (*PLAIN.items(), *SHAPED.items())},
    "job_name": "metadata.name",
    "namespace": "metadata.namespace",
}
_FLAG: Final = re.compile(r"--([a-z][a-z_]*[a-z])")


def in_words_of_the_resource(text: str) -> str:
    """A sentence about flags, as one about fields of spec."""
    return _FLAG.sub(lambda found: _SHOWN.get(found[1], found[0]), text)
