"""What every rank gives a part of is told when it is whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl_allreduce.core.parts import Parts


@given(st.data())
def test_the_whole_is_there_with_the_last_part_in_the_order_of_ranks(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.binary(max_size=5), min_size=1, max_size=6))
    parts = Parts()
    *others, last = data.draw(st.permutations(list(enumerate(values))))
    for number, value in others:
        assert parts.add(1, "key", number, len(values), value) is None
    whole = parts.add(1, "key", last[0], len(values), last[1])
    assert whole is not None
    lengths, _, joined = whole.partition(b"\n")
    assert [int(length) for length in lengths.split()] == [len(value) for value in values]
    assert joined == b"".join(values)


def test_a_part_that_is_sent_again_does_not_count_twice() -> None:
    parts = Parts()
    assert parts.add(1, "key", 0, 2, b"lost") is None
    assert parts.add(1, "key", 0, 2, b"zero") is None
    assert parts.add(1, "key", 1, 2, b"one") == b"4 3\nzeroone"


def test_parts_of_another_generation_are_not_mixed_in() -> None:
    parts = Parts()
    parts.add(1, "key", 0, 2, b"old")
    assert parts.add(2, "key", 1, 2, b"new") is None
    assert parts.add(1, "key", 1, 2, b"late") is None
    assert parts.add(2, "key", 0, 2, b"a") == b"1 3\nanew"
