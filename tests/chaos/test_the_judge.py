"""The judge of a campaign catches what was planted, and nothing else: it is the only one who is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chaos import replay
from chaos.data import GLOBAL_BATCH, RECORDS, STEPS_PER_EPOCH
from chaos.diaries import Diary
from chaos.diaries import read as read_diaries
from chaos.faults import Case, Fault, Kind, Shape, Style, Who
from chaos.verdict import Evidence, Sample, Verdict, excuse, judge, two_rings
from edl_allreduce.worker.loop.diary import audit

EPOCHS = 2
STEPS = EPOCHS * STEPS_PER_EPOCH
DEATH = 13
"""The update after which one of the two workers is gone."""
Entry = dict[str, dict[str, object]]


def case(*, careful: bool = True) -> Case:
    return Case(1, Shape(Style.LOCAL, 2, careful, STEPS, 3.0, 40, 0), ())


def batch(step: int) -> list[int]:
    """Another order in each epoch."""
    order = np.random.default_rng(step // STEPS_PER_EPOCH).permutation(RECORDS)
    first = step % STEPS_PER_EPOCH * GLOBAL_BATCH
    return [int(record) for record in order[first : first + GLOBAL_BATCH]]


def begin(generation: int, step: int, size: int, run: int = 0) -> Entry:
    return {"begin": {"generation": generation, "step": step, "rank": 0, "size": size, "run": run}}


def updates(generation: int, steps: range, part: slice) -> list[Entry]:
    lines: list[Entry] = []
    for step in steps:
        facts = {"generation": generation, "step": step}
        epoch = step // STEPS_PER_EPOCH
        lines += [{"fed": {**facts, "epoch": epoch, "records": batch(step)[part]}}, {"applied": facts}]
    return lines


def honest() -> dict[str, list[Entry]]:
    """Two workers; one dies, the other goes on alone."""
    half = GLOBAL_BATCH // 2
    return {
        "worker-0-aaa": [
            begin(1, 0, 2), *updates(1, range(DEATH), slice(half)),
            begin(2, DEATH, 1), *updates(2, range(DEATH, STEPS), slice(None)),
        ],
        "worker-1-bbb": [begin(1, 0, 2), *updates(1, range(DEATH), slice(half, None))],
    }  # fmt: skip


@pytest.fixture
def found(tmp_path: Path) -> Callable[..., Verdict]:
    """The verdict on these diaries, as files, with what else was seen."""

    def verdict(diaries: dict[str, list[Entry]], *, careful: bool = True, **more: object) -> Verdict:
        for name, lines in diaries.items():
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (tmp_path / f"{name}.jsonl").write_text(text)
        weights = replay.train(batch(step) for step in range(STEPS))
        evidence = {"code": 0, "weights": weights, "diaries": read_diaries(tmp_path), **more}
        return judge(case(careful=careful), Evidence(**evidence))  # type: ignore[arg-type]

    return verdict


def test_an_honest_run_has_no_problem(found, tmp_path):
    verdict = found(honest())
    assert verdict.problems == ()
    assert (verdict.steps, verdict.rings, verdict.made_again, verdict.apart) == (STEPS, 2, 0, 0.0)
    manifest = {"dataset": RECORDS, "finished": True}
    (tmp_path / "job.json").write_text(json.dumps(manifest))
    assert audit(str(tmp_path)).clean, "the product's own reader says the same"


def test_a_record_that_is_lost(found):
    planted = honest()
    planted["worker-1-bbb"][5]["fed"]["records"] = planted["worker-1-bbb"][5]["fed"]["records"][1:]
    assert "epoch 0: 1 records never used, 0 used again" in found(planted).problems


def test_a_record_that_is_used_twice(found):
    planted = honest()
    fed = planted["worker-0-aaa"][-2]["fed"]
    fed["records"] = [batch(STEPS - 2)[0], *fed["records"][1:]]
    assert "epoch 1: 1 records never used, 1 used again" in found(planted).problems


def test_a_step_that_is_missing(found):
    planted = honest()
    del planted["worker-0-aaa"][-2:]
    assert f"{STEPS - 1} updates, wanted {STEPS}" in found(planted).problems


def test_a_step_that_is_made_twice(found):
    planted = honest()
    planted["worker-0-aaa"] += updates(2, range(STEPS - 1, STEPS), slice(None))
    problems = found(planted).problems
    assert any("was fed twice" in problem for problem in problems)
    assert any(f"update {STEPS - 1} after {STEPS} updates" in problem for problem in problems)


def test_a_worker_that_is_set_back(found):
    planted = honest()
    again = DEATH - 3
    planted["worker-0-aaa"] = [
        *planted["worker-0-aaa"][: 1 + 2 * DEATH],
        begin(2, again, 1), *updates(2, range(again, STEPS), slice(None)),
    ]  # fmt: skip
    assert f"worker-0-aaa.jsonl: {DEATH} updates, then set back to {again}" in found(planted).problems


def begun_anew() -> dict[str, list[Entry]]:
    """Everybody is lost after update 30; the next run begins at a checkpoint of 20."""
    return {
        "worker-0-aaa": [begin(1, 0, 1), *updates(1, range(30), slice(None))],
        "worker-1-bbb": [begin(2, 20, 1, run=1), *updates(2, range(20, STEPS), slice(None))],
    }


def test_steps_that_are_made_again_are_lost_ones_where_somebody_was_spared(found):
    assert found(begun_anew(), careful=False).problems == ()
    assert found(begun_anew()).problems == (
        "10 updates were lost, although one who had the model was always spared",
    )


def test_an_update_that_only_a_lost_worker_had_applied_is_no_loss(found):
    told = honest()
    told["worker-1-bbb"] += updates(1, range(DEATH, DEATH + 1), slice(GLOBAL_BATCH // 2, None))
    verdict = found(told, harmed={("worker-1-bbb.jsonl", (0, 1)): DEATH + 1})
    assert verdict.problems == () and verdict.made_again == 1


@pytest.mark.parametrize("harmed", [{}, {("worker-1-bbb.jsonl", (0, 1)): DEATH}], ids=["never", "before"])
def test_an_update_that_a_sound_worker_had_applied_is_lost_with_it(found, harmed):
    told = honest()
    told["worker-1-bbb"] += updates(1, range(DEATH, DEATH + 1), slice(GLOBAL_BATCH // 2, None))
    (problem,) = found(told, harmed=harmed).problems
    assert problem.startswith("1 updates were lost")


@pytest.mark.parametrize("last", [{}, {("worker-1-bbb.jsonl", (0, 2)): 9}], ids=["sound", "silenced"])
def test_updates_that_are_lost_within_one_run_when_the_wrong_one_is_given_up(found, last):
    """One is frozen after 5 updates, the other goes on alone to 9; then the first goes on from 5."""
    half = GLOBAL_BATCH // 2
    planted = {
        "worker-0-aaa": [
            begin(1, 0, 2), *updates(1, range(5), slice(half)),
            begin(3, 5, 1), *updates(3, range(5, STEPS), slice(None)),
        ],
        "worker-1-bbb": [
            begin(1, 0, 2), *updates(1, range(5), slice(half, None)),
            begin(2, 5, 1), *updates(2, range(5, 9), slice(None)),
        ],
    }  # fmt: skip
    (problem,) = found(planted, harmed={("worker-0-aaa.jsonl", (0, 1)): 5, **last}).problems
    assert "updates were lost" in problem


def test_members_that_disagree_where_their_ring_began(found):
    planted = honest()
    planted["worker-1-bbb"].append(begin(2, DEATH - 1, 1))
    assert any("members began after" in problem for problem in found(planted).problems)


def test_a_gap_before_a_ring(found):
    planted = begun_anew()
    planted["worker-1-bbb"][0] = begin(2, 31, 1, run=1)
    assert any("began after 31 updates; 30 are known" in p for p in found(planted, careful=False).problems)


@pytest.mark.parametrize("line", ["{", "[]", '{"begin": 1}', '{"said": {"generation": 1}}', "null"])
def test_a_line_that_says_nothing(line):
    diary = Diary("worker-0-aaa.jsonl")
    diary.read(b'{"begin":{"generation":1,"step":0,"rank":0,"size":1,"run":0}}\n' + line.encode() + b"\n")
    assert "says nothing" in diary.problems[0]


def test_a_line_that_a_killed_worker_did_not_finish_is_no_line():
    diary = Diary("worker-0-aaa.jsonl")
    assert diary.read(b'{"begin":{"generation":1,"step":0,"rank":0,"size":1}}\n{"applied":{"gen') == []
    assert diary.problems == [] and diary.ring == (0, 1)
    assert diary.read(b'eration":1,"step":0}}\n') == [((0, 1), 0)], "unless it writes on"


@pytest.mark.parametrize("by", [1e-8, -0.5, float("nan")])
def test_another_weight(found, by):
    weights = replay.train(batch(step) for step in range(STEPS))
    weights[2][1, 0] += by
    assert any("away from that of an undisturbed job" in p for p in found(honest(), weights=weights).problems)


def test_another_order_of_two_updates_is_another_model(found):
    order = [*range(STEPS)]
    order[7], order[8] = order[8], order[7]
    swapped = replay.train(batch(step) for step in order)
    assert any("away from" in problem for problem in found(honest(), weights=swapped).problems)


def test_other_records_than_without_faults(found):
    usual = [sorted(batch(step)) for step in range(STEPS)]
    assert found(honest(), undisturbed=usual).problems == ()
    usual[5], usual[6] = usual[6], usual[5]
    assert found(honest(), undisturbed=usual).problems == (
        "2 updates, from 5 on, are of other records than without faults",
    )


def test_no_model_at_all(found):
    assert any("away from" in problem for problem in found(honest(), weights=None).problems)


def test_a_job_that_fails_or_hangs(found):
    assert found(honest(), code=1, reason="Failed: of itself").problems == (
        "the job ended with 1: Failed: of itself",
    )
    assert found(honest(), code=None, hang="no update for 200 s").problems == (
        "it hangs: no update for 200 s",
    )


def test_a_fault_that_is_held_against_the_job(found):
    blame = [(10.0, "worker 3 exited with 0 before the job was over")]
    (problem,) = found(honest(), blame=blame).problems
    assert problem.startswith("a fault from outside is held against the job: worker 3")


@pytest.mark.parametrize("kind", [Kind.NO_MEMORY, Kind.FULL_DISK])
def test_only_a_fault_that_was_done_before_excuses_what_looks_like_the_jobs_own(found, kind):
    blame = [(10.0, "worker 3 exited with 1")]
    fault = Fault(0.0, kind, Who.ONE, seconds=2.0)
    assert found(honest(), blame=blame, excused=excuse(fault, at=9.0)).problems == ()
    assert len(found(honest(), blame=blame, excused=excuse(fault, at=11.0)).problems) == 1, "later"


def test_a_full_disk_excuses_nothing_long_after_there_is_room(found):
    excused = excuse(Fault(0.0, Kind.FULL_DISK, Who.MACHINE, seconds=2.0), at=9.0)
    assert len(found(honest(), blame=[(500.0, "worker 3 exited with 1")], excused=excused).problems) == 1
    assert excuse(Fault(0.0, Kind.KILL, Who.ONE), at=9.0) == []


def test_a_worker_that_ends_by_itself(found):
    assert found(honest(), crashes=["worker 2 ended by itself with 1"]).problems == (
        "worker 2 ended by itself with 1",
    )


def test_what_is_left_behind(found):
    verdict = found(honest(), processes=["python worker"], ports=[4711], files=["tmp/scratch"])
    assert verdict.problems == (
        "still runs: python worker",
        "port 4711 is still open",
        "left behind: tmp/scratch",
    )


@pytest.mark.parametrize("what", ["descriptors", "threads", "megabytes"])
def test_a_process_that_grows(found, what):
    def sample(number: int, grown: bool) -> Sample:
        size = {"descriptors": 40, "threads": 30, "megabytes": 400.0}
        size[what] *= 1 + number / 10 if grown else 1 + number % 2 / 20
        return Sample(7, **size)  # type: ignore[arg-type]

    assert found(honest(), samples=[sample(number, False) for number in range(40)]).problems == ()
    (problem,) = found(honest(), samples=[sample(number, True) for number in range(40)]).problems
    assert problem.startswith("process 7 grew") and problem.endswith(what)


OLD, NEW = (0, 3), (0, 4)


def test_two_rings_that_train_at_once():
    assert two_rings([(1, "a", OLD), (2, "b", NEW), (4, "a", OLD), (5, "a", OLD)]) == [
        f"two rings at once: a trains in {OLD} while {NEW} trains"
    ]
    assert two_rings([(1, "a", (1, 1)), (4, "b", (0, 9)), (5, "b", (0, 9))]), "a later run counts as newer"


def test_one_ring_after_the_other_is_no_second_ring():
    assert two_rings([(1, "a", OLD), (1, "b", OLD), (2, "a", NEW), (2, "b", OLD), (3, "b", NEW)]) == []
    woken = [(2, "a", NEW), (9, "b", OLD), (10, "b", NEW)]
    assert two_rings([(1, "a", OLD), *woken]) == [], "a frozen one applies its last sum"
