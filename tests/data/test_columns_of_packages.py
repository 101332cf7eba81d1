"""Parquet and ArrayRecord: formats of other packages behind the same interface."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.data import open_source, read_good
from edl_allreduce.errors import BadRecord, DataError


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3), group=st.integers(1, 5), data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_parquet_rows_in_any_order_come_back_as_written(tmp_path_factory, lengths, group, data):
    directory = tmp_path_factory.mktemp("round")
    x, v, s = [], [], []
    for number, length in enumerate(lengths):
        first = len(x)
        ids = range(first, first + length)
        x += ids
        v += [[i, i + 0.5] for i in ids]
        s += [b"%d" % i for i in ids]
        table = pa.table({"x": x[first:], "v": v[first:], "s": s[first:]})
        pq.write_table(table, directory / f"{number}.parquet", row_group_size=group)
    source = open_source(str(directory))
    indices = data.draw(st.lists(st.integers(0, len(x) - 1), max_size=12))
    columns = source.read(indices)
    assert columns["x"].tolist() == indices
    np.testing.assert_array_equal(columns["v"], np.array(v)[indices] if indices else np.empty((0, 2)))
    assert columns["s"].tolist() == [b"%d" % i for i in indices]


def test_parquet_columns_are_chosen_and_described(tmp_path):
    pq.write_table(pa.table({"a": [1, 2], "b": [0.5, 1.5], "c": ["x", "y"]}), tmp_path / "d.parquet")
    source = open_source(str(tmp_path), params={"columns": "c,a"})
    assert list(source.read([1])) == ["c", "a"]
    assert dict(source.metadata.column_dtypes) == {"c": "string", "a": "int64"}
    assert source.describe(1) == "file d.parquet, record 1"
    with pytest.raises(DataError, match="no column 'z'"):
        open_source(str(tmp_path), params={"columns": "z"})


def test_a_null_is_a_bad_record_but_nan_is_a_number(tmp_path):
    pq.write_table(pa.table({"a": [1, None, 3], "f": [0.5, 1.0, None]}), tmp_path / "d.parquet")
    source = open_source(str(tmp_path))
    with pytest.raises(BadRecord, match=r"d\.parquet: record 1 \(index 1\) is bad: column a is null"):
        source.read([0, 1])
    columns, errors = read_good(source, [2, 1, 0])
    assert columns["a"].tolist() == [3, 1]
    assert np.isnan(columns["f"][0])
    assert len(errors) == 1


def test_parquet_files_that_differ_are_refused(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "2.parquet")
    with pytest.raises(DataError, match=r"2\.parquet: its columns \(a: string\) differ"):
        open_source(str(tmp_path))


def test_lists_of_different_lengths_are_refused(tmp_path):
    pq.write_table(pa.table({"a": [[1], [1, 2]]}), tmp_path / "1.parquet")
    with pytest.raises(DataError, match="different lengths"):
        open_source(str(tmp_path)).read([0])


def test_a_truncated_parquet_file_is_found_when_it_is_opened(tmp_path):
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"1\.parquet: is not a whole Parquet file"):
        open_source(str(tmp_path))


def write_array_record(path, records):
    writer = ArrayRecordWriter(str(path), "group_size:2")
    for record in records:
        writer.write(record)
    writer.close()


@given(
    shards=st.lists(st.lists(st.binary(max_size=50), min_size=1, max_size=6), min_size=1, max_size=3),
    data=st.data(),
)
@settings(max_examples=30, deadline=None)
def test_any_array_records_in_any_order_come_back_as_written(tmp_path_factory, shards, data):
    directory = tmp_path_factory.mktemp("round")
    for number, records in enumerate(shards):
        write_array_record(directory / f"{number}.array_record", records)
    flat = [record for records in shards for record in records]
    source = open_source(str(directory))
    indices = data.draw(st.lists(st.integers(0, len(flat) - 1), max_size=12))
    assert source.read(indices) == [flat[i] for i in indices]
    source.close()


def test_array_records_are_read_by_several_threads(tmp_path):
    records = [b"%d" % i * 20 for i in range(500)]
    write_array_record(tmp_path / "a.array_record", records)
    source = open_source(str(tmp_path))
    wrong: list[int] = []

    def reader(seed: int) -> None:
        for step in range(20):
            indices = [(seed * 31 + step * 17 + k * 7) % 500 for k in range(20)]
            if source.read(indices) != [records[i] for i in indices]:
                wrong.append(seed)

    threads = [threading.Thread(target=reader, args=(s,)) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert source.describe(7) == "file a.array_record, record 7"


def test_a_corrupt_array_record_is_named(tmp_path):
    path = tmp_path / "a.array_record"
    written = [np.random.default_rng(i).bytes(3000) for i in range(10)]
    write_array_record(path, written)
    data = bytearray(path.read_bytes())
    data[data.index(written[5]) + 100] ^= 0xFF
    path.write_bytes(data)
    source = open_source(str(path))
    records, errors = read_good(source, range(10))
    bad = [error.index for error in errors]
    assert 5 in bad
    assert all(str(path) in str(error) for error in errors)
    assert records == [written[i] for i in range(10) if i not in bad]
    source.close()


def test_a_file_that_is_no_array_record_is_refused(tmp_path):
    (tmp_path / "a.array_record").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(DataError, match="is not a whole ArrayRecord file"):
        open_source(str(tmp_path))
