"""Readers of model files: runs of records turned into random access."""

from __future__ import annotations

import pytest

from edl_allreduce.errors import DataError, ModelError
from edl_allreduce.worker.keras.reader import open_custom


class Reader:
    """Two shards; the second begins at 5."""

    def __init__(self, path, **params):
        self.params = params
        self.asked = []

    def create_shards(self):
        return [("a", 0, 2000), ("b", 5, 10)]

    def read_records(self, task):
        shard = task.shard
        self.asked.append((shard.name, shard.start, shard.end))
        for i in range(shard.start, shard.end):
            yield f"{shard.name}{i}".encode()


def test_records_are_found_by_index():
    source = open_custom(Reader, "path", {"columns": "x"})
    assert len(source) == 2010
    assert source.read([2009, 0, 1999, 2000]) == [b"b14", b"a0", b"a1999", b"b5"]
    assert source.describe(2001) == "shard b, record 6"


def test_runs_are_read_once_while_they_are_needed():
    reader = Reader("path")
    source = open_custom(lambda path, **params: reader, "path", {})
    for index in (1, 1500, 2, 1501, 2005):
        source.read([index])
    assert reader.asked == [("a", 0, 1024), ("a", 1024, 2000), ("b", 5, 15)]


def test_all_workers_agree_on_the_data_by_its_shards():
    assert open_custom(Reader, "x", {}).fingerprint == open_custom(Reader, "y", {}).fingerprint


def test_shards_may_be_a_dictionary_and_records_rows():
    class Rows(Reader):
        def create_shards(self):
            return {"t": (0, 3)}

        def read_records(self, task):
            return ({"x": i, "y": [i, i]} for i in range(task.shard.start, task.shard.end))

    records = open_custom(Rows, "t", {}).read([2, 0])
    assert isinstance(records, dict)
    assert records["x"].tolist() == [2, 0] and records["y"].tolist() == [[2, 2], [0, 0]]


def test_a_reader_that_gives_too_little_is_named():
    class Short(Reader):
        def read_records(self, task):
            return iter([b"one"])

    with pytest.raises(DataError, match=r"gave 1 records of a for \[0, 1024\), expected 1024"):
        open_custom(Short, "p", {}).read([0])


def test_what_is_no_reader_is_refused():
    with pytest.raises(ModelError, match="gave a int without create_shards"):
        open_custom(lambda origin: 3, "p", {})
