"""The master is lost, and the next one goes on with its sums: goodput, steps, failures, numbers of rings."""

from __future__ import annotations

import asyncio
import base64
import errno
import gzip
import json
from dataclasses import replace
from random import Random

import pytest

from edl_allreduce.clock import SystemClock
from edl_allreduce.cluster.known import event_line
from edl_allreduce.cluster.kubernetes.inheritance import (
    BYTES_PER_SECOND,
    HOLDER,
    LARGEST_EVENTS,
    KeptInConfigMap,
    _packed_events,
)
from edl_allreduce.core import event_data, events, goodput
from edl_allreduce.core.goodput import Bucket
from edl_allreduce.core.job import inbox
from edl_allreduce.core.job.inheritance import Inheritance, leave
from edl_allreduce.core.protocol import NoteKind
from edl_allreduce.core.status import EventRecord
from edl_allreduce.master import history as history_module
from edl_allreduce.master import inheritance
from edl_allreduce.master.history import SERIAL_GAP, PodHistory
from edl_allreduce.master.in_cluster import ClusterMaster
from edl_allreduce.master.inheritance import Left, Notary, decode, encode
from edl_allreduce.testing.fake_api import FakeApi
from edl_allreduce.testing.scene import OPTIONS, Scene
from tests.goodput.test_time_of_jobs import beats, spent

WALL = 1_700_000_000.0
OTHER_CLOCK = 7.0
"""Of the machine of the next master."""
OWNER = {
    "apiVersion": "elasticdl.org/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "digits", "uid": "0123456789"},
}


def lost(scene: Scene, gap: float, *, living: bool) -> Scene:
    """Another master, so many seconds later, on another machine. Its workers train on if they live."""
    left = decode(encode(Left(3, leave(scene.state, scene.now, WALL))))
    assert left is not None, "it survives being written down"
    options = replace(OPTIONS, recover_until=OTHER_CLOCK + 20) if living else OPTIONS
    after = Scene(options, now=OTHER_CLOCK)
    ids = tuple(scene.actors) if living else ()
    after.give(inbox.Inherit(left.job, ids, WALL + gap))
    after.give(inbox.Adopt(ids, ids, len(scene.actors), 2))
    if living:
        after.actors = scene.actors
        after.wait(1)
        for worker_id in ids:
            after.connect(worker_id)
    return after


def trained() -> Scene:
    scene = Scene().train()
    beats(scene, STARTUP=10.0)
    scene.wait(20)
    beats(scene, STARTUP=10.0, STEP=20.0)
    return scene


def test_what_workers_did_while_nobody_listened_is_accounted_when_they_are_heard():
    scene = trained()
    before = spent(scene)[Bucket.STEP]
    after = lost(scene, gap=100.0, living=True)
    assert after.status.elapsed == pytest.approx(scene.status.elapsed + 100.0 + 1.0)
    after.until(lambda: after.ring == 2)
    beats(after, STARTUP=10.0, STEP=119.0, JOIN=1.0)
    seconds = spent(after)
    assert seconds[Bucket.STEP] - before == pytest.approx(100.0, rel=0.03)
    assert seconds[Bucket.JOIN] == pytest.approx(1.0, rel=0.03)
    assert after.status.goodput.wall == pytest.approx(after.status.elapsed, abs=1.0)
    assert not [w for w in after.status.goodput.workers if w.gone]


def test_when_all_are_lost_steps_that_are_made_again_are_told_and_time_without_anybody_is_recovery():
    scene = trained()
    scene.crash(1).wait(1)
    step, generation = scene.status.step, scene.status.generation
    after = lost(scene, gap=60.0, living=False)
    assert after.status.step == step, "people see how far it was"
    after.train().wait(5)
    beats(after, STEP=5.0)
    (set_back,) = [event for event in after.events if isinstance(event, events.StepsSetBack)]
    assert set_back.reached == step
    seconds = spent(after)
    assert seconds[Bucket.RECOVERY] >= 60.0 and seconds[Bucket.REDONE] > 0
    assert after.status.goodput.worker_seconds[Bucket.MISSING] >= 2 * 60.0
    assert after.status.tally.losses == 1 and after.state.keeping.failures == 1
    assert after.status.generation > generation, "no generation means two rings"


def test_the_time_in_which_a_job_was_stopped_in_order_is_not_its_own():
    scene = trained()
    scene.give(inbox.Stop("suspended")).until(lambda: scene.over)
    after = lost(scene, gap=86_400.0, living=False)
    after.train()
    assert after.status.elapsed < 60.0
    assert after.status.goodput.worker_seconds.get(Bucket.MISSING, 0.0) < 60.0


# ------------------------------------------------------------------------------------------ kept in a cluster


def record(serial: int, text: str = "") -> EventRecord:
    event = events.Noted(NoteKind.NOTICE, text or f"number {serial}")
    return EventRecord(serial, WALL + serial, event.kind, event.text(), event_data.to_data(event))


def left(serial: int) -> Left:
    return Left(serial, leave(trained().state, 1030.0, WALL))


@pytest.fixture
def api():
    api = FakeApi()
    yield api
    api.close()


def pod(api: FakeApi, directory, uid: str) -> PodHistory:
    directory.mkdir()
    return process(api, directory, uid, goes_on=False)


def process(api: FakeApi, directory, uid: str, *, goes_on: bool = True) -> PodHistory:
    """The next one in a pod, whose container was started again."""
    keepsake = KeptInConfigMap(api, "default", "digits", OWNER, uid)
    return PodHistory(directory, goes_on=goes_on, keepsake=keepsake)


def test_the_master_of_another_pod_knows_events_and_sums(api, tmp_path):
    first = pod(api, tmp_path / "a", "first")
    assert (first.known, first.left, first.last_serial) == ([], None, 0)
    for serial in (1, 2):
        first.write(record(serial))
    first.keep(left(2))
    second = pod(api, tmp_path / "b", "second")
    assert [event.serial for event in second.known] == [1, 2] and second.left == left(2)
    assert second.last_serial == 2 + SERIAL_GAP, "the last events of the first may be lost, their numbers not"
    second.write(record(second.last_serial + 1))
    second.keep(left(second.last_serial + 1))
    third = pod(api, tmp_path / "c", "third")
    assert [event.serial for event in third.known] == [1, 2, 2 + SERIAL_GAP + 1]
    (kept,) = api.all("configmaps")
    assert kept["metadata"]["ownerReferences"][0]["kind"] == "TrainingJob", "it goes with the job"


def test_a_master_that_ends_before_its_first_word_loses_nothing_of_the_pod_before_it(api, tmp_path):
    first = pod(api, tmp_path / "a", "first")
    first.write(record(1))
    first.keep(left(2))
    pod(api, tmp_path / "b", "second")
    again = process(api, tmp_path / "b", "second")
    assert again.left is not None and again.left.job == left(2).job
    assert (again.known, again.last_serial) == ([record(1)], 2 + SERIAL_GAP)
    again.write(record(again.last_serial + 1))
    again.keep(left(again.last_serial + 1))
    once_more = process(api, tmp_path / "b", "second")
    assert once_more.last_serial == 2 + SERIAL_GAP + 1, "no number is left free within a pod"


def test_what_could_not_be_read_at_first_is_taken_over_by_the_next_process(api, tmp_path, monkeypatch):
    monkeypatch.setattr(history_module, "TRY_SECONDS", 0.0)
    first = pod(api, tmp_path / "a", "first")
    for serial in range(1, 5):
        first.write(record(serial))
    first.keep(left(4))
    refusal = api.refuse("GET", "configmaps", status=503, times=1)
    second = pod(api, tmp_path / "b", "second")
    assert refusal.fired == 1 and second.left is None
    second.write(record(1, "of the second"))
    second.keep(left(1))
    again = process(api, tmp_path / "b", "second")
    assert again.left == left(4) and again.last_serial == 4 + SERIAL_GAP
    assert again.known == [record(serial) for serial in range(1, 5)], "a number means one event"


def test_within_a_pod_its_own_directory_knows_better_than_an_older_config_map(api, tmp_path):
    first = pod(api, tmp_path / "a", "first")
    first.write(record(1))
    first.keep(left(1))
    first.write(record(2))  # and ends before it is kept
    again = process(api, tmp_path / "a", "first")
    assert (again.known, again.left, again.last_serial) == ([record(1), record(2)], left(1), 2)


def test_a_master_behind_a_broken_network_does_not_write_over_its_successor(api, tmp_path, caplog):
    first = pod(api, tmp_path / "a", "first")
    first.keep(left(1))
    second = pod(api, tmp_path / "b", "second")
    first.keep(left(2))  # between the look of the second and its first word
    second.keep(left(1002))
    first.keep(left(3))
    first.keep(left(4))
    assert "another master keeps the history" in caplog.text
    (kept,) = api.all("configmaps")
    assert kept["metadata"]["annotations"][HOLDER] == "second"
    assert pod(api, tmp_path / "c", "third").left == left(1002)


def test_a_full_disk_does_not_end_the_config_map(api, tmp_path, caplog, monkeypatch):
    first = pod(api, tmp_path / "a", "first")
    first.keep(left(1))

    def full(directory, given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(inheritance, "write_file", full)
    for serial in (2, 3):
        first.keep(left(serial))
    assert caplog.text.count("No space left on device") == 1
    monkeypatch.undo()
    assert process(api, tmp_path / "a", "first").left == left(3), "the newer one counts, in this pod too"


def test_one_that_somebody_deleted_is_made_again(api, tmp_path):
    first = pod(api, tmp_path / "a", "first")
    first.keep(left(1))
    api.remove("/api/v1/namespaces/default/configmaps/elasticdl-digits-01234567-history")
    first.keep(left(2))
    assert pod(api, tmp_path / "b", "second").left == left(2)


def test_a_long_history_is_kept_in_part_and_a_damaged_one_not_at_all(api, tmp_path):
    first = pod(api, tmp_path / "a", "first")
    noise = [f"{number * 7919 % 10**9:x}" * 40 for number in range(12_000)]
    for serial, text in enumerate(noise, start=1):
        first._told.append(record(serial, text))
    first.keep(left(12_000))
    (kept,) = api.all("configmaps")
    assert len(json.dumps(kept)) < 1_000_000, "Kubernetes takes no more"
    second = pod(api, tmp_path / "b", "second")
    assert second.known[-1].serial == 12_000 and second.known[0].serial > 7_000
    path = "/api/v1/namespaces/default/configmaps/elasticdl-digits-01234567-history"
    api.patch(path, {"binaryData": {"events.jsonl.gz": "????", "job.json.gz": "bm9uZQ=="}})
    third = pod(api, tmp_path / "c", "third")
    assert (third.known, third.left) == ([], None)


def many(workers: int) -> Left:
    """A job of so many workers; each spent time on everything."""
    random = Random(0)
    lives = {}
    for worker_id in range(workers):
        uid = f"{random.getrandbits(128):032x}"
        account = goodput.connected(goodput.begin(0.0), worker_id, 1.0, uid=uid)
        ledger = {str(bucket): random.random() * 1e4 for bucket in Bucket}
        account = goodput.heard(account, worker_id, ledger, 1000.0 + random.random())
        if worker_id % 8 == 7:
            account = goodput.gone(account, worker_id, 2000.0)
        lives.update(account.lives)
    return Left(1, replace(NOTHING, account=replace(goodput.begin(0.0), lives=lives)))


def test_the_sums_of_thousands_of_workers_find_room_and_are_written_more_seldom(api, tmp_path):
    first = pod(api, tmp_path / "a", "first")
    given = many(2400)
    rest = first.keep(given)
    (kept,) = api.all("configmaps")
    size = sum(len(base64.b64decode(text)) for text in kept["binaryData"].values())
    assert size + LARGEST_EVENTS < 1024 * 1024, "Kubernetes takes no more, and events need room"
    assert rest == size / BYTES_PER_SECOND
    found = pod(api, tmp_path / "b", "second").left
    assert found is not None and not any(life.gone for life in found.job.account.lives.values())
    assert 0 in found.job.account.lives, "the first of a ring witnesses where the time goes"
    before, after = goodput.report(given.job.account), goodput.report(found.job.account)
    assert after.worker_seconds == pytest.approx(before.worker_seconds) and after.wall == before.wall
    assert len(inheritance.read_file(tmp_path / "a").job.account.lives) == len(given.job.account.lives)


def test_an_event_that_is_too_large_is_left_out():
    noise = Random(0).randbytes(2 * LARGEST_EVENTS).hex()
    assert len(gzip.decompress(_packed_events([record(1, noise)]))) == 0
    assert gzip.decompress(_packed_events([record(1, noise), record(2)])) == event_line(record(2))


def test_who_may_not_keep_a_config_map_trains_without(api, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(history_module, "TRY_SECONDS", 0.0)
    api.refuse("GET", "configmaps", status=403, times=1, words="forbidden")
    history = pod(api, tmp_path / "a", "first")
    history.keep(left(1))
    assert "elasticdl-rbac.yaml" in caplog.text and api.all("configmaps") == []


def test_an_answer_that_nobody_expects_does_not_hold_the_start(api, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(history_module, "TRY_SECONDS", 0.0)
    monkeypatch.setattr(api, "get", lambda path: {})
    history = pod(api, tmp_path / "a", "first")
    assert history.known == [] and "KeyError('metadata')" in caplog.text


def test_whatever_fails_while_it_is_written_ends_neither_the_notary_nor_its_last_word(caplog):
    tries: list[int] = []

    def write(given: Left) -> float:
        tries.append(given.serial)
        raise KeyError("metadata")

    class Hurried(SystemClock):
        def now(self) -> float:
            return 1000.0 * len(tries)

        async def rest(self, seconds: float) -> None:
            await asyncio.sleep(0)

    async def story() -> None:
        notary = Notary(lambda: Left(7, NOTHING), write, clock=Hurried())
        notary.start()
        while len(tries) < 2 and not notary._task.done():
            await asyncio.sleep(0.01)
        await notary.close()

    asyncio.run(story())
    assert len(tries) >= 3 and caplog.text.count("cannot be kept: KeyError('metadata')") == 1


def test_a_master_that_is_asked_to_end_ends_whatever_its_notary_does(monkeypatch):
    class Broken:
        async def close(self) -> None:
            raise KeyError("metadata")

    left_for: list[str] = []
    master = ClusterMaster.__new__(ClusterMaster)
    master.notary = Broken()
    monkeypatch.setattr(master, "_leave", left_for.append)
    asyncio.run(master._end_in_order())
    assert left_for == ["asked to end"]


def test_what_is_left_is_written_soon_after_something_happened_and_once_more_at_the_end():
    written: list[int] = []
    serials = iter(range(1, 100))

    def write(given: Left) -> float:
        written.append(given.serial)
        return 0.0

    async def story() -> None:
        notary = Notary(lambda: Left(next(serials), NOTHING), write)
        notary.start()
        while not written:
            await asyncio.sleep(0.01)
        await notary.close()

    asyncio.run(story())
    assert written == [1, 2]


NOTHING: Inheritance = leave(Scene().state, 0.0, WALL)
