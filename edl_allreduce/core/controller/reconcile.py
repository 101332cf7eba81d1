"""One job: what there is, what should be, what is to be done about it. Pure; read it as a checklist.

The controller makes the job's master and keeps it; the master makes workers and keeps those. So a lost
worker is the master's affair, and a lost master the controller's: a new one finds the workers and takes over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from edl_allreduce.core.controller.facts import (
    Action,
    CleanUp,
    DeleteEnded,
    DeleteJob,
    DeleteMaster,
    DeleteWorkers,
    Known,
    MakeMaster,
    MakeService,
    Master,
    Post,
    Stage,
    Verdict,
)
from edl_allreduce.core.controller.mail import Orders, Progress
from edl_allreduce.core.deadlines import doubled
from edl_allreduce.core.job.lifecycle import Phase as JobPhase
from edl_allreduce.core.trainingjob import FINAL, Phase

OVERDUE: Final = 15.0
"""Seconds after its time for which a leaving master is waited for: then its node is gone. Clocks differ."""
MOST_CRASHES: Final = 5
"""Masters in a row that may crash without a word before the job is given up."""
FIRST_DELAY: Final = 5.0
LONGEST_DELAY: Final = 300.0
"""Before the next master after one that crashed; doubled each time."""
JOB_ENDS: Final = frozenset({JobPhase.SUCCEEDED, JobPhase.STOPPED, JobPhase.FAILED})
ENDING: Final = JOB_ENDS | {JobPhase.FINISHING}
"""What a master tells of a job whose workers leave because there is nothing more to train."""
SUSPENDED: Final = "suspended"
"""Orders to stop begin with it when the job will go on later."""
TIME_IS_UP: Final = "activeDeadlineSeconds is over"


def reconcile(known: Known, now: float) -> Verdict:
    """`now`: seconds since 1970, as the API server's times are."""
    known = replace(known, told=replace(known.told, worked=_worked(known)))
    told = replace(known.told, progress=_latest(known), crashes=_crashes(known))
    known = replace(known, told=told, term=_term(known))
    return replace(_verdict(known, now), crashes=told.crashes, worked=told.worked)


def _verdict(known: Known, now: float) -> Verdict:
    told = known.told
    if told.phase in FINAL:
        return _after_the_end(known, now)
    outcome = _outcome(known, now)
    if outcome is not None:
        return outcome
    stop = _reason_to_stop(known, now)
    if stop:
        return _stop(known, stop, now)
    return _keep(known, now)


def _term(known: Known) -> int:
    """Of the next orders. A Lease that was deleted begins at 1 again; a master follows no earlier term."""
    held = known.master.orders if known.master is not None else None
    return max(known.term, held.term) if held is not None else known.term


def _latest(known: Known) -> Progress:
    """Of this master, else what was last told; numbers of workers are never used twice."""
    before = known.told.progress
    said = known.master.progress if known.master is not None else None
    if said is None:
        return before
    return replace(said, next_id=max(said.next_id, before.next_id))


def _worked(known: Known) -> str:
    """The uid of the master under which training went on last: if it crashes, that is the first in a row."""
    master, told = known.master, known.told
    said = master.progress if master is not None and master.stage is not Stage.COMING else None
    if master is None or said is None or not said.ring or said.step <= told.progress.step:
        return told.worked
    return master.uid


def _crashes(known: Known) -> int:
    master, before = known.master, known.told.crashes
    if master is None:
        return before
    worded = _latest(known).phase in JOB_ENDS
    crashed = master.stage is Stage.OVER and not master.disrupted and not worded
    if master.uid == known.told.worked:
        return int(crashed)
    return max(before, master.crashes + crashed)


def _carried(progress: Progress) -> Progress:
    """What the next master must know of the last one: not how that ended."""
    return replace(progress, phase="", reason="")


# -------------------------------------------------------------------------------------- after the end


def _after_the_end(known: Known, now: float) -> Verdict:
    told, wish = known.told, known.wish
    finished = told.finished if told.finished is not None else now
    actions: list[Action] = []
    over = known.master is not None and known.master.stage is Stage.OVER
    if wish.clean_up is not CleanUp.NONE:
        if known.workers.pods:
            actions.append(DeleteWorkers(known.workers.pods))
        if known.master is not None and not over and known.master.stage is not Stage.LEAVING:
            actions.append(DeleteMaster(known.master.uid))
    if wish.clean_up is CleanUp.ALL:
        actions.append(DeleteEnded())
    again = None
    if wish.ttl is not None:
        again = finished + wish.ttl
        if now >= again:
            actions.append(DeleteJob())
    return Verdict(
        told.phase, "", "", 0, tuple(actions), told.started, finished, progress=told.progress, again=again
    )


def _outcome(known: Known, now: float) -> Verdict | None:
    """Whether the job is over, from how its master ended. None: it goes on, perhaps with the next one.

    The last report of a master whose pod is gone counts, too. Not that it stopped: for what, its pod knew.
    """
    master, said = known.master, known.told.progress
    if master is not None and master.stage is not Stage.OVER:
        return None
    match said.phase:
        case JobPhase.SUCCEEDED:
            return _final(known, Phase.SUCCEEDED, "Succeeded", said.reason or "trained to its end", now)
        case JobPhase.FAILED:
            why = said.reason or "its master said that it failed"
            return _final(known, Phase.FAILED, "JobFailed", why, now)
        case JobPhase.STOPPED if master is not None:
            order = master.orders.stop if master.orders is not None else ""
            if order.startswith(TIME_IS_UP):
                return _final(known, Phase.FAILED, "DeadlineExceeded", order, now)
            if not order.startswith(SUSPENDED):
                return _final(known, Phase.STOPPED, "Stopped", said.reason or "somebody stopped it", now)
    if master is None:
        return None
    if said.phase not in JOB_ENDS and not master.disrupted and known.told.crashes >= MOST_CRASHES:
        words = f"{known.told.crashes} masters ended without a word; the last one {master.text}"
        return _final(known, Phase.FAILED, "MasterCrashed", words, now)
    return None


def _final(known: Known, phase: Phase, reason: str, message: str, now: float) -> Verdict:
    told = known.told
    return Verdict(phase, reason, message, 0, (), told.started, now, progress=told.progress, again=now)


# ------------------------------------------------------------------------------------------- stopping


def _reason_to_stop(known: Known, now: float) -> str:
    wish, told = known.wish, known.told
    if known.master is not None and known.master.orders is not None and known.master.orders.stop:
        return known.master.orders.stop  # a stop cannot be taken back; it goes on afterwards
    since = told.started if told.phase is not Phase.SUSPENDED else None
    if wish.active_deadline is not None and since is not None and now >= since + wish.active_deadline:
        return f"{TIME_IS_UP}: it was active for {wish.active_deadline:.0f} s"
    if wish.suspend:
        return f"{SUSPENDED} by its spec"
    decides = not wish.hands_off and wish.replicas is None
    if not decides or known.advice is None or known.advice.target:
        return ""
    begun = known.master is not None or known.workers.any
    can_go_on = wish.keeps_state or not known.workers.any
    return f"{SUSPENDED} by the autoscaler: {known.advice.reason}" if begun and can_go_on else ""


def _stop(known: Known, why: str, now: float) -> Verdict:
    """With a checkpoint if there is a directory for it: the master does it, so one is needed for that."""
    if why.startswith(TIME_IS_UP) and known.master is None and not known.workers.any:
        return _final(known, Phase.FAILED, "DeadlineExceeded", why, now)
    master = known.master
    orders = Orders(known.wish.minimum, (), why, known.term)
    if master is None:
        if not known.workers.any:
            return _resting(known, why)
        if not (known.workers.running or known.workers.coming):
            return _stopping(known, why, "its pods go", ())
        make = MakeMaster(orders, known.told.crashes, _carried(known.told.progress))
        return _stopping(known, why, "its master is made again to stop it", (make,))
    match master.stage:
        case Stage.OVER:
            if known.workers.any:  # first: without a master they would look like a job that lost it
                return _stopping(known, why, "its pods go", (DeleteWorkers(known.workers.pods),))
            # The others that are over, too: it may be resumed before it rests.
            return _stopping(known, why, "its pods go", (DeleteEnded(), DeleteMaster(master.uid)))
        case Stage.LEAVING:
            return _stopping(known, why, "its pods go", _forced(master, now), _overdue(master))
        case Stage.COMING if not known.workers.any:
            return _stopping(known, why, "nothing had begun", (DeleteMaster(master.uid),))
    if master.orders is None or master.orders.stop != why:
        return _stopping(known, why, "it stops at a step boundary", (Post(orders),))
    return _stopping(known, why, "it stops at a step boundary", ())


def _resting(known: Known, why: str) -> Verdict:
    message = why
    if not known.wish.keeps_state and known.told.progress.step:
        message += "; without output.checkpointDir it begins anew"
    # Pods that are over go, too: a queue that counts the members of a group would take them for members.
    progress = replace(known.told.progress, ring=0)
    return Verdict(Phase.SUSPENDED, "Suspended", message, 0, (DeleteEnded(),), None, progress=progress)


def _stopping(
    known: Known, why: str, what: str, actions: tuple[Action, ...], again: float | None = None
) -> Verdict:
    return Verdict(
        Phase.SCALING,
        "Stopping",
        f"{why}; {what}",
        0,
        actions,
        known.told.started,
        progress=known.told.progress,
        again=again,
    )


# -------------------------------------------------------------------------------------------- keeping


def _keep(known: Known, now: float) -> Verdict:
    target, why, leaving = _target(known)
    if target == 0 and known.master is None:
        return Verdict(
            Phase.SUSPENDED if known.told.phase is Phase.SUSPENDED else Phase.PENDING,
            "WaitsForRoom" if known.advice is not None else "NotPlanned",
            why,
            0,
            progress=known.told.progress,
        )
    target = min(max(target, known.wish.minimum), known.wish.maximum)
    orders = Orders(target, leaving, "", known.term)
    actions: tuple[Action, ...] = ()
    again, master = None, known.master
    text = ""
    if master is None:
        actions = (MakeMaster(orders, known.told.crashes, _carried(known.told.progress)),)
        text = "its master is made" if not known.workers.any else "its master was lost and is made again"
    elif master.stage is Stage.LEAVING:
        actions, again = _forced(master, now), _overdue(master)
        text = f"its master {master.text or 'leaves'}; the next one takes over"
    elif master.stage is Stage.OVER:
        actions, again, text = _replace(known, master, now)
    elif _differs(master.orders, orders):
        actions = (Post(orders),)
    if not known.has_service and master is not None and master.stage is not Stage.OVER:
        actions = (*actions, MakeService())
    phase, reason, message = _standing(known, target)
    started = known.told.started if known.told.started is not None else now
    if known.wish.active_deadline is not None:
        ends = started + known.wish.active_deadline
        again = ends if again is None else min(again, ends)
    return Verdict(
        phase,
        reason,
        text or message or why,
        target,
        actions,
        started,
        progress=known.told.progress,
        why=why,
        degraded=_degraded(known, target, text),
        again=again,
    )


def _target(known: Known) -> tuple[int, str, tuple[int, ...]]:
    wish, advice = known.wish, known.advice
    if wish.replicas is not None:
        bounds = "" if wish.minimum <= wish.replicas <= wish.maximum else ", within its bounds"
        return wish.replicas or wish.minimum, f"workers.replicas says {wish.replicas}{bounds}", ()
    if wish.hands_off:
        return wish.maximum, wish.hands_off, ()
    if advice is None:
        held = known.master.orders if known.master is not None else None
        if held is not None and held.workers:
            return held.workers, "not planned yet", held.leaving
        return (wish.minimum if known.workers.any else 0), "not planned yet", ()
    if advice.target == 0 and not wish.keeps_state and known.workers.any:
        return wish.minimum, f"{advice.reason}, but it could not go on later: no output.checkpointDir", ()
    return advice.target, advice.reason, advice.leaving


def _differs(held: Orders | None, wanted: Orders) -> bool:
    """Who should leave counts only when fewer are wanted; the term alone is no reason to write."""
    return held is None or held.workers != wanted.workers or held.stop != wanted.stop


def _replace(known: Known, master: Master, now: float) -> tuple[tuple[Action, ...], float | None, str]:
    """One that is over, while the job is not: its name must be free before the next one has it."""
    if master.disrupted or known.told.progress.phase == JobPhase.STOPPED:
        return (DeleteMaster(master.uid),), None, f"its master {master.text}; the next one takes over"
    again = master.until + doubled(FIRST_DELAY, max(0, known.told.crashes - 1), LONGEST_DELAY)
    text = f"its master {master.text}; it is made again"
    if now < again:
        return (), again, text
    return (DeleteMaster(master.uid),), None, text


def _forced(master: Master, now: float) -> tuple[Action, ...]:
    return (DeleteMaster(master.uid, force=True),) if now >= _overdue(master) else ()


def _overdue(master: Master) -> float:
    return master.until + OVERDUE


def _standing(known: Known, target: int) -> tuple[Phase, str, str]:
    master, workers, said = known.master, known.workers, known.told.progress
    if master is not None and master.progress is not None and master.progress.phase in ENDING:
        return Phase.RUNNING, "Finishing", "its last step is made; the result is written and its pods end"
    trains = bool(said.ring) and workers.running > 0
    if master is not None and master.stage is Stage.COMING and not workers.any:
        return Phase.PENDING, "MasterStarts", f"its master waits: {master.text}" if master.text else ""
    if not trains:
        waits = f": {workers.text}" if workers.text else ""
        return Phase.PENDING, "WorkersStart", f"{_run(known, target)}{waits}"
    if not workers.whole(target, known.wish.standby):
        waits = f"; one that is coming waits: {workers.text}" if workers.text else ""
        return Phase.SCALING, "WorkersChange", f"{_run(known, target)}{waits}"
    return Phase.RUNNING, "Training", ""


def _degraded(known: Known, target: int, master_text: str) -> str:
    master, workers = known.master, known.workers
    if master is not None and master.broken:
        return f"its master cannot start: {master.text}"
    if master_text and workers.any:
        return f"{master_text}; training goes on meanwhile"
    if workers.text and workers.running < target:
        return f"{_run(known, target)}: {workers.text}"
    return ""


def _run(known: Known, target: int) -> str:
    spare = known.wish.standby
    beside = f" ({spare} more stand{'s' if spare == 1 else ''} by)" if spare else ""
    return f"{known.workers.training(target, spare)} of {target} workers run{beside}"
