"""In a rendezvous every rank sets its own keys. A value under another rank's would be its address to all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_allreduce.core.protocol import KvPart, KvSet, Plan, Seat
from edl_allreduce.core.rendezvous import places, refusal

HOSTS = ("a", "a", "b", "a", "b", "c")
PLAN = Plan(3, tuple(Seat(f"uid-{rank}", rank, host) for rank, host in enumerate(HOSTS)))


def test_a_rank_has_its_place_among_all_on_its_host_and_across_hosts() -> None:
    found = [places(PLAN, rank) for rank in range(PLAN.size)]
    assert [place["global"] for place in found] == [(rank, 6) for rank in range(6)]
    assert [found[rank]["local_a"] for rank in (0, 1, 3)] == [(0, 3), (1, 3), (2, 3)]
    assert [found[rank]["cross_0"] for rank in (0, 2, 5)] == [(0, 3), (1, 3), (2, 3)]
    assert [found[rank]["cross_1"] for rank in (1, 4)] == [(0, 2), (1, 2)]
    assert found[3]["cross_2"] == (0, 1)


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
def test_no_two_ranks_have_one_place(hosts: list[str]) -> None:
    plan = Plan(1, tuple(Seat(str(rank), rank, host) for rank, host in enumerate(hosts)))
    taken = [(group, *place) for rank in range(plan.size) for group, place in places(plan, rank).items()]
    assert len(set(taken)) == len(taken) == 3 * plan.size


@pytest.mark.parametrize("rank", range(6))
def test_every_rank_may_set_its_own_keys_and_nobody_elses(rank: int) -> None:
    for other in range(6):
        for group, (number, of) in places(PLAN, other).items():
            said: list[KvSet | KvPart] = [
                KvSet(3, f"/{group}/{number}", b"address"),
                KvSet(3, f"/{group}/rank_{number}", b"host"),
                KvPart(3, f"/{group}/all-{of}", number, of, b"addresses"),
            ]
            for message in said:
                assert bool(refusal(PLAN, f"uid-{rank}", message)) == (rank != other), message


@pytest.mark.parametrize("group", ["global", "local_a", "cross_1"])
def test_in_a_process_set_a_rank_has_its_place_or_a_lower_one(group: str) -> None:
    """Stock Horovod begins with a process set of all ranks."""
    number, of = places(PLAN, 1)[group]
    these = f"/{group}_process_set_hash_7d48533536350577"
    for key in (f"{these}/{number}", f"{these}/rank_{number}", f"{these}/0"):
        assert refusal(PLAN, "uid-1", KvSet(3, key, b"address")) == ""
    assert refusal(PLAN, "uid-1", KvPart(3, f"{these}/all-{of}", number, of, b"addresses")) == ""
    for key in (f"{these}/{number + 1}", f"{these}/01", f"{these}/", f"{these}x/0", f"{these}{these}/0"):
        assert "not its own" in refusal(PLAN, "uid-1", KvSet(3, key, b"address"))
    assert "not its own" in refusal(PLAN, "uid-1", KvPart(3, f"{these}/all-{of}", of, of, b"addresses"))


@pytest.mark.parametrize(
    "message",
    [
        KvSet(3, "/global/all-6", b"all addresses, made up"),
        KvSet(3, "/global/all-6/1", b"a part, not as a part"),
        KvSet(3, "global/1", b""),
        KvSet(3, "x/global/1", b""),
        KvSet(3, "//global/1", b""),
        KvSet(3, "/global/01", b""),
        KvSet(3, "/global", b""),
        KvSet(3, "", b""),
        KvSet(3, "/local_c/0", b""),
        KvSet(3, "/next", b"not a place"),
        KvSet(3, "/here", b"[1,-2]"),
        KvSet(3, "/here", b"[1," + b"9" * 40 + b"]"),
        KvPart(3, "/next", 1, 6, b"[1,2]"),
        KvPart(3, "/global/all-5", 1, 6, b""),
        KvPart(3, "/global/1", 1, 6, b""),
    ],
)
def test_what_no_horovod_of_a_member_says_is_refused(message: KvSet | KvPart) -> None:
    assert "not its own" in refusal(PLAN, "uid-1", message)


@pytest.mark.parametrize("key", ["/next", "/here"])
def test_where_a_ring_begins_is_two_numbers(key: str) -> None:
    assert refusal(PLAN, "uid-1", KvSet(3, key, b"[12,345]")) == ""
