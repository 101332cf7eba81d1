"""Keeping as many workers as are wanted: slots, ids, relaunch, head start, scaling, refusals, evictions."""

from __future__ import annotations

from edl_allreduce.core import events, protocol, relaunch
from edl_allreduce.core.causes import FREE, Cause
from edl_allreduce.core.job import finishing, queue, ring, timing
from edl_allreduce.core.job.inbox import (
    Adopt,
    Ended,
    HangUp,
    Kill,
    Launch,
    LaunchFailed,
    LogRead,
    ReadLog,
    Terminate,
)
from edl_allreduce.core.job.lifecycle import FINAL, Phase
from edl_allreduce.core.job.state import JobState, Queue, Ring, Slot
from edl_allreduce.core.job.turn import Turn, line
from edl_allreduce.core.membership import types as membership

SPOILED = (Cause.INVALID, Cause.CORRUPT, Cause.DOUBTED)
"""What such a worker holds is not worth a checkpoint."""

MOST_WORKERS = 4096
"""Who asks for more made a mistake, and each would be a process or a pod."""

# ------------------------------------------------------------------------------------------------- work


def work(turn: Turn, event: membership.Event) -> None:
    """Let the job's work know, and do what it wants."""
    if turn.over:
        return
    actions: tuple[membership.Action, ...]
    match turn.state.work:
        case Ring() as trained:
            if ring.note(turn, trained, event):
                return
            actions = ring.handle(turn, trained, event)
        case Queue() as pulled:
            actions = queue.handle(turn, pulled, event)
    for action in actions:
        match action, turn.state.work:
            case membership.Evict(uid, reason, cause), _:
                _turn_out(turn, uid, cause, reason)
            case membership.Anomaly(uid, text), _:
                turn.tell(events.Anomaly(text, turn.state.ids.get(uid, events.NOBODY)))
            case _, Ring() as trained:
                ring.perform(turn, trained, action)
    if isinstance(turn.state.work, Ring) and not turn.over:
        ring.settle(turn, turn.state.work)


def evict(turn: Turn, *gone: tuple[str, Cause, str]) -> None:
    """End workers of which the work does not know yet that they have to go: uid, cause, reason of each."""
    lost = [membership.Lost(uid, why) for uid, cause, why in gone if _turn_out(turn, uid, cause, why)]
    if lost:
        work(turn, membership.LostTogether(tuple(lost)))


def _turn_out(turn: Turn, uid: str, cause: Cause, reason: str) -> bool:
    """It has no part in the job any more: told so, hung up on, and ended, whether it hears of it or not."""
    state = turn.state
    if uid in state.gone:
        return False
    turn.change(gone=state.gone | {uid})
    worker_id = state.ids.get(uid, events.NOBODY)
    tell_of_start(turn, worker_id, events.WorkerEvicted(worker_id, cause.value, reason))
    peer = state.peers.get(uid)
    if peer is not None:
        turn.send(uid, protocol.Evicted(reason, keeps=cause not in SPOILED))
        turn.do(HangUp(peer.link))
    if worker_id in state.slots:
        turn.slot(worker_id, evicted=cause)
        if cause is Cause.INVALID:
            turn.slot(worker_id, accepted=False, refusal=reason)
        _end(turn, worker_id, keeps=peer is not None and peer.held_model and cause not in SPOILED)
    return True


def _end(turn: Turn, worker_id: int, *, keeps: bool) -> None:
    """`keeps`: it was told that its ring is no more, and gets time to write a checkpoint of what it has."""
    if keeps:
        turn.slot(worker_id, kill_at=turn.now + turn.state.options.deadlines.failure_detection)
        turn.do(Terminate(worker_id))
    else:
        turn.do(Kill(worker_id))


def kill_overdue(turn: Turn) -> None:
    """Whoever was turned out and is still there is frozen or stuck."""
    for worker_id, slot in turn.state.slots.items():
        if slot.kill_at is not None and turn.now >= slot.kill_at:
            turn.slot(worker_id, kill_at=None)
            turn.do(Kill(worker_id))


def give_up_unheard(turn: Turn) -> None:
    """A worker of an earlier master that lives and never reports would take its place for ever."""
    deadlines = turn.state.options.deadlines
    for worker_id in sorted(unheard(turn.state)):
        slot = turn.state.slots[worker_id]
        if slot.evicted or turn.now <= slot.launched + deadlines.rejoin + deadlines.reunion:
            continue
        turn.slot(worker_id, evicted=Cause.SILENT)
        why = "lives, but was not heard after the master's restart"
        turn.tell(events.WorkerEvicted(worker_id, Cause.SILENT.value, why))
        turn.do(Kill(worker_id))


# --------------------------------------------------------------------------------------------- starting


def reconcile(turn: Turn) -> None:
    """Start what is missing."""
    state = turn.state
    if turn.over or state.phase is Phase.FINISHING or state.stopping or state.failing:
        return
    keeping = state.keeping
    if turn.now < keeping.launch_after:
        return
    active = [slot for slot in state.slots.values() if not slot.draining]
    missing = state.launched - len(active)
    vacant = keeping.vacant[-missing:] if missing > 0 else ()
    if keeping.refusals:  # one after the other, until one takes part
        missing = min(missing, 1) if all(slot.accepted for slot in active) else 0
    if not state.options.relaunch:
        missing = min(missing, keeping.launches_left)
        turn.keeping(launches_left=keeping.launches_left - max(0, missing))
    for _ in range(missing):
        worker_id = turn.state.keeping.next_id
        turn.keeping(next_id=worker_id + 1)
        turn.change(slots={**turn.state.slots, worker_id: Slot(turn.now)})
        timing.launched(turn, worker_id)
        replaces, vacant = (vacant[0].value if vacant else ""), vacant[1:]
        tell_of_start(turn, worker_id, events.WorkerLaunched(worker_id, replaces))
        turn.do(Launch(worker_id))
    turn.keeping(vacant=vacant)


def launch_in(turn: Turn, seconds: float) -> None:
    turn.keeping(launch_after=max(turn.state.keeping.launch_after, turn.now + seconds))
    reconcile(turn)


def scale(turn: Turn, count: int, leaving: tuple[int, ...] = ()) -> None:
    """Change the number of workers; surplus ones drain (`leaving`, then the youngest), missing ones start."""
    turn.tell(events.JobScaled(turn.state.wanted, count))
    turn.change(wanted=count)
    active = [i for i, slot in turn.state.slots.items() if not slot.draining]
    surplus = _surplus(turn.state, sorted(active, key=lambda i: (i in leaving, i)))
    # Somebody may have mended what was in the way of newcomers.
    turn.keeping(launch_after=0.0, launches_left=max(0, turn.state.launched - len(active)))
    work(turn, membership.Wanted(count))
    for worker_id in surplus:
        if worker_id in turn.state.slots:
            _ask_to_leave(turn, worker_id)
    reconcile(turn)


def _surplus(state: JobState, active: list[int]) -> list[int]:
    """Those whom a smaller job does without, of workers in the order in which they stay. Who is in the ring
    cannot stand by, so where others do the ring gives up its own."""
    if not state.options.standby:
        return active[state.wanted :]
    members = ring.members_of(state)
    seated = {m.seat.worker_id for m in members.alive()} if members is not None else set()
    inside = [i for i in active if i in seated]
    outside = [i for i in active if i not in seated]
    room = state.launched - min(state.wanted, len(inside))
    return inside[state.wanted :] + outside[room:]


def drain(turn: Turn, worker_id: int) -> None:
    """Let one worker go; the job wants as many as before, so another one takes its place."""
    _ask_to_leave(turn, worker_id)
    launch_in(turn, turn.state.options.head_start)


def _ask_to_leave(turn: Turn, worker_id: int) -> None:
    leaves(turn, worker_id)
    uid = _uid_of(turn.state, worker_id)
    if uid:
        turn.send(uid, protocol.Drain())
    else:
        turn.do(Terminate(worker_id))


def leaves(turn: Turn, worker_id: int) -> None:
    """It was asked to leave, or says that it does: from now on its place is another one's."""
    slot = turn.state.slots.get(worker_id)
    if slot is not None and not slot.draining:
        turn.slot(worker_id, draining=True)
        turn.keeping(vacant=(*turn.state.keeping.vacant, Cause.DRAINED))


def _uid_of(state: JobState, worker_id: int) -> str:
    """Empty when it has no connection."""
    return next((uid for uid, peer in state.peers.items() if peer.worker_id == worker_id), "")


def adopt(turn: Turn, found: Adopt) -> None:
    """Take over the workers of an earlier master of this job."""
    running = frozenset(found.running)
    slots = {i: Slot(turn.now, accepted=i in running, proved=i in running) for i in found.living}
    next_id = max(turn.state.keeping.next_id, found.next_id)
    turn.change(slots={**turn.state.slots, **slots}, wanted=found.wanted)
    for worker_id in found.living:
        timing.launched(turn, worker_id)
    turn.keeping(next_id=next_id, launches_left=max(0, turn.state.launched - next_id))
    work(turn, membership.Wanted(found.wanted))
    work(turn, membership.Unheard(running))


def tell_of_start(turn: Turn, worker_id: int, event: events.Event) -> None:
    """While newcomers cannot begin, each try is the same story: the log has it, people need it once."""
    slot = turn.state.slots.get(worker_id)
    quiet = turn.state.keeping.refusals > 0 and slot is not None and not slot.accepted
    turn.tell(event, quiet=quiet)


def proved(turn: Turn, worker_id: int) -> None:
    """A newcomer trains along, so whatever was in the way of newcomers is gone."""
    slot = turn.state.slots.get(worker_id)
    if slot is None or slot.proved:
        return
    turn.slot(worker_id, proved=True)
    forgive_refusals(turn, worker_id)


def forgive_refusals(turn: Turn, worker_id: int) -> None:
    """This newcomer came as far as it should: it trains along, or is ready and stands by."""
    slot, keeping = turn.state.slots.get(worker_id), turn.state.keeping
    if slot is not None and keeping.refusals and slot.launched > keeping.refused_at:
        turn.tell(events.NewcomersBegin(worker_id))
        turn.keeping(refusals=0, short="", told_short=frozenset())
        reconcile(turn)


# ------------------------------------------------------------------------------------------------- ends


def launch_failed(turn: Turn, failed: LaunchFailed) -> None:
    """Whoever never started never ends: nobody must wait for it."""
    cause = Cause.INVALID if failed.certain else Cause.CRASHED
    ended(turn, Ended(failed.worker_id, cause, f"could not be started: {failed.text}"))


def ended(turn: Turn, end: Ended) -> None:
    """A worker of the cluster is over: what becomes of its place?"""
    slot = turn.without_slot(end.worker_id)
    if slot is None or turn.over:
        return
    if turn.state.phase is Phase.FINISHING:
        finishing.lost(turn, slot.uid)
        return
    cause, text = _cause(turn.state, slot, end)
    if not slot.draining:
        turn.keeping(vacant=(*turn.state.keeping.vacant, cause))
    if uid := slot.uid or ring.expected(turn.state, end.worker_id):
        turn.change(gone=turn.state.gone | {uid})
        work(turn, membership.Lost(uid, text))
    if not slot.uid:
        work(turn, membership.Unheard(unheard(turn.state)))
    if turn.over:
        return
    worker = relaunch.Worker(cause, slot.accepted, _count_repeats(turn, slot))
    around = _around(turn.state, slot)
    decision = relaunch.decide(worker, around)
    exited = events.WorkerExited(end.worker_id, cause.value, text)
    if relaunch.is_refusal(worker, around):
        if not turn.state.keeping.refusals:
            turn.tell(exited)
        _could_not_begin(turn, end, slot, text, decision)
        return
    turn.tell(exited)
    if cause not in FREE:
        turn.keeping(failures=turn.state.keeping.failures + 1)
    match decision:
        case relaunch.GiveUp(reason):
            _give_up(turn, end, slot, f"worker {end.worker_id} {text}; {reason}.")
        case relaunch.Relaunch(delay, reason):
            if delay:
                turn.tell(events.RelaunchDelayed(end.worker_id, delay, reason))
            launch_in(turn, max(delay, turn.state.options.head_start))
        case relaunch.Unreplaced(reason):
            turn.tell(events.WorkerNotReplaced(end.worker_id, reason))


def _cause(state: JobState, slot: Slot, end: Ended) -> tuple[Cause, str]:
    """The cluster knows how a worker ended, the master knows why."""
    if slot.evicted is not None:
        return slot.evicted, "was evicted"
    if end.cause is Cause.FINISHED:
        if slot.draining or state.stopping:
            return Cause.DRAINED, "drained and left"
        return Cause.CRASHED, f"{end.text} before the job was over"
    if end.cause is Cause.INVALID and slot.accepted:
        return end.cause, "could not go on"
    return end.cause, end.text


def _around(state: JobState, gone: Slot) -> relaunch.Around:
    ready = sum(peer.course is not None for uid, peer in state.peers.items() if uid != gone.uid)
    return relaunch.Around(
        running=sum(not slot.draining for slot in state.slots.values()),
        wanted=state.launched,
        healthy=ready + len(unheard(state)),
        begun=state.course is not None,
        failures=state.keeping.failures,
        budget=state.options.crash_budget,
        refusals=state.keeping.refusals,
        minimum=state.options.min_workers,
        replaces=state.options.relaunch,
    )


def _count_repeats(turn: Turn, slot: Slot) -> int:
    place = slot.failed.place if slot.failed is not None else ""
    if not place:
        return 0
    before = turn.state.keeping.repeats.get(place, 0)
    turn.keeping(repeats={**turn.state.keeping.repeats, place: before + 1})
    return before


def _could_not_begin(turn: Turn, end: Ended, slot: Slot, text: str, decision: relaunch.Decision) -> None:
    """The others train on. A reason is told once, however often newcomers fail for it."""
    why = line(slot.failed.summary) if slot.failed is not None else slot.refusal
    reason = f"{text}: {why}" if slot.failed is not None else why or text
    short = f"worker {end.worker_id} {reason}"
    turn.keeping(refusals=turn.state.keeping.refusals + 1, refused_at=turn.now, short=short)
    match decision:
        case relaunch.GiveUp(verdict):
            last = turn.state.checkpoint
            known = f" Last word on checkpoints: step {last.step} is in {last.path}." if last else ""
            _give_up(turn, end, slot, f"{short}; {verdict}.{known}")
        case relaunch.Relaunch(delay, circumstances):
            if reason not in turn.state.keeping.told_short:
                turn.keeping(told_short=turn.state.keeping.told_short | {reason})
                turn.tell(events.WorkersShort(end.worker_id, reason, circumstances, delay))
            launch_in(turn, max(delay, turn.state.options.head_start))
        case relaunch.Unreplaced(reason):
            turn.tell(events.WorkerNotReplaced(end.worker_id, reason))
        case relaunch.Leave():
            turn.keeping(short="")


# ------------------------------------------------------------------------------------------- giving up


def _give_up(turn: Turn, end: Ended, slot: Slot, reason: str) -> None:
    """The job fails, with what the worker's code raised, or else with the end of its log."""
    if slot.refusal or slot.failed is not None:
        turn.end(Phase.FAILED, reason + _below(slot.failed.story if slot.failed and not slot.refusal else ""))
    elif not turn.state.failing:
        turn.change(failing=reason)
        turn.do(ReadLog(end.worker_id))


def log_read(turn: Turn, read: LogRead) -> None:
    if turn.state.failing:
        turn.end(Phase.FAILED, turn.state.failing + _below(read.text))


def _below(story: str) -> str:
    """On lines of its own."""
    told = story.strip("\n").rstrip()
    return f"\n{told}" if told else ""


# ----------------------------------------------------------------------------------------------- queries


def unheard(state: JobState) -> frozenset[int]:
    """Workers of an earlier master that ran when this one took over, and have not reported."""
    return frozenset(i for i, slot in state.slots.items() if slot.proved and not slot.uid)


def refusal_to_scale(state: JobState, count: int) -> str:
    """Why the number of workers cannot be changed to this; empty when it can."""
    if state.phase in FINAL or state.phase is Phase.FINISHING or state.stopping:
        return f"the job cannot be scaled: it is {state.phase.value.lower()}"
    if state.options.num_workers == 0:
        return (
            "this master starts no workers (--num_workers=0): start more of them yourself, "
            "and end one with SIGTERM or Ctrl-C"
        )
    if count > MOST_WORKERS:
        return f"--num_workers={count}: a job has at most {MOST_WORKERS}"
    if count < max(1, state.options.min_workers):
        return f"--num_workers={count}: the job needs at least {state.options.min_workers}"
    return ""


def refusal_to_drain(state: JobState, worker_id: int) -> str:
    """Why this worker cannot be asked to leave; empty when it can."""
    if state.phase in FINAL or state.phase is Phase.FINISHING or state.stopping:
        return f"no worker can be drained: the job is {state.phase.value.lower()}"
    slot = state.slots.get(worker_id)
    if slot is None and not _uid_of(state, worker_id):
        return f"there is no worker {worker_id}"
    if slot is not None and slot.draining:
        return f"worker {worker_id} was asked to leave already"
    return ""


def shortage(state: JobState, now: float) -> str:
    """For people: how many of the wanted workers take part, and what is in the way of the others."""
    keeping = state.keeping
    present = sum(peer.course is not None for peer in state.peers.values())
    if not keeping.short or state.phase in FINAL or present >= state.wanted:
        return ""
    seconds = max(0.0, keeping.launch_after - now)
    following = f"next try in {seconds:.0f} s" if seconds else "the next one is being tried"
    if not state.options.relaunch:
        following = "it is not replaced"
    return f"{present} of {state.wanted} workers: {keeping.short}; {following}"
