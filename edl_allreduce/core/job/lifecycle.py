"""The phases of a job, and the table of who may go where and why. Nothing else changes a phase."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """Of the whole job. The last three are final."""

    STARTING = "Starting"
    TRAINING = "Training"
    WORKING = "Working"
    """Workers pull tasks (evaluation, prediction)."""
    WAITING = "Waiting"
    FINISHING = "Finishing"
    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    FAILED = "Failed"


FINAL: Final = frozenset({Phase.SUCCEEDED, Phase.STOPPED, Phase.FAILED})

_CANNOT_GO_ON: Final = "it cannot go on"
_ASKED: Final = "somebody stopped it, and nobody holds a model that could be written; or killed it"

MOVES: Final[Mapping[tuple[Phase, Phase], str]] = {
    (Phase.STARTING, Phase.TRAINING): "the first ring is planned, or the ring of an earlier master is heard",
    (Phase.STARTING, Phase.WORKING): "the first worker is ready to pull tasks",
    (Phase.STARTING, Phase.FINISHING): "the ring of an earlier master trained its last step",
    (Phase.STARTING, Phase.SUCCEEDED): "the result was written for an earlier master",
    (Phase.STARTING, Phase.STOPPED): _ASKED,
    (Phase.STARTING, Phase.FAILED): _CANNOT_GO_ON,
    (Phase.TRAINING, Phase.WAITING): "nobody trains, and the next ring waits for something",
    (Phase.TRAINING, Phase.FINISHING): "every member of the ring trained the last step",
    (Phase.TRAINING, Phase.STOPPED): _ASKED,
    (Phase.TRAINING, Phase.FAILED): _CANNOT_GO_ON,
    (Phase.WAITING, Phase.TRAINING): "a ring is planned, or trains again",
    (Phase.WAITING, Phase.FINISHING): "those who are left had trained the last step",
    (Phase.WAITING, Phase.STOPPED): _ASKED,
    (Phase.WAITING, Phase.FAILED): _CANNOT_GO_ON,
    (Phase.WORKING, Phase.SUCCEEDED): "all tasks are done, and their result is written",
    (Phase.WORKING, Phase.STOPPED): _ASKED,
    (Phase.WORKING, Phase.FAILED): _CANNOT_GO_ON,
    (Phase.FINISHING, Phase.SUCCEEDED): "the result of the whole training is written",
    (Phase.FINISHING, Phase.STOPPED): "what was trained until it was stopped is written; or it was killed",
    (Phase.FINISHING, Phase.FAILED): "the result could not be written, or is not what was asked for",
}
"""From where, to where, why. What is not here cannot happen."""


def allowed(before: Phase, after: Phase) -> bool:
    """Whether a job may go from one phase to another; to stay is no move."""
    return (before, after) in MOVES
