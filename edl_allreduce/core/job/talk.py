"""How much one worker may have people told. What it says is written down, and it may say the same for ever.

Each has an allowance in letters of events, which comes back slowly. Whoever used it up is heard on in all
that the ring needs; what it has to report is not, until it was quiet for a while.
"""

from __future__ import annotations

from edl_allreduce.core import events
from edl_allreduce.core.job.inbox import Effect, Tell
from edl_allreduce.core.job.state import Allowance
from edl_allreduce.core.job.turn import Turn

MOST = 1_000_000.0
"""Letters: some ten thousand events at once."""
LETTERS_PER_SECOND = 4_000.0
"""That come back: dozens of events in every second, as of checkpoints after each step; 350 MB in a day."""
FINE = MOST / 4
"""For using it up: quiet for a minute, so that it is told of once in a while."""

WORDS = (
    events.Anomaly, events.CheckpointMissing, events.CheckpointWritten, events.ModelEvaluated, events.Noted,
    events.RecordsLeftOut, events.RingReformed, events.TrainingResumed, events.WorkerConnected,
    events.WorkerDrains, events.WorkerFailed, events.WorkerReady,
)  # fmt: skip
"""Events that a worker brings about with a word alone, as often as it likes."""


def left(turn: Turn, worker_id: int) -> float:
    """Letters; fewer than none after a long word."""
    known = turn.state.talk.get(worker_id)
    if known is None:
        return MOST
    return min(MOST, known.left + (turn.now - known.at) * LETTERS_PER_SECOND)


def is_spent(turn: Turn, worker_id: int) -> bool:
    """Whether what it reports is not heard for now."""
    return left(turn, worker_id) < 0


def charge(turn: Turn, worker_id: int) -> None:
    """For what it had people told in this turn, or keep it from them."""
    words = [effect.event for effect in turn.effects if isinstance(effect, Tell) and _is_word(effect)]
    if not words:
        return
    if is_spent(turn, worker_id):
        turn.effects = [effect for effect in turn.effects if not _is_word(effect)]
        return
    rest = left(turn, worker_id) - sum(len(event.text()) for event in words)
    if rest < 0:
        rest -= FINE
        said = "more reports than anybody reads: for a while they are left out"
        turn.tell(events.Anomaly(said, worker_id))
    turn.change(talk={**turn.state.talk, worker_id: Allowance(rest, turn.now)})


def _is_word(effect: Effect) -> bool:
    return isinstance(effect, Tell) and isinstance(effect.event, WORDS)
