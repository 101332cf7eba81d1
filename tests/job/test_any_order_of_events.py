"""Hypothesis drives the machine of a job through whatever may happen, and looks for what breaks a promise.

Commands, ends that the cluster tells, connections that break and return, workers that freeze and thaw, that
cannot begin or train something else, time. The scene checks every invariant after every event; at the end no
more faults happen, and then the job must reach its end by itself.
"""

from __future__ import annotations

from dataclasses import replace

import hypothesis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from edl_allreduce.core import protocol
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.job import inbox
from edl_allreduce.core.job.lifecycle import FINAL, Phase
from edl_allreduce.core.job.state import Ring
from edl_allreduce.core.protocol import NoteKind
from edl_allreduce.testing.scene import OPTIONS, READY, Actor, Scene, Script

CAUSES = st.sampled_from([Cause.DISRUPTED, Cause.CRASHED, Cause.OUT_OF_MEMORY, Cause.FINISHED, Cause.INVALID])
MADE_OF = st.sampled_from(
    [
        Script(),
        Script(),
        Script(prepares=False),
        Script(broken="no room"),
        Script(ready=replace(READY, model={"optimizer": "adam"})),
        Script(fails=protocol.Failed(True, "DataError: gone", "DataError: gone")),
    ]
)
FACTS = st.sampled_from(
    [
        protocol.Checkpointed(5, "ckpt"),
        protocol.Checkpointed(5, "ckpt", "disk full"),
        protocol.Evaluated(5, {"loss": 0.5}),
        protocol.Note(NoteKind.EDITED, "net.py", once=True),
        protocol.BadRecords("training data", {3: ("torn", 0)}),
        protocol.Reformed(1, 2, 0.1, 0.1, 0.1, 0.1, 0.1),
        protocol.Draining(),
    ]
)
PICK = st.integers(0, 7)
GENERATED = (hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate)
"""Not made smaller: a job that never ends takes long enough once."""


class AnyOrder(RuleBasedStateMachine):
    """A job and everything that can happen to it."""

    scene: Scene

    @initialize(
        wanted=st.sampled_from([0, 1, 2, 3]),
        minimum=st.sampled_from([1, 1, 2]),
        task_records=st.sampled_from([0, 0, 0, 7]),
        relaunch=st.sampled_from([True, True, False]),
        head_start=st.sampled_from([0.0, 0.5]),
        restarted=st.booleans(),
    )
    def begin(self, wanted, minimum, task_records, relaunch, head_start, restarted) -> None:
        options = replace(
            OPTIONS,
            num_workers=wanted,
            min_workers=min(minimum, wanted) if wanted else minimum,
            max_bad_records=1,
            task_records=task_records,
            relaunch=relaunch,
            head_start=head_start,
            recover_until=1020.0 if restarted else 0.0,
        )
        self.scene = Scene(options, steps=100)
        self.launches = 0
        if restarted and wanted:
            self.scene.give(inbox.Adopt((0, 1), (0,), 4, wanted))
            for number in (0, 1):  # they live, and may report
                actor = Actor(number, Script(), f"uid-{number}")
                self.scene.actors[number] = actor
        self.scene.start()

    def _some(self, pick: int, *, connected: bool | None = None) -> Actor | None:
        alive = [a for a in self.scene.actors.values() if a.alive]
        if connected is not None:
            alive = [a for a in alive if bool(a.link) == connected]
        return alive[pick % len(alive)] if alive else None

    # --------------------------------------------------------------------------------------- commands

    @rule(count=st.integers(0, 4))
    def somebody_scales(self, count: int) -> None:
        self.scene.give(inbox.Scale(count))

    @precondition(lambda self: len(self.scene.effects) > 60)
    @rule(really=st.sampled_from([False, False, False, True]))
    def somebody_stops_it(self, really: bool) -> None:
        if really:
            self.scene.give(inbox.Stop("asked"))

    @precondition(lambda self: len(self.scene.effects) > 120)
    @rule(really=st.sampled_from([False, False, False, True]))
    def somebody_kills_it(self, really: bool) -> None:
        if really:
            self.scene.give(inbox.KillAll())

    # ---------------------------------------------------------------------------------------- workers

    @rule(pick=PICK, cause=CAUSES)
    def a_worker_ends(self, pick: int, cause: Cause) -> None:
        actor = self._some(pick)
        if actor is not None:
            self.scene.crash(actor.worker_id, cause)

    @rule(pick=PICK)
    def the_end_of_a_connection_is_heard_after_the_end_of_the_worker(self, pick: int) -> None:
        actor = self._some(pick, connected=True)
        if actor is not None:
            link, actor.link, actor.alive = actor.link, 0, False
            self.scene.give(inbox.Ended(actor.worker_id, Cause.DISRUPTED, "was killed"))
            self.scene.give(inbox.HungUp(actor.uid, link))

    @rule(pick=PICK)
    def a_connection_breaks(self, pick: int) -> None:
        actor = self._some(pick, connected=True)
        if actor is not None:
            self.scene.cut(actor.worker_id)

    @rule(pick=PICK)
    def a_worker_connects_again(self, pick: int) -> None:
        """Also one whose last connection the master believes in."""
        actor = self._some(pick)
        if actor is not None:
            self.scene.connect(actor.worker_id)

    @rule(pick=PICK, frozen=st.booleans())
    def a_worker_freezes_or_thaws(self, pick: int, frozen: bool) -> None:
        actor = self._some(pick)
        if actor is not None:
            (self.scene.freeze if frozen else self.scene.thaw)(actor.worker_id)

    @rule(pick=PICK, fact=FACTS)
    def a_worker_says_something(self, pick: int, fact: protocol.FromWorker) -> None:
        actor = self._some(pick, connected=True)
        if actor is not None:
            self.scene.say(actor.worker_id, fact)

    @rule(pick=PICK)
    def a_late_word_of_an_old_connection_arrives(self, pick: int) -> None:
        actor = self._some(pick, connected=True)
        if actor is not None:
            for message in (protocol.Joined(1, 3), protocol.Done(1, 3), READY):
                self.scene.give(inbox.Heard(actor.uid, actor.link + 1000, message))

    @precondition(lambda self: len(self.scene.actors) < 12)
    @rule(number=st.integers(20, 22))
    def somebody_starts_a_worker_by_hand(self, number: int) -> None:
        if number not in self.scene.actors:
            self.scene.comes(number)

    @rule(made_of=MADE_OF)
    def from_now_on_workers_are_made_of_this(self, made_of: Script) -> None:
        self.scene.script = replace(made_of)

    # ------------------------------------------------------------------------------------------- time

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 15.0]))
    def time_passes(self, seconds: float) -> None:
        self.scene.wait(seconds)

    @rule()
    def the_master_is_held_up(self) -> None:
        self.scene.now += 100
        self.scene.give(inbox.Tick())

    @rule(worker_id=st.integers(0, 30))
    def the_cluster_tells_of_somebody_unknown(self, worker_id: int) -> None:
        if worker_id not in self.scene.state.slots:
            self.scene.give(
                inbox.Ended(worker_id, Cause.CRASHED, "exited with 1"), inbox.Note(NoteKind.POD, "late")
            )

    def teardown(self) -> None:
        """No more faults: whatever happened, the job reaches an end, or is complete and trains towards it."""
        scene = self.scene
        scene.script = Script()
        for actor in list(scene.actors.values()):
            actor.script = Script()
            scene.thaw(actor.worker_id)
        self._mend()
        for _ in range(200):
            if scene.over:
                break
            scene.wait(5, every=1.0)
            self._mend()
        if not scene.over:  # nobody may start workers here: then it says what it waits for
            nobody_starts = not scene.state.options.relaunch or scene.state.options.num_workers == 0
            assert nobody_starts, scene.story()
            work = scene.state.work
            members = work.members.members.values() if isinstance(work, Ring) else ()
            leaving = {m.seat.worker_id for m in members if m.draining}
            staying = set(scene.alive) - leaving
            assert len(staying) < max(1, scene.state.options.min_workers), scene.story()
            assert scene.phase in (Phase.STARTING, Phase.WAITING, Phase.WORKING, Phase.TRAINING)
            scene.give(inbox.KillAll())
        assert scene.phase in FINAL and scene.over
        assert len(scene.told("end")) == 1
        assert len(set(scene.launched)) == len(scene.launched), "no number is used twice"

    def _mend(self) -> None:
        """Connections come back, preparations end; a worker that is turned away exits."""
        for actor in list(self.scene.actors.values()):
            if actor.alive and not actor.link:
                self.scene.connect(actor.worker_id)
            elif actor.alive and not actor.ready:
                self.scene.prepare(actor.worker_id)


AnyOrder.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, phases=GENERATED
)
TestAnyOrder = AnyOrder.TestCase
