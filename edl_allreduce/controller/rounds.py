"""One look at everything, and what follows from it: plan, verdicts, writes. Again whenever something changed.

A round begins with what there is, not with what happened, so that nothing is lost with a controller that
ends. A job whose round fails is left alone for a while; the others never notice.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from edl_allreduce import outside
from edl_allreduce.clock import SYSTEM, Clock
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.names import Object, Replica
from edl_allreduce.cluster.kubernetes.watching import Lister
from edl_allreduce.controller.election import Election, LeaseApi, NotLeading
from edl_allreduce.controller.hands import Hands, WritingApi, rule_for
from edl_allreduce.controller.jobs import Book, Entry, known_of, obstacle_to, pods_of
from edl_allreduce.controller.mirror import JOBS, NODES, PODS, Mirror
from edl_allreduce.controller.planning import advice_of, situation
from edl_allreduce.controller.prices import Price, Prices
from edl_allreduce.core.autoscale import Plan, Policy
from edl_allreduce.core.controller import inquiry, price, status
from edl_allreduce.core.controller.facts import Advice, MakeMaster, Told, Verdict
from edl_allreduce.core.controller.reconcile import reconcile
from edl_allreduce.core.deadlines import doubled
from edl_allreduce.core.trainingjob import Phase
from edl_allreduce.errors import ClusterError
from edl_allreduce.spec.resource import TrainingJob

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.2
"""How long news is gathered before a round: changes come in bursts."""
PLAN_SECONDS = 1.0
SHARE = 1.0
"""At least so long between the beginnings of two plans, and so many times as long as the last one took."""
FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0
"""For which a job is left alone after the API server refused something for it."""


class ControllerApi(Lister, LeaseApi, WritingApi, Protocol):
    """The part of the API that is needed here."""


@dataclass
class Figures:
    """What happened so far, for the metrics."""

    rounds: int = 0
    plans: int = 0
    plan_seconds: float = 0.0
    load: Mapping[str, float] = field(default_factory=dict)
    waiting: int = 0
    refusals: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    workers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By job: those that run, and those that should."""


class Controller:
    """All TrainingJobs of a cluster."""

    def __init__(
        self,
        api: ControllerApi,
        *,
        namespace: str,
        me: str,
        policy: Policy | None = None,
        interval: float = 5.0,
        restart_killed: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        """`policy` None: nobody is scaled. `interval`: seconds between two plans, at most.

        `restart_killed`: the cluster can start a killed master again in its pod.
        """
        self._api, self._clock = api, clock
        self._policy, self._interval = policy, interval
        self._news = asyncio.Event()
        self.mirror = Mirror(self._news.set)
        self.election = Election(api, namespace, me, clock=clock)
        self.hands = Hands(api, self.election, self.mirror, restart_killed=restart_killed)
        self.book = Book()
        self.figures = Figures()
        self.plan: Plan | None = None
        self._advice: dict[str, Advice] = {}
        self._planned_at = float("-inf")
        self._wake_at: float | None = None
        self.prices = Prices(self.hands, self._note_refused, clock)
        self._priced: list[Price] = []
        """Of the worker pods of a round: to be written after it."""

    async def run(self) -> None:
        """Until it is cancelled."""
        self.mirror.follow(self._api)
        helpers = [asyncio.create_task(self.election.run()), asyncio.create_task(self._rounds())]
        try:
            done, _ = await asyncio.wait(helpers, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a bug must end the process, which is started again
        finally:
            for task in helpers:
                task.cancel()
            self.prices.close()
            self.mirror.close()
            await self.election.step_down()
            self.hands.close()

    async def _rounds(self) -> None:
        while True:
            self._news.clear()
            if self.election.leads and self.mirror.whole:
                await self.round()
                self.figures.rounds += 1
            await self._pause()

    async def _pause(self) -> None:
        """Until there is news, or something was to be looked at again."""
        seconds = self._interval
        if self._wake_at is not None:
            seconds = min(seconds, max(0.0, self._wake_at - self._clock.wall()))
        rest = asyncio.ensure_future(self._clock.rest(seconds))
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait([rest, news], return_when=asyncio.FIRST_COMPLETED)
        finally:
            rest.cancel()
            news.cancel()
        await self._clock.rest(SETTLE_SECONDS)

    # --------------------------------------------------------------------------------------------- a round

    async def round(self) -> None:
        """One look at everything."""
        term = self.election.term
        self.book.update(dict(self.mirror.objects[JOBS.kind]))
        self._wake_at = None
        try:
            await self._plan()
        except Exception:
            # The supervisor of the autoscaler: jobs keep the size that they have, and their masters.
            log.exception("no plan could be made; sizes stay as they are")
            self.figures.refusals += 1
        owned = pods_of(self.mirror)
        self.figures.phases = Counter()
        self.figures.workers = {}
        await asyncio.gather(
            *(self._guarded(entry, owned.get(entry.uid, []), term) for entry in self.book.entries.values())
        )
        priced, self._priced = self._priced, []
        self.prices.write(priced, term)

    def _note_refused(self) -> None:
        self.figures.refusals += 1

    async def _plan(self) -> None:
        if self._policy is None:
            return
        now = self._clock.now()
        due = self._planned_at + max(PLAN_SECONDS, SHARE * self.figures.plan_seconds)
        if now < due:
            self._look_again(self._clock.wall() + due - now)
            return
        self._planned_at = now
        found = situation(self.mirror, self.book)
        nodes, pods = list(self.mirror.of(NODES)), list(self.mirror.of(PODS))
        asked = await asyncio.to_thread(inquiry.inquire, nodes, pods)
        log.info("%s", json.dumps({"msg": inquiry.WORDS, "resource": asked}, separators=(",", ":")))
        planned = await asyncio.to_thread(found.planned, self._clock.wall(), self._policy)
        self.figures.plan_seconds = self._clock.now() - now
        self.figures.plans += 1
        self.figures.load = planned.load or {}
        self.figures.waiting = len(planned.waiting)
        if planned.changes or (self.plan is not None and str(planned) != str(self.plan)):
            log.info("plan: %s", outside.line(str(planned), 2000))
        self.plan, self._advice = planned, advice_of(planned, self.mirror)

    async def _guarded(self, entry: Entry, pods: list[Object], term: int) -> None:
        """The supervisor of one job: whatever goes wrong with it stays with it."""
        if self._clock.now() < entry.not_before:
            self._look_again(self._clock.wall() + entry.not_before - self._clock.now())
            return
        try:
            await self._job(entry, pods, term)
        except NotLeading as error:
            log.info("%s: %s", entry.key, error)
            return
        except ClusterError as error:
            self._troubled(entry, rule_for(error))
        except Exception as error:
            log.exception("job %s met a bug; the others go on", entry.key)
            self._troubled(entry, f"a bug in the controller: {type(error).__name__}: {error}")
        else:
            entry.failures, entry.trouble = 0, ""

    def _troubled(self, entry: Entry, why: str) -> None:
        self.figures.refusals += 1
        if why != entry.trouble:
            log.warning("%s: %s", entry.key, outside.line(why, 1000))
        entry.trouble = why
        entry.not_before = self._clock.now() + doubled(FIRST_DELAY, entry.failures, LONGEST_DELAY)
        entry.failures += 1
        self._look_again(self._clock.wall() + entry.not_before - self._clock.now())

    def _look_again(self, wall: float | None) -> None:
        if wall is not None:
            self._wake_at = wall if self._wake_at is None else min(self._wake_at, wall)

    # ----------------------------------------------------------------------------------------------- a job

    async def _job(self, entry: Entry, pods: list[Object], term: int) -> None:
        if entry.managed_elsewhere or entry.found["metadata"].get("deletionTimestamp"):
            return
        job, now = entry.read.job, self._clock.wall()
        before = entry.found.get("status") or {}
        generation = int(entry.found["metadata"].get("generation") or 0)
        if job is None:
            await self._told(entry, status.refused(before, entry.read.problem, generation, now), term)
            return
        obstacle = obstacle_to(job, self.mirror)
        if obstacle and not pods:
            await self._told(entry, status.refused(before, obstacle, generation, now, "NameTaken"), term)
            self._look_again(now + self._interval)
            return
        advice = self._advice.get(entry.key) if self._policy is not None else _all_of(job)
        known = known_of(entry, job, self.mirror, pods, advice, term)
        verdict = reconcile(known, now)
        ready = known.workers.training(verdict.target, known.wish.standby)
        about = status.About(
            generation,
            names.selector(job.name, Replica.WORKER),
            ready,
            advice if self._policy is not None else None,
            job.warnings,
        )
        self._look_again(verdict.again)
        self.figures.phases[verdict.phase.value] += 1
        self.figures.workers[entry.key] = (ready, verdict.target)
        try:
            for action in verdict.actions:
                await self.hands.perform(action, entry, job, term)
            if verdict.phase in (Phase.RUNNING, Phase.SCALING):
                cost = price.price(verdict.progress, job.min, known.workers.running)
                workers = [pod for pod in pods if names.worker_id_of(pod) is not None]
                self._priced += [Price(entry.key, pod, cost) for pod in workers]
        except ClusterError as error:
            why = rule_for(error)
            entry.told = _heard(entry.told, verdict)
            await self._told(entry, status.hindered(before, verdict, about, why, now, begun=bool(pods)), term)
            raise
        wanted = status.written(before, verdict, about, now)
        if not await self._told(entry, wanted, term):
            # What was not told has not happened yet: the next round decides it again.
            entry.told = _heard(entry.told, verdict)
            return
        told = Told(verdict.phase, verdict.started, verdict.finished)
        entry.told = _heard(told, verdict)
        if wanted != before:
            await self._tell_events(entry, verdict, term)

    async def _told(self, entry: Entry, wanted: Object, term: int) -> bool:
        """One write per round, none when nothing changed; False when somebody else had changed the job."""
        if wanted == (entry.found.get("status") or {}):
            return True
        return await self.hands.write_status(entry, wanted, term)

    async def _tell_events(self, entry: Entry, verdict: Verdict, term: int) -> None:
        """After the status was written, and only what is new."""
        said = (verdict.phase.value, verdict.reason, str(verdict.target))
        before, entry.shown = entry.shown, said
        if not verdict.reason:
            return
        if any(isinstance(action, MakeMaster) for action in verdict.actions):
            await self.hands.tell(
                entry, "Normal", "MasterMade", verdict.message or "its master is made", term
            )
        if before and before[2] != said[2] and verdict.target:
            change = "" if "→" in verdict.why else f"{before[2]}→{verdict.target}: "
            await self.hands.tell(entry, "Normal", "Scaled", f"{change}{verdict.why}", term)
        if before[:2] != said[:2]:
            kind = "Warning" if verdict.phase is Phase.FAILED or verdict.degraded else "Normal"
            note = verdict.message or verdict.phase.value
            await self.hands.tell(entry, kind, verdict.reason, note, term)


def _heard(told: Told, verdict: Verdict) -> Told:
    """With what masters said so far."""
    return replace(told, progress=verdict.progress, crashes=verdict.crashes, worked=verdict.worked)


def _all_of(job: TrainingJob) -> Advice:
    """Without an autoscaler each job has what it may have; the scheduler decides who waits."""
    return Advice(job.max, "the autoscaler is switched off: each job has its maximum")
