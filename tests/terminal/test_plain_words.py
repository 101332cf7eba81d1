"""What Gloo says about a lost peer, as people read it."""

from __future__ import annotations

import pytest

from edl_allreduce.core.ring_words import plain, with_workers

PAIR = "[/root/horovod-0.28.1/third_party/compatible17_gloo/gloo/transport/tcp/pair.cc"
SHUT_DOWN = (
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to "
    "allreduce, allgather or broadcast a tensor after one of the ranks finished execution. If the shutdown "
    "was caused by an exception, you should see the exception in the log before the first shutdown message."
)

WORDS = {
    f"{PAIR}:583] Read error [127.0.0.1]:26517: Connection reset by peer (rank 0)":
        "lost the connection to rank 0: connection reset by peer",
    f"{PAIR}:598] Connection closed by peer [10.0.0.7]:41234 (rank 2)":
        "lost the connection to rank 2: it was closed there",
    f"{PAIR}:395] writev [fe80::1%eth0]:40000: Broken pipe (rank 11)":
        "lost the connection to rank 11: broken pipe",
    f"{PAIR}:130] Socket unexpectedly closed [127.0.0.1]:1 (rank 1)":
        "lost the connection to rank 1: it is closed",
    f"{PAIR}:939] Socket closed [127.0.0.1]:1 (rank 1)": "lost the connection to rank 1: it is closed",
    f"{PAIR}:574] Read timeout [127.0.0.1]:1 (rank 1)": "rank 1 did not answer in time",
    f"{PAIR}:370] Write timeout [127.0.0.1]:1 (rank 1)": "rank 1 did not answer in time",
    f"{PAIR}:220] Connect timeout [127.0.0.1]:1 (rank 1)": "rank 1 could not be reached in time",
    f"{PAIR}:799] connect [127.0.0.1]:6321: Connection refused (rank 3)":
        "rank 3 could not be reached: connection refused",
    f"{PAIR}:162] socket: Too many open files (rank 3)": "no connection to rank 3: too many open files",
    f"{PAIR}:504] Aborted on request (rank 0)": "was told to leave the ring",
    "Aborted on request": "was told to leave the ring",
    "[/b/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to complete":
        "another rank did not answer for 30000 ms",
    "Application timeout caused pair closure (rank 2)": "gave up after another rank did not answer in time",
    f"[enforce fail at {PAIR[1:]}:504] op.preamble.length <= op.nbytes. 137876 vs 104852 (rank 1)":
        "rank 1 sent 137876 bytes where 104852 belong: it does not train the same model",
    "[/b/horovod/common/gloo/http_store.cc:88] Wait timeout after 60 seconds for key(s): 3. You may want to "
    "increase the timeout via HOROVOD_GLOO_TIMEOUT_SECONDS":
        "the others did not come to the meeting within 60 s",
    "Rendezvous: GET /edl/3/0 at 127.0.0.1:4711: no answer in time":
        "the ring's members could not be looked up: no answer in time",
    "there are no connections": "there is no ring",
    SHUT_DOWN: "the ring was shut down by another rank's failure",
    f"{SHUT_DOWN} Cause: {PAIR}:583] Read error [127.0.0.1]:26517: Connection reset by peer (rank 0)":
        "lost the connection to rank 0: connection reset by peer",
    f"2 root error(s) found.\n  (0) UNKNOWN: {SHUT_DOWN} Cause: {PAIR}:598] Connection closed by peer "
    "[127.0.0.1]:5 (rank 1)\n\t [[{{node HorovodGroupedAllreduce}}]]\n0 successful operations.":
        "lost the connection to rank 1: it was closed there",
    f"Graph execution error:\n\nat node X\n  (0) UNKNOWN: {PAIR}:598] Connection closed by "
    "peer [127.0.0.1]:5 (rank 1)\n":
        "lost the connection to rank 1: it was closed there",
    "something that no version said before": "something that no version said before",
    "[/b/gloo/new.cc:1] a new trouble (rank 4)": "a new trouble (rank 4)",
    "": "the ring broke without a word",
    "\n \n": "the ring broke without a word",
}  # fmt: skip


@pytest.mark.parametrize(("said", "expected"), WORDS.items())
def test_a_reason_names_the_rank_and_the_cause_and_no_source_file(said, expected):
    assert plain(said) == expected


def test_a_reason_is_no_longer_than_a_line_of_a_log():
    assert len(plain("[/x/pair.cc:1] " + "y" * 1_000_000 + " (rank 1)")) <= 200


def test_a_rank_is_told_with_its_worker():
    reason = "lost the connection to rank 1: connection reset by peer"
    assert (
        with_workers(reason, [4, 7]) == "lost the connection to rank 1 (worker 7): connection reset by peer"
    )


def test_a_rank_that_the_ring_does_not_have_stays_a_rank():
    assert with_workers("rank 5 did not answer in time", [4, 7]) == "rank 5 did not answer in time"


def test_a_worker_is_not_told_twice():
    once = with_workers("rank 0 did not answer in time", [3])
    assert with_workers(once, [3]) == once == "rank 0 (worker 3) did not answer in time"
