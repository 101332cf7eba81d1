"""Evaluation and prediction as the work of a job: workers pull tasks, each result counts once.

Keeping workers alive is the same as in training. These workers need no ring, so in the place of the
membership machine there is a queue.
"""

from __future__ import annotations

from dataclasses import replace

from edl_allreduce.core import events, protocol
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import Queue
from edl_allreduce.core.job.turn import Turn
from edl_allreduce.core.membership import types as membership
from edl_allreduce.core.progress import Place
from edl_allreduce.core.tasks import TaskQueue


def handle(turn: Turn, work: Queue, event: membership.Event) -> tuple[membership.Evict, ...]:
    """The same events as a ring has; what is wanted done about workers."""
    evictions: tuple[membership.Evict, ...] = ()
    match event:
        case membership.Heard(uid, protocol.Ready()):
            _waits(turn, uid)
            turn.move(Phase.WORKING)
        case membership.Heard(uid, protocol.Draining()):
            _change(turn, waiting=work.waiting - {uid})
        case membership.Heard(uid, protocol.Hello(tasks=held)):
            _back(turn, uid, held)
        case membership.Away(uid):
            _change(turn, away={**work.away, uid: turn.now})
            _lost(turn, uid)
        case membership.Lost(uid):
            _gone(turn, uid)
        case membership.LostTogether(losses):
            for lost in losses:
                _gone(turn, lost.uid)
        case membership.Tick():
            evictions = _overdue(turn, work)
        case membership.Stopping():
            turn.end(Phase.STOPPED, turn.state.stopping)
            return ()
    _give_out(turn)
    return evictions


def opened(turn: Turn, message: protocol.Ready) -> protocol.Ready:
    """The first worker that opened the data says how much there is to do."""
    work = _work(turn)
    if work.tasks is None:
        tasks = TaskQueue(message.records, turn.state.options.task_records)
        _change(turn, tasks=tasks, records=message.records, version=message.step)
        turn.tell(events.TasksMade(message.records, tasks.total, message.step))
        work = _work(turn)
    assert work.tasks is not None
    return replace(message, total_steps=work.tasks.total)


def misfit(turn: Turn, message: protocol.TaskDone) -> str:
    """Why this cannot be the result of a task of this job; empty when it can."""
    sums = _work(turn).sums
    if not message.sums or not sums or len(message.sums) == len(sums):
        return ""
    return f"{len(message.sums)} sums of a task, where others have {len(sums)}"


def done(turn: Turn, uid: str, message: protocol.TaskDone) -> None:
    """A worker finished a task and wants the next."""
    work = _work(turn)
    after = work.tasks.complete(uid, message.number, message.attempt) if work.tasks is not None else None
    if after is None:
        late = f"a result of task {message.number} came too late and does not count"
        turn.tell(events.Noted(protocol.NoteKind.TASKS, late, turn.state.ids[uid]), quiet=True)
    else:
        sums = work.sums
        if message.sums:
            before = sums or (0.0,) * len(message.sums)
            sums = tuple(a + b for a, b in zip(before, message.sums, strict=True))
        _change(turn, tasks=after, sums=sums)
    tasks = _work(turn).tasks
    turn.progress(place=Place(step=tasks.done if tasks is not None else 0))
    slot = turn.state.slots.get(turn.state.ids[uid])
    if slot is None or not slot.draining:
        _waits(turn, uid)
    _give_out(turn)


def concluded(turn: Turn, path: str) -> None:
    turn.ending(path=path)
    remarks = turn.state.account.remarks
    records = _work(turn).records
    turn.end(Phase.SUCCEEDED, f"{records} records{f'; {remarks}' if remarks else ''}")


def _give_out(turn: Turn) -> None:
    work = _work(turn)
    tasks = work.tasks
    if tasks is None:
        return
    for uid in sorted(work.waiting):
        tasks, task = tasks.take(uid)
        if task is None:
            break
        _change(turn, tasks=tasks, waiting=_work(turn).waiting - {uid})
        turn.send(uid, protocol.DoTask(task.number, task.attempt, task.start, task.stop, work.version))
    work = _work(turn)
    if tasks.finished and not work.concluder and work.waiting:
        concluder = min(work.waiting)
        _change(turn, concluder=concluder, asked=work.asked | {concluder})
        turn.send(concluder, protocol.Conclude(list(work.sums), tasks.total, work.records))


def _overdue(turn: Turn, work: Queue) -> tuple[membership.Evict, ...]:
    """Who lost its connection and does not come back makes room for another."""
    limit = turn.state.options.deadlines.silent_import
    overdue = [uid for uid, since in work.away.items() if turn.now - since > limit]
    for uid in overdue:
        _gone(turn, uid)
    why = f"is gone: it did not come back within {limit:.0f} s"
    return tuple(membership.Evict(uid, why, Cause.SILENT) for uid in overdue)


def _waits(turn: Turn, uid: str) -> None:
    """It wants the next task, unless it has one: who came back may have said so while it works."""
    work = _work(turn)
    if work.tasks is None or not work.tasks.doing(uid):
        _change(turn, waiting=work.waiting | {uid})


def _back(turn: Turn, uid: str, held: tuple[tuple[int, int], ...]) -> None:
    """Back over another connection. It works on what it has; what it does not know of was lost on the way."""
    _not_away(turn, uid)
    _lost(turn, uid, held)


def _gone(turn: Turn, uid: str) -> None:
    _not_away(turn, uid)
    _lost(turn, uid)


def _not_away(turn: Turn, uid: str) -> None:
    _change(turn, away={other: since for other, since in _work(turn).away.items() if other != uid})


def _lost(turn: Turn, uid: str, held: tuple[tuple[int, int], ...] = ()) -> None:
    """What it had is for others, except for what it holds."""
    work = _work(turn)
    _change(turn, waiting=work.waiting - {uid}, concluder="" if work.concluder == uid else work.concluder)
    if work.tasks is None:
        return
    tasks, count = work.tasks.reclaim(uid, held)
    _change(turn, tasks=tasks)
    if count:
        turn.tell(events.TasksGivenAgain(turn.state.ids.get(uid, events.NOBODY), count))


def _work(turn: Turn) -> Queue:
    assert isinstance(turn.state.work, Queue)
    return turn.state.work


def _change(turn: Turn, **fields: object) -> None:
    turn.change(work=replace(_work(turn), **fields))  # type: ignore[arg-type]  # each caller names its fields
