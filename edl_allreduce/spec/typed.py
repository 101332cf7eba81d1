"""Flags that hold text with a syntax of its own, as typed parts: parsed once, read by everybody.

What checks a job, the manifests, the pre-flight and the workers read the same objects, so no rule is stated
twice; another way to describe a job (a custom resource) has these to print and to fill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar

from edl_allreduce.errors import UsageError
from edl_allreduce.spec.adaptation import parse_adaptation
from edl_allreduce.spec.params import (
    parse_class_name,
    parse_envs,
    parse_label_value,
    parse_moment,
    parse_node_selector,
    parse_page_port,
    parse_params,
    parse_pattern,
    parse_tolerations,
    parse_worker_priority,
    split_address,
    split_model_def,
)
from edl_allreduce.spec.resources import effective_limit, parse_resources
from edl_allreduce.spec.volumes import parse_volumes

if TYPE_CHECKING:
    from edl_allreduce.spec.job import JobSpec

T = TypeVar("T")


class TypedFlag(cached_property[T]):
    """One flag in typed form. Text that cannot be read raises a UsageError that names the flag."""

    def __init__(self, flag: str, parse: Callable[[str], T]) -> None:
        self.flag = flag

        def read(typed: TypedFlags) -> T:
            try:
                return parse(getattr(typed.spec, flag))
            except UsageError as error:
                raise UsageError(f"--{flag}: {error}") from error

        super().__init__(read)


def _if_given(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    return lambda text: parse(text) if text else None


@dataclass(frozen=True)
class Resources:
    """What a pod asks for and how much it may use: Kubernetes' names and quantities."""

    request: Mapping[str, str]
    limit: Mapping[str, str]


class TypedFlags:
    """The typed parts of one job. Each is parsed when it is first asked for, and kept."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec

    # Of the model and its data.
    model_def = TypedFlag("model_def", _if_given(split_model_def))
    model_params = TypedFlag("model_params", parse_params)
    data_reader_params = TypedFlag("data_reader_params", parse_params)
    aux_params = TypedFlag("aux_params", parse_params)
    dashboard_port = TypedFlag("dashboard_port", parse_page_port)
    # Of pods.
    master_resource_request = TypedFlag("master_resource_request", parse_resources)
    master_resource_limit = TypedFlag("master_resource_limit", parse_resources)
    worker_resource_request = TypedFlag("worker_resource_request", parse_resources)
    worker_resource_limit = TypedFlag("worker_resource_limit", parse_resources)
    master_priority = TypedFlag("master_pod_priority", parse_class_name)
    worker_priority = TypedFlag("worker_pod_priority", parse_worker_priority)
    worker_tolerations = TypedFlag("worker_tolerations", parse_tolerations)
    worker_node_selector = TypedFlag("worker_node_selector", parse_node_selector)
    volumes = TypedFlag("volume", parse_volumes)
    envs = TypedFlag("envs", parse_envs)
    populated = TypedFlag("populate_env_names", _if_given(parse_pattern))
    adaptation = TypedFlag("cluster_spec_json", parse_adaptation)
    # Of a shared cluster.
    deadline = TypedFlag("deadline", _if_given(parse_moment))
    queue = TypedFlag("queue_name", parse_label_value)
    # By hand.
    master_addr = TypedFlag("master_addr", _if_given(split_address))

    @property
    def model(self) -> tuple[PurePosixPath, str]:
        """File below the zoo and name in it, of a job that must have them."""
        if self.model_def is None:
            raise UsageError("--model_def is missing: which model?")
        return self.model_def

    @cached_property
    def master_resources(self) -> Resources:
        return self._resources("master", self.master_resource_request, self.master_resource_limit)

    @cached_property
    def worker_resources(self) -> Resources:
        return self._resources("worker", self.worker_resource_request, self.worker_resource_limit)

    def _resources(self, role: str, request: Mapping[str, str], limit: Mapping[str, str]) -> Resources:
        try:
            return Resources(request, effective_limit(request, limit))
        except UsageError as error:
            raise UsageError(f"--{role}_resource_limit: {error}.") from error


TYPED: Final[Mapping[str, str]] = {
    value.flag: name for name, value in vars(TypedFlags).items() if isinstance(value, TypedFlag)
}
"""Which part a flag's text becomes, by the name of the flag."""


def problem_of(typed: TypedFlags, name: str) -> str:
    """What is wrong with a part; empty when it can be read."""
    try:
        _: Any = getattr(typed, name)
    except UsageError as error:
        return str(error)
    return ""
