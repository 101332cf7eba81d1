"""NumPy sources: columns by name, mapped or loaded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.data import open_source
from edl_allreduce.errors import DataError


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3), data=st.data(), archive=st.booleans())
@settings(max_examples=40, deadline=None)
def test_any_rows_in_any_order_come_back_as_written(tmp_path_factory, lengths, data, archive):
    directory = tmp_path_factory.mktemp("round")
    total = sum(lengths)
    x = np.arange(total * 6, dtype=np.float32).reshape(total, 2, 3)
    y = np.arange(total, dtype=np.int64) * 7
    if archive:
        first = 0
        for number, length in enumerate(lengths):
            part = slice(first, first + length)
            np.savez(directory / f"data-{number:05d}.npz", x=x[part], y=y[part])
            first += length
    else:
        np.save(directory / "x.npy", x)
        np.save(directory / "y.npy", y)
    source = open_source(str(directory))
    assert len(source) == total
    indices = data.draw(st.lists(st.integers(0, total - 1), max_size=10))
    columns = source.read(indices)
    assert isinstance(columns, dict)
    assert list(columns) == ["x", "y"]
    np.testing.assert_array_equal(columns["x"], x[indices] if indices else x[:0])
    np.testing.assert_array_equal(columns["y"], y[indices] if indices else y[:0])
    assert columns["x"].dtype == np.float32
    assert type(columns["x"]) is np.ndarray


def test_parts_in_several_directories_are_one_data_set(tmp_path):
    for part in range(3):
        (tmp_path / str(part)).mkdir()
        np.save(tmp_path / str(part) / "x.npy", np.full((2, 4), part))
        np.save(tmp_path / str(part) / "y.npy", np.array([part, part]))
    source = open_source(str(tmp_path / "*" / "*"))
    assert source.read(range(6))["y"].tolist() == [0, 0, 1, 1, 2, 2]
    assert source.describe(3) == "row 1 of 1/x.npy, 1/y.npy"
    np.save(tmp_path / "2" / "y.npy", np.zeros((2, 2)))
    with pytest.raises(DataError, match="differ from those of"):
        open_source(str(tmp_path / "*" / "*"))


def test_npy_files_are_mapped_and_not_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((10, 4)))
    source = open_source(str(tmp_path))
    base = source._columns["x"]
    while isinstance(base, np.ndarray) and base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_what_was_read_may_be_changed_by_the_caller(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(4))
    source = open_source(str(tmp_path))
    source.read([0, 1])["x"][:] = 5
    assert source.read([0, 1])["x"].tolist() == [0, 0]


def test_columns_are_chosen_by_name(tmp_path):
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros((6, 2)), y_train=np.ones(6), x_test=np.zeros((3, 2)))
    with pytest.raises(DataError, match=r"same number of rows.*x_test has 3 rows.*columns="):
        open_source(str(tmp_path))
    source = open_source(str(tmp_path), params={"columns": "y_train, x_train"})
    assert list(source.read([0])) == ["y_train", "x_train"]
    assert len(source) == 6
    with pytest.raises(DataError, match=r"no column 'z'.*x_train, y_train"):
        open_source(str(tmp_path), params={"columns": "z"})


def test_metadata_and_places_are_told(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 2), np.uint8))
    np.save(tmp_path / "y.npy", np.zeros(3, np.int32))
    source = open_source(str(tmp_path))
    assert source.metadata.column_names == ("x", "y")
    assert dict(source.metadata.column_dtypes) == {"x": "uint8", "y": "int32"}
    assert source.describe(2) == "row 2 of x.npy, y.npy"


def test_the_place_in_several_archives_is_told(tmp_path):
    for n in range(2):
        np.savez(tmp_path / f"{n}.npz", x=np.zeros(3))
    assert open_source(str(tmp_path)).describe(4) == "file 1.npz, record 1"


def test_arrays_of_different_lengths_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    np.save(tmp_path / "y.npy", np.zeros(4))
    with pytest.raises(DataError, match="x has 3 rows, y has 4 rows"):
        open_source(str(tmp_path))


def test_archives_that_differ_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    np.savez(tmp_path / "b.npz", x=np.zeros((3, 2)))
    with pytest.raises(DataError, match=r"b\.npz.*differ from those of"):
        open_source(str(tmp_path))


def test_a_pickle_is_never_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="pickles are never loaded"):
        open_source(str(tmp_path))


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_a_truncated_file_is_named(tmp_path, name):
    path = tmp_path / name
    (np.save if name == "x.npy" else np.savez)(path, np.zeros(1000))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=rf"{name}: is not a whole NumPy file"):
        open_source(str(tmp_path))
