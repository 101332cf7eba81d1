"""From the last step to the end: who writes the result, and what became of the job."""

from __future__ import annotations

from dataclasses import replace

from edl_allreduce.core import events, protocol
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import JobState
from edl_allreduce.core.job.turn import Turn
from edl_allreduce.core.membership import types as membership


def finish(turn: Turn, uids: tuple[str, ...], step: int) -> None:
    """Training is complete, or stopped at a boundary: these hold the final model."""
    if not turn.move(Phase.FINISHING):
        return
    progress = turn.state.progress
    place = replace(progress.place, step=step)  # a new master heard of no step before
    turn.progress(place=place, trained=progress.trained.turn(False, turn.now))
    turn.tell(events.TrainingFinished(step, bool(turn.state.stopping)))
    turn.ending(finishers=uids)
    export_next(turn)


def export_next(turn: Turn) -> None:
    """Let somebody write the result who holds the model and can hear of it."""
    finishers = turn.state.ending.finishers
    here = next((uid for uid in finishers if uid in turn.state.peers), None)
    if here is not None:
        left = tuple(uid for uid in finishers if uid != here)
        turn.ending(exporter=here, finishers=left, asked=turn.state.ending.asked | {here})
        turn.send(here, protocol.Export())
    elif finishers:
        turn.ending(exporter="", exporter_left=turn.now)  # they may come back
    else:
        turn.end(Phase.FAILED, "every worker that had the final model was lost before it was written")


def returned(turn: Turn, uid: str) -> None:
    """A worker came back; the order to write the result may have been lost with its last connection."""
    if turn.state.phase is not Phase.FINISHING:
        return
    exporter = turn.state.ending.exporter
    if uid == exporter:
        turn.send(uid, protocol.Export())
    elif not exporter:
        export_next(turn)


def lost(turn: Turn, uid: str) -> None:
    """A worker is gone while the result is written."""
    ending = turn.state.ending
    turn.ending(finishers=tuple(other for other in ending.finishers if other != uid))
    if uid and uid == ending.exporter:
        export_next(turn)


def watch(turn: Turn) -> None:
    """Nobody waits for ever for a worker that lost its connection with the result in its hands."""
    state = turn.state
    ending = state.ending
    if state.phase is not Phase.FINISHING or ending.exporter in state.peers:
        return
    others = any(uid in state.peers for uid in ending.finishers)
    if turn.now - ending.exporter_left <= (state.options.deadlines.silent if others else patience(turn)):
        return
    if others and ending.exporter:
        turn.ending(finishers=(*ending.finishers, ending.exporter))  # it may come back
    elif not others:
        turn.ending(finishers=())
    export_next(turn)


def patience(turn: Turn) -> float:
    """How long those are waited for who hold the only model."""
    options = turn.state.options
    return membership.patience(options.deadlines, options.master_grace)


def may_export(state: JobState, uid: str) -> bool:
    """Those who were asked, even if lost since, or are next; or whom an earlier master may have asked."""
    if uid in state.ending.asked or uid in state.ending.finishers:
        return True
    took_over = state.phase is Phase.STARTING and state.options.recover_until > 0
    return took_over or state.peers[uid].hello.done


def exported(turn: Turn, path: str, error: str) -> None:
    """Somebody wrote the result, or could not."""
    state = turn.state
    account, step = state.account, state.progress.place.step
    turn.ending(path=path)
    mismatch = "" if state.stopping else account.mismatch
    missing = "; ".join(filter(None, (error, account.shortfall, mismatch)))
    remarks = f"; {account.remarks}" if account.remarks else ""
    if missing:
        turn.end(Phase.FAILED, f"trained for {step} steps, but {missing}{remarks}")
    elif state.stopping:
        turn.end(Phase.STOPPED, f"{state.stopping}{remarks}")
    else:
        turn.end(Phase.SUCCEEDED, f"{step} steps{remarks}")
