"""The one door: `handle` takes what happened and gives the next state and what is to be done."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from edl_allreduce.core import events, health, protocol, rendezvous
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.course import DIGEST, Course, differences
from edl_allreduce.core.health import Activity
from edl_allreduce.core.job import (
    admission,
    asleep,
    doubts,
    finishing,
    inheritance,
    keeping,
    pacing,
    queue,
    ring,
    talk,
    timing,
)
from edl_allreduce.core.job.inbox import (
    Adopt,
    Connected,
    Drain,
    Effect,
    Ended,
    Event,
    HangUp,
    Heard,
    HungUp,
    Inherit,
    Kill,
    KillAll,
    LaunchFailed,
    LogRead,
    Note,
    Over,
    Scale,
    Send,
    Stop,
    Tell,
    Tick,
)
from edl_allreduce.core.job.lifecycle import FINAL, Phase
from edl_allreduce.core.job.state import Checkpoint, JobState, Peer, Queue, Ring
from edl_allreduce.core.job.turn import Turn, line
from edl_allreduce.core.membership import types as membership
from edl_allreduce.core.membership.hearing import PROOF


def handle(state: JobState, event: Event, now: float) -> tuple[JobState, tuple[Effect, ...]]:
    """The one door through which a job changes."""
    turn = Turn(state, now)
    slept = asleep.notice(turn)
    if not (slept and isinstance(event, Tick)):  # hear what waits before anybody is called silent
        _take(turn, event)
    _conclude(turn)
    return turn.state, tuple(turn.effects)


def broken(state: JobState, why: str) -> JobState:
    """What is left when the machine itself has a bug: a job that failed, and says so."""
    if state.phase in FINAL:
        return state
    return replace(state, phase=Phase.FAILED, reason=why, ending=replace(state.ending, over=True))


def _take(turn: Turn, event: Event) -> None:
    match event:
        case Connected(hello):
            _connected(turn, event)
            talk.charge(turn, hello.seat.worker_id)
        case Heard(uid, link, message):
            _heard(turn, uid, link, message)
            talk.charge(turn, turn.state.ids.get(uid, events.NOBODY))
        case HungUp(uid, link):
            _hung_up(turn, uid, link)
        case Ended():
            timing.ended(turn, event.worker_id)
            keeping.ended(turn, event)
        case LaunchFailed():
            timing.ended(turn, event.worker_id)
            keeping.launch_failed(turn, event)
        case LogRead():
            keeping.log_read(turn, event)
        case Scale(count, leaving):
            if not keeping.refusal_to_scale(turn.state, count):
                keeping.scale(turn, count, leaving)
        case Drain(worker_id):
            if not keeping.refusal_to_drain(turn.state, worker_id):
                keeping.drain(turn, worker_id)
        case Stop(reason):
            _stop(turn, reason)
        case KillAll():
            turn.end(Phase.STOPPED, "interrupted twice: workers were killed")
            for worker_id in turn.state.slots:
                turn.do(Kill(worker_id))
        case Adopt():
            keeping.adopt(turn, event)
        case Inherit(left, living, wall):
            turn.state = inheritance.inherit(turn.state, left, living, turn.now, wall)
        case Tick():
            _tick(turn)
        case Note(kind, text):
            turn.tell(events.Noted(kind, text))


def _conclude(turn: Turn) -> None:
    """Released workers get time to exit by themselves."""
    state = turn.state
    if state.phase not in FINAL or state.ending.over:
        return
    if turn.now >= state.ending.over_by or not (state.peers or state.slots):
        turn.ending(over=True)
        turn.do(Over())


def _stop(turn: Turn, reason: str) -> None:
    """Stop at the next step boundary."""
    if turn.state.stopping or turn.over:
        return
    reason = reason or "asked by the user"
    turn.change(stopping=reason)
    turn.tell(events.JobStops(reason))
    if ring.has_model(turn.state):
        members = {m.seat.uid for m in ring.alive(turn.state)} | ring.holders(turn.state)
        for uid in turn.state.peers:
            turn.send(uid, protocol.Stop(reason) if uid in members else protocol.Release())
    keeping.work(turn, membership.Stopping())


# ------------------------------------------------------------------------------------------- connections


def _connected(turn: Turn, event: Connected) -> None:
    hello, link, state = event.hello, event.link, turn.state
    answer = admission.refusal(state, hello)
    if answer is not None:
        turn.do(Send(link, answer))
        turn.do(HangUp(link))
        return
    uid, worker_id = hello.seat.uid, hello.seat.worker_id
    before = state.peers.get(uid)
    # Also those of its ring who will never be heard.
    seats = (hello.seat, *(hello.plan.members if hello.plan is not None else ()))
    turn.change(
        peers={**state.peers, uid: Peer(hello, link, health.Pulse(heard=turn.now))},
        ids={**{seat.uid: seat.worker_id for seat in seats}, **state.ids},
    )
    turn.send(uid, protocol.Welcome())
    if before is not None:  # it is back before the end of its last connection was noticed
        turn.do(HangUp(before.link))
    timing.connected(turn, hello)
    turn.slot(worker_id, uid=uid)
    turn.keeping(next_id=max(turn.state.keeping.next_id, worker_id + 1))
    keeping.tell_of_start(turn, worker_id, events.WorkerConnected(worker_id, hello.seat.host))
    keeping.work(turn, membership.Heard(uid, hello, link))
    if hello.done:  # a new master heard of no step before
        place = turn.state.progress.place
        turn.progress(place=replace(place, step=max(place.step, hello.step)))
    if hello.stopping:  # an earlier master was told to
        _stop(turn, hello.stopping)
    # What was ordered may have been lost with its last connection.
    state = turn.state
    if state.stopping and state.phase is not Phase.FINISHING:
        turn.send(uid, protocol.Stop(state.stopping))
    slot = state.slots.get(worker_id)
    if slot is not None and slot.draining:
        turn.send(uid, protocol.Drain())
    finishing.returned(turn, uid)


def _hung_up(turn: Turn, uid: str, link: int) -> None:
    """The end of a connection says little about the process: the worker may come back over another."""
    peer = turn.state.peers.get(uid)
    if peer is None or peer.link != link:
        return
    turn.change(peers={other: p for other, p in turn.state.peers.items() if other != uid})
    if uid == turn.state.ending.exporter:
        turn.ending(exporter_left=turn.now)
    keeping.work(turn, membership.Away(uid, link))


# ---------------------------------------------------------------------------------------------- hearing


def _heard(turn: Turn, uid: str, link: int, message: protocol.FromWorker) -> None:
    """Facts count whoever says them and whenever; what is said about membership must be of this connection,
    since the hello of a later one knows better."""
    if uid not in turn.state.ids or _fact(turn, turn.state.ids[uid], message):
        return
    peer = turn.state.peers.get(uid)
    if peer is None or peer.link != link or turn.over or uid in turn.state.gone:
        return
    match turn.state.work, message:
        case _, protocol.Pulse():
            _pulse(turn, uid, peer, message)
        case _, protocol.Ready():
            if peer.pulse.activity is Activity.PREPARING:
                # From now on its silence counts, although its next heartbeat may never come.
                turn.peer(uid, pulse=peer.pulse.beat(Activity.IDLE, message.step, turn.now))
            _ready(turn, uid, message)
        case _, protocol.Draining():
            _draining(turn, uid, peer.worker_id, message)
        case Ring(), _:
            _heard_in_ring(turn, uid, peer, message)
        case Queue(), protocol.TaskDone():
            if misfit := queue.misfit(turn, message):
                turn.tell(events.Anomaly(misfit, peer.worker_id))
                keeping.evict(turn, (uid, Cause.CRASHED, f"reports {misfit}"))  # another gets its task
                return
            keeping.proved(turn, peer.worker_id)
            queue.done(turn, uid, message)
        case Queue(), protocol.Concluded(metrics, path):
            if uid not in turn.state.work.asked:
                turn.tell(events.Anomaly("a result that it was not asked to make", peer.worker_id))
                return
            if metrics:
                _evaluated(turn, protocol.Evaluated(turn.state.work.version, metrics))
            queue.concluded(turn, path)
        case _:
            _anomaly(turn, peer, message)


def _heard_in_ring(turn: Turn, uid: str, peer: Peer, message: protocol.FromWorker) -> None:
    match message:
        case protocol.Entered():
            keeping.work(turn, membership.Heard(uid, message))
        case protocol.Joined(generation, step, position):
            ring.joined(turn, message)
            _is_at(turn, generation, step, position)
            if generation == ring.generation_of(turn.state):
                turn.peer(uid, joined_at=step)
            keeping.work(turn, membership.Heard(uid, message))
        case protocol.Out():
            keeping.work(turn, membership.Heard(uid, ring.named(turn.state, message)))
        case protocol.Done(generation, step, _, position, loss):
            if uid not in ring.holders(turn.state):
                turn.tell(events.Anomaly("the end of a training without its model", peer.worker_id))
                return
            if message.failure:
                turn.end(Phase.FAILED, message.failure)
                return
            _is_at(turn, generation, step, position, loss)
            account = turn.state.account.copy()
            account.warning = message.warning
            account.fingerprint = message.fingerprint
            turn.change(account=account)
            keeping.work(turn, membership.Heard(uid, message))
        case protocol.Differs():
            doubts.differ(turn, uid, message)
        case protocol.Weighed():
            doubts.weighed(turn, uid, message)
        case protocol.Exported(path, error):
            if not finishing.may_export(turn.state, uid):
                turn.tell(events.Anomaly("a result that it was not asked to write", peer.worker_id))
                return
            finishing.exported(turn, path, error)
        case protocol.KvSet() | protocol.KvPart():  # the shell passed on what is right
            plan = ring.plan_of(turn.state)
            if plan is not None and (said := rendezvous.refusal(plan, uid, message)):
                turn.tell(events.Anomaly(said, peer.worker_id))
        case _:
            _anomaly(turn, peer, message)


def _anomaly(turn: Turn, peer: Peer, message: protocol.FromWorker) -> None:
    work = type(turn.state.work).__name__.lower()
    said = f"a message {type(message).__name__} that has no meaning for the work of this job, a {work}"
    turn.tell(events.Anomaly(said, peer.worker_id))


def _pulse(turn: Turn, uid: str, peer: Peer, message: protocol.Pulse) -> None:
    pulse = peer.pulse.beat(message.activity, message.step, turn.now, message.done)
    turn.peer(uid, pulse=pulse, last=message)
    timing.heard(turn, uid, peer.worker_id, message)
    if not isinstance(turn.state.work, Ring):
        return
    if message.generation:  # 0: in no ring
        _is_at(turn, message.generation, message.step, message.position, message.loss)
    trains = peer.joined_at is not None and message.step >= peer.joined_at + PROOF
    if trains and message.generation == ring.generation_of(turn.state):
        keeping.proved(turn, peer.worker_id)


def _is_at(turn: Turn, generation: int, step: int, position: int, loss: float = math.nan) -> None:
    progress = turn.state.progress
    place = progress.place.heard(generation, step, position, loss)
    curve = progress.loss_curve
    if place is not progress.place:
        curve = curve.add(place.step, place.loss)
    turn.progress(place=place, first=progress.first or place, loss_curve=curve)
    ring.reached(turn, generation, step)


def _draining(turn: Turn, uid: str, worker_id: int, message: protocol.Draining) -> None:
    keeping.leaves(turn, worker_id)
    turn.tell(events.WorkerDrains(worker_id))
    keeping.work(turn, membership.Heard(uid, message))
    members, waiting = ring.alive(turn.state), turn.state.waiting.text
    if members and waiting and all(m.joined for m in members):
        turn.tell(events.DrainWaits(worker_id, waiting))  # whoever sent the signal may wonder
    keeping.launch_in(turn, turn.state.options.head_start)


def _ready(turn: Turn, uid: str, message: protocol.Ready) -> None:
    if isinstance(turn.state.work, Queue):
        if message.records < 1:
            turn.end(Phase.FAILED, "there are no records in the data")
            return
        message = queue.opened(turn, message)
    course, peer = _course(message), turn.state.peers[uid]
    if turn.state.course is None or _leads_on(turn.state, peer):
        turn.change(course=course)
        for other_uid, other in turn.state.peers.items():
            if other.course is not None and (difference := differences(course, other.course)):
                _refuse(turn, other_uid, difference)
    elif difference := differences(turn.state.course, course):
        _refuse(turn, uid, difference)
        return
    turn.progress(total_steps=message.total_steps, length=message.length)
    turn.peer(uid, course=course)
    turn.slot(peer.worker_id, accepted=True)
    before = len(turn.effects)
    keeping.work(turn, membership.Heard(uid, message))
    stands_by = ring.stands_by(turn.state, uid)
    turn.effects.insert(before, Tell(events.WorkerReady(peer.worker_id, stands_by)))
    if stands_by:
        keeping.forgive_refusals(turn, peer.worker_id)


def _leads_on(state: JobState, peer: Peer) -> bool:
    """After a restart of the master a newcomer may be heard first; right is who holds the model."""
    heard = any(p.course is not None and p.hello.has_state for p in state.peers.values())
    return peer.hello.has_state and not heard


def _refuse(turn: Turn, uid: str, difference: str) -> None:
    """Ranks that do not mean the same records, or not the same model, must not train together."""
    cure = "give all workers the same files and flags (what counts is the first that was ready)"
    why = f"differs from the rest and is refused: {difference}; {cure}"
    keeping.evict(turn, (uid, Cause.INVALID, why))


def _course(ready: protocol.Ready) -> Course:
    """What a worker must have in common with the rest."""
    return {
        "training data, --seed or --shuffle": f"{DIGEST}{ready.fingerprint}",
        "records of a step": str(ready.global_batch),
        "steps of the job": str(ready.total_steps),
        **ready.model,
    }


# ------------------------------------------------------------------------------------------------ facts


def _fact(turn: Turn, worker_id: int, message: protocol.FromWorker) -> bool:
    """What is true whoever is in which ring; False when the message is no such fact."""
    match message:
        case protocol.BadRecords():
            _left_out(turn, worker_id, message)
        case protocol.Failed():
            if _is_news(turn, worker_id, message):
                turn.slot(worker_id, failed=message)
                keeping.tell_of_start(turn, worker_id, events.WorkerFailed(worker_id, line(message.summary)))
        case protocol.Reformed() | protocol.Evaluated() | protocol.Checkpointed() | protocol.Note() if (
            talk.is_spent(turn, worker_id)
        ):
            pass
        case protocol.Reformed() as r:
            known = turn.state.progress.reforms
            if r.generation not in known or r.pause > known[r.generation].pause:
                turn.progress(reforms={**known, r.generation: r})
            parts = (r.notice, r.plan, r.join, r.sync, r.first_step)
            turn.tell(events.RingReformed(worker_id, r.generation, r.size, *parts))
        case protocol.Evaluated():
            _evaluated(turn, message)
        case protocol.Checkpointed():
            if _is_news(turn, worker_id, message):
                _checkpointed(turn, worker_id, message)
        case protocol.Note():
            _noted(turn, worker_id, message)
        case _:
            return False
    return True


def _is_news(turn: Turn, worker_id: int, report: protocol.Checkpointed | protocol.Failed) -> bool:
    """Workers say their last ones again after a reconnect, as they cannot know what arrived."""
    key = worker_id, type(report).__name__
    known = turn.state.reported.get(key) == report
    turn.change(reported={**turn.state.reported, key: report})
    return not known


def _checkpointed(turn: Turn, worker_id: int, message: protocol.Checkpointed) -> None:
    step, path, error = message.step, message.path, message.error
    account, last = turn.state.account.copy(), turn.state.checkpoint
    account.checkpointed(step, path, error)
    turn.change(account=account)
    if error:
        turn.tell(events.CheckpointMissing(worker_id, step, path, error))
    elif last is None or step >= last.step:  # else somebody tells a new master of an older one
        turn.change(checkpoint=Checkpoint(step, path, turn.now, message.fingerprint))
        written = events.CheckpointWritten(worker_id, step, path, message.seconds, message.fingerprint)
        turn.tell(written)


def _evaluated(turn: Turn, message: protocol.Evaluated) -> None:
    """Every rank reports, and a step may be evaluated again after a re-form: the first report counts."""
    metrics = turn.state.progress.metrics
    if message.step not in metrics:
        turn.progress(metrics={**metrics, message.step: message.metrics})
        turn.tell(events.ModelEvaluated(message.step, message.metrics))


def _left_out(turn: Turn, worker_id: int, message: protocol.BadRecords) -> None:
    """Whoever met them: what counts is how many different records are bad."""
    account = turn.state.account.copy()
    text = account.left_out(message.data, message.records)
    turn.change(account=account)
    if text:
        turn.tell(events.RecordsLeftOut(worker_id, message.data, tuple(sorted(message.records)), text))
    if account.too_many:
        turn.end(Phase.FAILED, account.too_many)


def _noted(turn: Turn, worker_id: int, note: protocol.Note) -> None:
    if note.once:
        if (note.kind, note.text) not in turn.state.told_once:
            turn.change(told_once=turn.state.told_once | {(note.kind, note.text)})
            turn.tell(events.Noted(note.kind, note.text))
    elif note.kind is protocol.NoteKind.RESUME:
        turn.tell(events.TrainingResumed(worker_id, note.text))
    else:
        turn.tell(events.Noted(note.kind, note.text, worker_id))


# ------------------------------------------------------------------------------------------------- time


def _tick(turn: Turn) -> None:
    turn.change(ticked=turn.now)
    if turn.over:
        return
    _judge(turn)
    keeping.kill_overdue(turn)
    keeping.give_up_unheard(turn)
    keeping.work(turn, membership.Tick(usual_step(turn.state)))
    finishing.watch(turn)
    ring.tell_waiting(turn)
    keeping.reconcile(turn)
    pacing.tick(turn)
    timing.tick(turn)


def _judge(turn: Turn) -> None:
    """Evict those who are silent, and those for whom others wait too long."""
    state, now, deadlines = turn.state, turn.now, turn.state.options.deadlines
    pulses = {uid: peer.pulse for uid, peer in state.peers.items()}
    holders = ring.holders(state)
    deaf = health.deaf(pulses, now, deadlines, holders)
    if state.deaf and not deaf:  # those whose heartbeats come a moment later get as long again
        pulses = {uid: replace(pulse, heard=now) for uid, pulse in pulses.items()}
        turn.change(peers={uid: replace(peer, pulse=pulses[uid]) for uid, peer in state.peers.items()})
    turn.change(deaf=deaf)
    patience = finishing.patience(turn)
    verdicts = health.judge(pulses, now, deadlines, usual_step(state), holders, patience)
    keeping.evict(turn, *((v.uid, Cause.STUCK if v.stuck else Cause.SILENT, v.reason) for v in verdicts))


def usual_step(state: JobState) -> float:
    times = [p.last.step_seconds for p in state.peers.values() if p.last and p.last.step_seconds]
    return statistics.median(times) if times else 0.0
