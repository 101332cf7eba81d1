"""Flags that old scripts still pass: known, answered by a one-line notice, and never a reason to stop.

Two kinds: flags of parameter servers, which an allreduce job has no use for, and flags that later versions of
ElasticDL dropped or renamed. Those that still have a meaning are translated into the flag of today.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Final

Raw = Mapping[str, str]


class Kind(enum.Enum):
    """Why a flag has no field in the job."""

    PARAMETER_SERVER = "parameter servers"
    RETIRED = "retired"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LegacyFlag:
    """A flag without a field in the job.

    `instead` completes the notice. `quiet` are values that ask for what happens anyway: they get no notice.
    `translate` gives today's flags for a value, in today's syntax; it also sees the other flags given.
    """

    name: str
    kind: Kind
    instead: str
    boolean_default: bool | None = None
    quiet: frozenset[str] = frozenset()
    translate: Callable[[str, Raw], dict[str, str]] | None = None


def _model_file(value: str, _: Raw) -> dict[str, str]:
    path = PurePath(value)
    return {"model_zoo": str(path.parent), "model_def": f"{path.stem}.custom_model"}


def _records_per_task(value: str, raw: Raw) -> dict[str, str]:
    try:
        records, minibatch = int(value), int(raw.get("minibatch_size", "64"))
    except ValueError:
        # Let the translated flag's own check speak: it names the value and what is allowed.
        return {"num_minibatches_per_task": value}
    return {"num_minibatches_per_task": str(math.ceil(records / minibatch) if minibatch > 0 else records)}


def _renamed(name: str) -> Callable[[str, Raw], dict[str, str]]:
    return lambda value, _: {name: value}


def _ps(name: str, *quiet: str, instead: str = "", boolean_default: bool | None = None) -> LegacyFlag:
    return LegacyFlag(
        name=name,
        kind=Kind.PARAMETER_SERVER,
        instead=instead or "there are no parameter servers; workers average gradients by allreduce",
        boolean_default=boolean_default,
        quiet=frozenset(quiet),
    )


def _retired(
    name: str,
    instead: str,
    *quiet: str,
    boolean_default: bool | None = None,
    translate: Callable[[str, Raw], dict[str, str]] | None = None,
) -> LegacyFlag:
    return LegacyFlag(
        name=name,
        kind=Kind.RETIRED,
        instead=instead,
        boolean_default=boolean_default,
        quiet=frozenset(quiet),
        translate=translate,
    )


_WAIT = "a synchronous step always waits for every worker of the ring"
_DOCKER = "images are built by `elasticdl zoo build` with the container tool's own settings"

LEGACY: Final[Mapping[str, LegacyFlag]] = {
    legacy.name: legacy
    for legacy in (
        # Parameter servers.
        _ps("num_ps_pods", "0"),
        _ps("ps_resource_request", ""),
        _ps("ps_resource_limit", ""),
        _ps("ps_pod_priority", ""),
        _ps("ps_addrs", ""),
        _ps("ps_id"),
        _ps("use_go_ps", boolean_default=True),
        _ps("get_model_steps", "1", instead="workers hold the newest model after every step"),
        _ps("grads_to_wait", "1", instead=_WAIT),
        _ps("sync_version_tolerance", "0", instead=_WAIT),
        _ps("use_async", "false", instead=_WAIT, boolean_default=False),
        _ps("lr_staleness_modulation", "false", instead="no gradient is stale", boolean_default=False),
        _ps("relaunch_on_worker_failure", "0", "1", instead="see --max_worker_crashes"),
        # Switches of ElasticDL's master whose other position does not exist here.
        _retired(
            "need_elasticdl_job_service",
            "a job with --job_command runs that command, any other trains the model of --model_def",
            "true",
            boolean_default=False,
        ),
        _retired("need_task_manager", "the master always hands out work", "true", boolean_default=True),
        _retired(
            "need_pod_manager",
            "the master starts --num_workers workers; 0 with a master started by hand",
            "true",
            boolean_default=True,
        ),
        _retired("task_fault_tolerance", "work of a lost worker is never lost", "true", boolean_default=True),
        _retired(
            "relaunch_timeout_worker",
            "a silent worker is always replaced, see --failure_detection_seconds",
            "true",
            boolean_default=False,
        ),
        _retired(
            "need_tf_config",
            "TF_CONFIG is not written; workers learn their ring from the master",
            "false",
            boolean_default=False,
        ),
        _retired("job_type", "follows from which data is given"),
        # Renamed.
        _retired("model_file", "", translate=_model_file),
        _retired("training_data_dir", "", translate=_renamed("training_data")),
        _retired("evaluation_data_dir", "", translate=_renamed("validation_data")),
        _retired("dataset_fn", "", translate=_renamed("feed")),
        _retired("records_per_task", "", translate=_records_per_task),
        # Dropped.
        _retired("codec_type", "feed() of the model file receives the bytes of each record"),
        _retired("evaluation_start_delay_secs", "evaluation is counted in steps, see --evaluation_steps"),
        _retired("evaluation_throttle_secs", "evaluation is counted in steps, see --evaluation_steps"),
        _retired("restart_delay_secs", "a lost worker is replaced at once, a crashed one with back-off"),
        _retired("collective_communicator_service_name", "the master publishes the ring", ""),
        _retired("extra_pypi_index", "it is a flag of `elasticdl zoo init`", ""),
        _retired("image_base", "use `elasticdl zoo init --base_image=...` and --image_name", ""),
        _retired("docker_image_repository", "use `elasticdl zoo push` and --image_name", ""),
        _retired("docker_base_url", _DOCKER, ""),
        _retired("docker_tlscert", _DOCKER, ""),
        _retired("docker_tlskey", _DOCKER, ""),
    )
}

# Values of --distribution_strategy that stand for the one distributed strategy that there is.
PARAMETER_SERVER_STRATEGIES: Final = frozenset({"", "parameterserverstrategy"})
