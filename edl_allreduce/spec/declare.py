"""How a flag is declared: its default, and everything that help and checks need, in one place."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Final, TypeVar

T = TypeVar("T")

_KEY: Final = "flag"


class Command(enum.StrEnum):
    """Who reads the flags. The first three are typed by people, the last two are started by hand or by us."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    PREDICT = "predict"
    MASTER = "master"
    WORKER = "worker"


class Group(enum.StrEnum):
    """A heading of `--help`, in the order in which a newcomer meets the questions."""

    JOB = "job"
    MODEL = "model"
    DATA = "data"
    TRAINING = "training"
    ELASTICITY = "elasticity"
    OUTPUT = "checkpoints and results"
    LOGGING = "logs and records of what happened"
    CLUSTER = "on Kubernetes (with --image_name)"
    SHARING = "sharing a cluster with others (with its TrainingJob controller)"
    BY_HAND = "started by hand"


EVERYWHERE: Final = frozenset(Command)
TRAINING: Final = frozenset({Command.TRAIN, Command.MASTER, Command.WORKER})
PROCESSES: Final = frozenset({Command.MASTER, Command.WORKER})
SUBMITTING: Final = frozenset({Command.TRAIN, Command.EVALUATE, Command.PREDICT})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """What is known about one flag besides its name, type and default."""

    help: str
    group: Group
    commands: frozenset[Command]
    metavar: str
    minimum: float | None
    default_for: Mapping[Command, object]


def flag(
    default: T,
    *,
    help: str,
    group: Group,
    metavar: str = "",
    commands: frozenset[Command] = EVERYWHERE,
    minimum: float | None = None,
    default_for: Mapping[Command, T] | None = None,
) -> T:
    """Declare a field of the job together with its flag. `metavar` names the unit where there is one."""
    info = Flag(
        help=help,
        group=group,
        commands=commands,
        metavar=metavar,
        minimum=minimum,
        default_for=dict(default_for or {}),
    )
    return dataclasses.field(default=default, metadata={_KEY: info})


def flag_of(field: dataclasses.Field[Any]) -> Flag:
    """The declaration behind a field."""
    info = field.metadata[_KEY]
    assert isinstance(info, Flag)
    return info


def flags_of(kind: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    """All fields of a dataclass of flags, heading by heading, whichever of its bases declares them."""
    headings = list(Group)
    return tuple(sorted(dataclasses.fields(kind), key=lambda field: headings.index(flag_of(field).group)))
