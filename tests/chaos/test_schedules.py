"""Cases follow from their seeds, go through files, and shrink to what still fails."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.campaign import table
from chaos.data import RECORDS, STEPS_PER_EPOCH
from chaos.faults import CONNECTIONS, LETHAL, Kind, Moment, Style, Who, Wire, from_data, instead, to_data
from chaos.schedule import case_of
from chaos.shrink import shrink

SEEDS = range(200)


def test_the_same_seed_gives_the_same_case():
    assert case_of(7) == case_of(7) != case_of(8)


def test_a_case_survives_its_file():
    for seed in SEEDS:
        assert from_data(json.loads(json.dumps(to_data(case_of(seed))))) == case_of(seed)


def test_seeds_cover_every_kind_of_fault_wire_victim_moment_and_style():
    cases = [case_of(seed) for seed in SEEDS]
    faults = [fault for case in cases for fault in case.faults]
    assert {fault.kind for fault in faults} == set(Kind)
    assert {fault.who for fault in faults} == set(Who)
    assert {fault.moment for fault in faults} == set(Moment)
    assert {(f.kind, f.wire) for f in faults if f.wire} == {(k, w) for k in CONNECTIONS for w in Wire if w}
    assert {case.shape.style for case in cases} == set(Style)
    assert {case.shape.careful for case in cases} == {True, False}


def test_where_one_is_spared_no_fault_ends_all():
    for seed in SEEDS:
        case = case_of(seed)
        if case.shape.careful:
            assert not [f for f in case.faults if f.who is Who.ALL and f.kind in LETHAL]
        assert case.shape.steps % STEPS_PER_EPOCH == 0 and RECORDS % case.shape.workers == 0


def test_a_long_storm_has_as_many_faults_as_asked_for_two_seconds_apart():
    case = case_of(3, faults=2000)
    assert len(case.faults) == 2000 and case.shape.careful
    assert 1.7 < case.seconds / 2000 < 2.1


def test_a_fault_that_meets_nobody_has_another_instead():
    for seed in SEEDS:
        for fault in case_of(seed).faults:
            first, *others = instead(fault)
            assert first == fault
            assert others[-1].kind is Kind.RESET and others[-1].who is Who.ALL, "there is always somebody"


@given(st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=24), st.data())
def test_shrinking_finds_exactly_the_faults_that_matter(faults, data):
    needed = data.draw(st.sets(st.sampled_from(faults), min_size=1, max_size=3))
    assert shrink(faults, lambda part: needed <= set(part), tries=1000) == [f for f in faults if f in needed]


@pytest.mark.parametrize("tries", [0, 1, 5])
def test_shrinking_asks_no_more_often_than_it_may(tries):
    asked = []

    def fails(part):
        asked.append(part)
        return {3, 17} <= set(part)

    assert {3, 17} <= set(shrink(range(20), fails, tries))
    assert len(asked) <= tries


def test_the_table_counts_what_happened():
    results = [
        {"faults": [["kill one", "pids [3]"], ["kill one at plan", "pids [4]"], ["freeze all, 2.0 s", ""]]},
        {"faults": [["kill one", "pids [3]"]]},
    ]
    assert table(results)[2:] == ["| kill one | 3 | 2 |"]
