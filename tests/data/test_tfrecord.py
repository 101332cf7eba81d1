"""TFRecord: what was written is read, in any order; what is broken is named."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edl_allreduce.data import files, open_source, read_good
from edl_allreduce.data import tfrecord as module
from edl_allreduce.data.index import sidecar_path
from edl_allreduce.data.tfrecord import TFRecordWriter, build_index
from edl_allreduce.errors import BadRecord, DataError


def write(path: Path, records: list[bytes]) -> Path:
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path


@st.composite
def shards_and_indices(draw: st.DrawFn) -> tuple[list[list[bytes]], list[int]]:
    shards = draw(st.lists(st.lists(st.binary(max_size=200), max_size=8), min_size=1, max_size=4))
    total = sum(map(len, shards))
    indices = draw(st.lists(st.integers(0, total - 1), max_size=20)) if total else []
    return shards, indices


@given(shards_and_indices())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_records_in_any_order_come_back_as_written(tmp_path_factory, case):
    shards, indices = case
    directory = tmp_path_factory.mktemp("round")
    for number, records in enumerate(shards):
        write(directory / f"data-{number:05d}.tfrecord", records)
    flat = [record for records in shards for record in records]
    if not flat:
        with pytest.raises(DataError, match="no record"):
            open_source(str(directory))
        return
    for _ in range(2):  # the second time from the stored index
        source = open_source(str(directory))
        assert len(source) == len(flat)
        assert source.read(indices) == [flat[i] for i in indices]
        source.close()


def test_the_checksum_is_the_masked_crc32c():
    crc = 0x8A9136AA  # of 32 zero bytes, RFC 3720
    assert module.masked_crc(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_the_bytes_are_those_that_tensorflow_writes(tmp_path):
    golden = bytes.fromhex("0500000000000000eab2043e68656c6c6fbb1f1c19000000000000000029039807d8ea82a2")
    assert write(tmp_path / "a.tfrecord", [b"hello", b""]).read_bytes() == golden


def test_neighbours_are_read_together_and_far_records_apart(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tfrecord", [bytes([i]) * 50_000 for i in range(100)])
    source = open_source(str(path))
    reads: list[int] = []
    real = files.pread

    def counting(fd: int, length: int, offset: int) -> bytes:
        reads.append(length)
        return real(fd, length, offset)

    monkeypatch.setattr(files, "pread", counting)
    assert [r[0] for r in source.read([7, 5, 6, 90, 5])] == [7, 5, 6, 90, 5]
    assert len(reads) == 2


def test_reads_stay_bounded_when_everything_is_wanted(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_RUN_BYTES", 1000)
    records = [bytes([i]) * (100 + 50 * i) for i in range(50)]
    source = open_source(str(write(tmp_path / "a.tfrecord", records)))
    lengths: list[int] = []
    real = files.pread
    monkeypatch.setattr(
        files, "pread", lambda fd, length, offset: lengths.append(length) or real(fd, length, offset)
    )
    assert source.read(range(50)) == records
    assert max(lengths) <= max(1000, len(records[-1]) + 16)


def test_several_threads_read_at_once(tmp_path):
    for number in range(5):
        write(tmp_path / f"d-{number}", [b"%d-%d" % (number, i) for i in range(200)])
    source = open_source(str(tmp_path))
    wrong: list[int] = []

    def reader(seed: int) -> None:
        for step in range(50):
            indices = [(seed * 31 + step * 17 + k * 7) % 1000 for k in range(20)]
            if source.read(indices) != [b"%d-%d" % divmod(i, 200) for i in indices]:
                wrong.append(seed)

    threads = [threading.Thread(target=reader, args=(s,)) for s in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_flipped_byte_names_file_record_and_offset(tmp_path):
    path = write(tmp_path / "a.tfrecord", [b"a" * 10, b"b" * 10, b"c" * 10])
    data = bytearray(path.read_bytes())
    data[26 + 12 + 3] ^= 1
    path.write_bytes(data)
    source = open_source(str(path))
    assert source.read([2, 0]) == [b"c" * 10, b"a" * 10]
    with pytest.raises(BadRecord, match=r"a\.tfrecord: record 1 at offset 26 .*checksum") as caught:
        source.read([0, 1, 2])
    assert (caught.value.index, caught.value.offset, caught.value.path) == (1, 26, str(path))


def test_good_records_are_read_around_bad_ones(tmp_path):
    path = write(tmp_path / "a.tfrecord", [b"%d" % i for i in range(10)])
    data = bytearray(path.read_bytes())
    for bad in (2, 7):
        data[17 * bad + 12] ^= 0xFF
    path.write_bytes(data)
    records, errors = read_good(open_source(str(path)), [9, 7, 5, 2, 0, 7])
    assert records == [b"9", b"5", b"0"]
    assert [error.index for error in errors] == [2, 7]


@pytest.mark.parametrize("lost", [1, 4, 10, 20, 25])
def test_a_truncated_file_is_found_when_it_is_opened(tmp_path, lost):
    path = write(tmp_path / "a.tfrecord", [b"x" * 10] * 4)
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(DataError, match=r"a\.tfrecord.*offset 78, after 3 whole records.*max_bad_records"):
        open_source(str(path))


def test_a_tear_counts_as_one_bad_record_where_allowed(tmp_path):
    path = write(tmp_path / "a", [b"x" * 10] * 4)
    path.write_bytes(path.read_bytes()[:-3])
    write(tmp_path / "b", [b"y"] * 2)
    for _ in range(2):
        source = open_source(str(tmp_path), allow_truncated=True)
        assert len(source) == 6
        records, errors = read_good(source, range(6))
        assert records == [b"x" * 10] * 3 + [b"y"] * 2
        assert [(error.index, error.offset) for error in errors] == [(3, 78)]


def test_a_damaged_length_field_is_a_tear(tmp_path):
    path = write(tmp_path / "a.tfrecord", [b"x" * 10] * 4)
    data = bytearray(path.read_bytes())
    data[26:34] = struct.pack("<Q", 11)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"length field .* offset 26, after 1 whole records"):
        open_source(str(path))


def test_what_is_lost_behind_a_damaged_length_field_is_told_in_numbers(tmp_path):
    """Every length is found through the one before: the rest of the file is lost with it."""
    for name in ("a.tfrecord", "b.tfrecord"):
        path = write(tmp_path / name, [b"x" * 10] * 400)
    data = bytearray(path.read_bytes())
    data[100 * 26] ^= 1
    path.write_bytes(data)
    source = open_source(str(tmp_path), allow_truncated=True)
    assert (len(source), source.lost_records) == (501, 299)
    (text,) = source.damage
    assert text.startswith(f"{path}: at offset 2600: the length field of a record does not match")
    assert text.endswith("the last 7800 bytes of the file cannot be read, about 299 more records are lost")
    _, (bad,) = read_good(source, range(501))
    assert (bad.index, bad.lost_with_it) == (500, 299)
    assert "about 299 more records are lost" in str(bad)
    with pytest.raises(DataError, match="about 299 more records are lost"):
        open_source(str(tmp_path))


def test_a_file_that_ends_too_early_has_lost_no_more_than_its_last_record(tmp_path):
    path = write(tmp_path / "a.tfrecord", [b"x" * 10] * 4)
    path.write_bytes(path.read_bytes()[:-3])
    source = open_source(str(path), allow_truncated=True)
    assert (len(source), source.lost_records) == (4, 0)


def test_a_file_that_shrinks_while_open_is_a_bad_record(tmp_path):
    path = write(tmp_path / "a.tfrecord", [b"x" * 10] * 4)
    source = open_source(str(path))
    with path.open("r+b") as stream:
        stream.truncate(50)
    with pytest.raises(BadRecord, match="shorter than when it was opened"):
        source.read([3])


class TestIndex:
    def test_it_is_built_once(self, tmp_path, monkeypatch):
        path = write(tmp_path / "a.tfrecord", [b"x", b"y"])
        open_source(str(path)).close()
        assert sidecar_path(path).exists()
        monkeypatch.setattr(module, "build_index", lambda path: pytest.fail("built again"))
        assert open_source(str(path)).read([1]) == [b"y"]

    def test_it_is_built_again_when_the_file_changed(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [b"x", b"y"])
        open_source(str(path)).close()
        write(path, [b"one", b"two", b"three"])
        assert open_source(str(path)).read([2]) == [b"three"]

    @pytest.mark.parametrize("damage", [b"", b"edl-index-1 {}\n", b"edl-index-1 nonsense", b"\0" * 100])
    def test_a_damaged_one_is_built_again(self, tmp_path, damage):
        path = write(tmp_path / "a.tfrecord", [b"x", b"y"])
        open_source(str(path)).close()
        sidecar_path(path).write_bytes(damage)
        assert open_source(str(path)).read([1]) == [b"y"]

    def test_a_flipped_byte_in_it_is_noticed(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [b"x", b"y"])
        open_source(str(path)).close()
        stored = bytearray(sidecar_path(path).read_bytes())
        stored[-8] ^= 4
        sidecar_path(path).write_bytes(stored)
        assert open_source(str(path)).read([1]) == [b"y"]

    def test_it_goes_to_the_cache_when_the_directory_cannot_be_written(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        path = write(tmp_path / "a.tfrecord", [b"x", b"y"])
        # A directory in the sidecar's place refuses the file even to root.
        sidecar_path(path).mkdir()
        assert open_source(str(path)).read([1]) == [b"y"]
        assert list((tmp_path / "cache" / "edl_allreduce" / "index").glob("*.idx"))
        monkeypatch.setattr(module, "build_index", lambda path: pytest.fail("built again"))
        assert open_source(str(path)).read([0]) == [b"x"]

    def test_nowhere_to_write_is_no_obstacle(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("not a directory")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        path = write(tmp_path / "a.tfrecord", [b"x", b"y"])
        sidecar_path(path).mkdir()
        assert open_source(str(path)).read([1]) == [b"y"]

    def test_many_builders_at_once_leave_one_whole_index(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [b"%d" % i for i in range(500)])
        results: list[int] = []
        threads = [
            threading.Thread(target=lambda: results.append(len(open_source(str(path))))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [500] * 8
        assert sorted(p.name for p in tmp_path.iterdir()) == [".a.tfrecord.idx", "a.tfrecord"]

    def test_records_longer_than_the_scan_window_are_found(self, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "_SCAN_BYTES", 64)
        path = write(tmp_path / "a.tfrecord", [b"x" * n for n in (0, 1, 63, 64, 65, 500, 3, 1000)])
        assert build_index(path).table.size == 9


def test_an_interrupted_writer_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write(b"x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
