"""What a job looks like from outside: pure questions to its state."""

from __future__ import annotations

from collections.abc import Mapping

from edl_allreduce.core import goodput, straggler
from edl_allreduce.core.job import keeping, pacing, ring
from edl_allreduce.core.job.lifecycle import FINAL, Phase
from edl_allreduce.core.job.machine import usual_step
from edl_allreduce.core.job.state import JobState, Queue, Result, Ring
from edl_allreduce.core.membership.types import Standing
from edl_allreduce.core.status import STANDBY, CheckpointStatus, JobStatus, Tally, WorkerFacts, WorkerStatus


def result(state: JobState) -> Result:
    reasons = dict(state.work.reasons) if isinstance(state.work, Ring) else {}
    progress = state.progress
    reforms = list(progress.reforms.values())
    return Result(state.phase, state.reason, progress.place.step, state.ending.path, reforms, reasons)


def status(state: JobState, now: float, wall: float, facts: Mapping[int, WorkerFacts]) -> JobStatus:
    """The job as it is now. `wall`: what a calendar's clock says at `now`; `facts`: by worker."""
    workers = _workers(state, facts)
    members = ring.members_of(state)
    plan = ring.plan_of(state)
    seen, tally = state.progress, tally_of(state, now)
    place = seen.place
    size = sum(w.rank >= 0 for w in workers) or len(plan.members if plan is not None else ())
    batch = seen.length.batch_of(size) if seen.length is not None else 0
    steps, records = _rates(state, tally, batch)
    return JobStatus(
        job_name=state.options.job_name,
        phase=state.phase.value,
        wanted=state.wanted,
        minimum=state.options.min_workers,
        generation=members.generation if members is not None else 0,
        step=place.step,
        total_steps=seen.length.total(place.step, place.position, size) if seen.length else seen.total_steps,
        loss=place.loss,
        records_per_second=records,
        steps_per_second=steps,
        waiting_for=state.waiting.text,
        short=keeping.shortage(state, now),
        elapsed=now - state.began,
        workers=workers,
        events=[],
        metrics=dict(seen.metrics[max(seen.metrics)]) if seen.metrics else {},
        metrics_step=max(seen.metrics, default=-1),
        reason=state.reason,
        path=state.ending.path,
        counts="task" if isinstance(state.work, Queue) else "step",
        position=place.position,
        length=seen.length,
        tally=tally,
        losses=list(seen.loss_curve.points),
        goodput=goodput.report(state.goodput),
        checkpoint=_checkpoint(state, now, wall),
        fingerprint=state.account.fingerprint,
        changing=plan is not None and place.generation != plan.generation,
    )


def _checkpoint(state: JobState, now: float, wall: float) -> CheckpointStatus | None:
    last = state.checkpoint
    if last is None:
        return None
    return CheckpointStatus(last.step, last.path, wall - (now - last.at), last.fingerprint)


def _workers(state: JobState, facts: Mapping[int, WorkerFacts]) -> list[WorkerStatus]:
    match state.work:
        case Ring() as trained:
            workers = _members(state, trained, facts)
        case Queue() as pulled:
            workers = _pullers(state, pulled, facts)
    known = {w.worker_id for w in workers}
    for i, slot in state.slots.items():
        fact = facts.get(i, WorkerFacts())
        if i not in known:
            workers.append(
                WorkerStatus(
                    i,
                    "",
                    "starting",
                    -1,
                    fact.condition,
                    0,
                    fact.pid,
                    slot.draining,
                    fact.name,
                    node=fact.node,
                )
            )
    return sorted(workers, key=lambda w: w.worker_id)


def _members(state: JobState, work: Ring, facts: Mapping[int, WorkerFacts]) -> list[WorkerStatus]:
    plan = work.members.plan
    workers = []
    times = pacing.times_of(state)
    scores = straggler.scores(times)
    for uid, member in work.members.members.items():
        number = member.seat.worker_id
        score, known = scores.get(number, straggler.Scores()), times.get(number, straggler.Times(0.0))
        peer = state.peers.get(uid)
        rank = plan.rank_of(uid) if plan is not None else None
        last = peer.last if peer is not None else None
        fact = facts.get(number, WorkerFacts())
        workers.append(
            WorkerStatus(
                worker_id=number,
                host=member.seat.host,
                standing=STANDBY if work.members.stands_by(uid) else member.standing.value,
                rank=rank if rank is not None and member.standing is not Standing.WAITING else -1,
                activity=last.activity.value if last is not None else "",
                step=last.step if last is not None else 0,
                pid=fact.pid,
                draining=member.draining,
                name=fact.name,
                compute_seconds=known.seconds,
                best_rank_score=score.best_rank,
                own_best_score=score.own_best,
                straggler=number in state.stragglers.named,
                node=fact.node,
            )
        )
    return workers


def _pullers(state: JobState, work: Queue, facts: Mapping[int, WorkerFacts]) -> list[WorkerStatus]:
    workers = []
    for uid, peer in state.peers.items():
        tasks = work.tasks.doing(uid) if work.tasks is not None else []
        fact = facts.get(peer.worker_id, WorkerFacts())
        workers.append(
            WorkerStatus(
                worker_id=peer.worker_id,
                host=peer.hello.seat.host,
                standing="working" if tasks else "waiting",
                rank=-1,
                activity=peer.last.activity.value if peer.last is not None else "",
                step=tasks[0].number if tasks else 0,
                pid=fact.pid,
                name=fact.name,
                node=fact.node,
            )
        )
    return workers


def tally_of(state: JobState, now: float) -> Tally:
    """What this run of the job did so far."""
    seen = state.progress
    first = seen.first or seen.place
    return Tally(
        steps=max(0, seen.place.step - first.step),
        records=max(0, seen.place.position - first.position),
        trained=seen.trained.read(now),
        pauses=[*seen.earlier_pauses, *(reform.pause for reform in seen.reforms.values())],
        losses=seen.losses,
        set_back=seen.set_back,
    )


def _rates(state: JobState, tally: Tally, batch: int) -> tuple[float, float]:
    """Steps and records per second: of the last steps, and when training is over those of all."""
    if state.phase is Phase.TRAINING:
        usual = usual_step(state)
        return (1 / usual, batch / usual) if usual else (0.0, 0.0)
    if (state.phase in FINAL or state.phase is Phase.FINISHING) and tally.trained:
        return tally.steps / tally.trained, tally.records / tally.trained
    return 0.0, 0.0
