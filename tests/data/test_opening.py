"""What may stand after --training_data, and what is said when it does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.data import open_source
from edl_allreduce.data.source import RecordSource
from edl_allreduce.data.tfrecord import TFRecordWriter
from edl_allreduce.errors import DataError, UsageError


def write(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path


@pytest.fixture
def data(tmp_path):
    write(tmp_path / "d" / "data-00001", b"2", b"3")
    write(tmp_path / "d" / "data-00000", b"0", b"1")
    write(tmp_path / "d" / "data-00002", b"4")
    return tmp_path / "d"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("{d}", b"01234"),
        ("{d}/", b"01234"),
        ("{d}/data-*", b"01234"),
        ("{d}/data-0000[12]", b"234"),
        ("{d}/../d/data-00001", b"23"),
        ("{d}/data-00002,{d}/data-00000", b"401"),
        ("{d}/data-00002, {d}/data-0000[01]", b"40123"),
    ],
)
def test_a_directory_a_glob_a_file_and_a_list_work(data, pattern, expected):
    source = open_source(pattern.format(d=data))
    assert isinstance(source, RecordSource)
    assert b"".join(source.read(range(len(source)))) == expected


def test_a_name_with_a_comma_is_a_file_when_it_exists(tmp_path):
    path = write(tmp_path / "a,b", b"x")
    assert open_source(str(path)).read([0]) == [b"x"]


def test_the_home_directory_is_expanded(data, monkeypatch):
    monkeypatch.setenv("HOME", str(data.parent))
    assert len(open_source("~/d")) == 5


def test_hidden_files_and_companions_are_not_data(data):
    (data / "_SUCCESS").write_text("")
    (data / ".partial").write_text("junk")
    (data / "README.md").write_text("about")
    (data / "dataset_info.json").write_text("{}")
    (data / "more").mkdir()
    assert len(open_source(str(data))) == 5


def test_the_fingerprint_does_not_depend_on_the_place(data, tmp_path):
    before = open_source(str(data)).fingerprint
    data.rename(tmp_path / "elsewhere")
    assert open_source(str(tmp_path / "elsewhere")).fingerprint == before
    assert open_source(str(tmp_path / "elsewhere" / "data-*")).fingerprint == before


def test_the_fingerprint_shows_other_data(data):
    seen = {open_source(str(data)).fingerprint}
    write(data / "data-00002", b"44")
    seen.add(open_source(str(data)).fingerprint)
    (data / "data-00001").rename(data / "data-00009")
    seen.add(open_source(str(data)).fingerprint)
    (data / "data-00009").unlink()
    seen.add(open_source(str(data)).fingerprint)
    assert len(seen) == 4


def test_places_are_described(data):
    source = open_source(str(data))
    assert source.describe(3) == "file data-00001, record 1, offset 17"
    assert source.metadata.kind == "tfrecord"


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_out_of_range_is_refused(data, index):
    with pytest.raises(IndexError, match=f"record {index} .* 0 to 4"):
        open_source(str(data)).read([0, index])


def test_reading_after_close_is_refused(data):
    source = open_source(str(data))
    source.close()
    with pytest.raises(DataError, match="closed"):
        source.read([0])


def test_no_descriptor_is_left_open(data):
    before = len(list(Path("/proc/self/fd").iterdir()))
    source = open_source(str(data))
    source.read(range(5))
    source.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_more_files_than_descriptors_are_read(tmp_path, monkeypatch):
    for number in range(20):
        write(tmp_path / f"{number:02d}", b"%d" % number)
    source = open_source(str(tmp_path))
    source._pool._limit = 3
    assert source.read(range(20)) == [b"%d" % n for n in range(20)]
    assert len(source._pool._fds) <= 3


class TestRefusals:
    def test_a_missing_path(self, tmp_path):
        with pytest.raises(DataError, match=r"no such file or directory.*--volume"):
            open_source(str(tmp_path / "none"))

    def test_a_glob_without_match(self, tmp_path):
        with pytest.raises(DataError, match="no file matches"):
            open_source(str(tmp_path / "*.tfrecord"))

    def test_an_empty_directory(self, tmp_path):
        with pytest.raises(DataError, match="no data files there"):
            open_source(str(tmp_path))

    def test_only_empty_files(self, tmp_path):
        (tmp_path / "data-00000").touch()
        with pytest.raises(DataError, match="all 1 files are empty"):
            open_source(str(tmp_path))

    def test_the_directory_above_the_data(self, data):
        with pytest.raises(DataError, match=r"only directories \(d\); name the one to read"):
            open_source(str(data.parent))

    def test_several_formats_together(self, data):
        np.save(data / "x.npy", np.zeros(3))
        with pytest.raises(DataError, match=r"several formats .*numpy, tfrecord.*reader_type"):
            open_source(str(data))
        assert len(open_source(str(data), params={"reader_type": "TFRecord"})) == 5
        assert len(open_source(str(data), params={"reader_type": "numpy"})) == 3

    def test_an_unknown_file_among_known_ones(self, data):
        (data / "data-00003").write_bytes(b"\xde\xad\xbe\xef" * 10)
        with pytest.raises(DataError, match="data-00003: its format is not recognised"):
            open_source(str(data))

    def test_a_file_compressed_as_a_whole(self, tmp_path):
        (tmp_path / "a.tfrecord.gz").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0")
        with pytest.raises(DataError, match=r"compressed as a whole.*decompress"):
            open_source(str(tmp_path))

    def test_the_same_file_twice(self, data):
        with pytest.raises(DataError, match="named twice"):
            open_source(f"{data},{data}/data-00001")

    def test_a_remote_address(self):
        with pytest.raises(UsageError, match="ftp:// is not known; expected a path, or a URL of s3://"):
            open_source("ftp://host/data")

    def test_a_type_that_nothing_there_has(self, data):
        with pytest.raises(DataError, match="can be read as parquet"):
            open_source(str(data), params={"reader_type": "parquet"})

    @pytest.mark.parametrize(
        ("name", "message"), [("xml", "one of tfrecord, recordio"), ("ODPS", "export the table")]
    )
    def test_an_unknown_type(self, data, name, message):
        with pytest.raises(DataError, match=message):
            open_source(str(data), params={"reader_type": name})


def test_an_empty_file_among_full_ones_has_no_records(data):
    (data / "data-00003").touch()
    write(data / "data-00004", b"5")
    assert len(open_source(str(data))) == 6
