"""Flags about what is told of a job: logs, its page, its report, records of what happened."""

# ruff: noqa: RUF009  flag() makes a dataclasses.field, which is what the rule asks for.

from __future__ import annotations

import dataclasses

from edl_allreduce.spec.choices import LogFormat, LogLevel
from edl_allreduce.spec.declare import TRAINING, Command, Group, flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogFlags:
    """A part of `JobSpec`."""

    log_level: LogLevel = flag(LogLevel.INFO, group=Group.LOGGING, help="The least level that is logged.")
    log_format: LogFormat = flag(
        LogFormat.TEXT,
        group=Group.LOGGING,
        help="What a line of a log is: text for people, or a JSON object for collectors of logs; with json "
        "no table is drawn.",
    )
    full_traceback: bool = flag(
        False,
        group=Group.LOGGING,
        help="When user code fails, show every frame, also those of TensorFlow and Keras. "
        "The worker's log always has them.",
    )
    log_file_path: str = flag(
        "", group=Group.LOGGING, metavar="FILE", help="Copy what is printed into this file, too."
    )
    log_loss_steps: int = flag(
        100,
        group=Group.LOGGING,
        metavar="STEPS",
        commands=TRAINING,
        minimum=1,
        help="Workers log 'Loss = ..., steps = ...' every so many steps.",
    )
    tensorboard_log_dir: str = flag(
        "", group=Group.LOGGING, metavar="DIR", help="Write loss, metrics and ring size for TensorBoard."
    )
    audit_dir: str = flag(
        "",
        group=Group.LOGGING,
        metavar="DIR",
        help="Each worker writes here which records it really used; `elasticdl audit` then proves that "
        "every record was used exactly once per epoch. Empty: no audit.",
    )

    dashboard_port: str = flag(
        "auto",
        group=Group.LOGGING,
        metavar="PORT",
        commands=frozenset(Command) - {Command.WORKER},
        help="Port of the job's page; `elasticdl dashboard` opens it. auto: any free one on this machine's "
        "loopback, 50002 in a pod. off: no page.",
    )
    report: str = flag(
        "",
        group=Group.LOGGING,
        metavar="FILE",
        commands=frozenset({Command.TRAIN, Command.EVALUATE, Command.PREDICT, Command.MASTER}),
        help="When the job is over, write its report here, too, as one HTML file; on Kubernetes a path on a "
        "--volume. A local job always has one in its directory; `elasticdl report` makes other forms of it.",
    )
