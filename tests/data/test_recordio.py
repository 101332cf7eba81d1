"""RecordIO: the layout of ElasticDL's files, read and written, with every checksum checked."""

from __future__ import annotations

import gzip
import struct
import threading
import zlib
from pathlib import Path

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.data import open_source, read_good
from edl_allreduce.data import recordio as module
from edl_allreduce.data.recordio import Compressor, RecordIOWriter
from edl_allreduce.errors import BadRecord, DataError

ALL = list(Compressor)


def write(path: Path, records, compressor=Compressor.SNAPPY, max_chunk_bytes=1 << 20) -> Path:
    with RecordIOWriter(path, compressor=compressor, max_chunk_bytes=max_chunk_bytes) as writer:
        for record in records:
            writer.write(record)
    return path


def chunk(records, compressor, pack) -> bytes:
    """A chunk written by hand from the description of the format."""
    stored = pack(b"".join(struct.pack("<I", len(r)) + r for r in records))
    return struct.pack("<5I", 0x01020304, zlib.crc32(stored), compressor, len(stored), len(records)) + stored


@given(
    shards=st.lists(
        st.lists(
            st.one_of(st.binary(max_size=60), st.integers(0, 200_000).map(lambda n: b"ab" * n)), max_size=8
        ),
        min_size=1,
        max_size=3,
    ),
    compressor=st.sampled_from(ALL),
    max_chunk=st.sampled_from([1, 50, 1000, 1 << 20]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_records_in_any_order_come_back_as_written(tmp_path_factory, shards, compressor, max_chunk, data):
    directory = tmp_path_factory.mktemp("round")
    for number, records in enumerate(shards):
        write(directory / f"data-{number:05d}.recordio", records, compressor, max_chunk)
    flat = [record for records in shards for record in records]
    if not flat:
        with pytest.raises(DataError, match="no record"):
            open_source(str(directory))
        return
    source = open_source(str(directory))
    assert len(source) == len(flat)
    for _ in range(2):  # the second time with known chunks
        indices = data.draw(st.lists(st.integers(0, len(flat) - 1), max_size=20))
        assert source.read(indices) == [flat[i] for i in indices]


def go_style_snappy(body: bytes) -> bytes:
    """Each length and each record in frames of their own, as the Go writer leaves them."""
    out = b"\xff\x06\x00\x00sNaPpY"
    at = 0
    while at < len(body):
        (length,) = struct.unpack_from("<I", body, at)
        for piece in (body[at : at + 4], body[at + 4 : at + 4 + length]):
            if piece:
                out += bytes(cramjam.snappy.compress(piece))[10:]
        at += 4 + length
    return out


@pytest.mark.parametrize(
    ("compressor", "pack"),
    [
        (0, bytes),
        (1, lambda body: bytes(cramjam.snappy.compress(body))),
        (1, go_style_snappy),
        (2, gzip.compress),
    ],
    ids=["none", "snappy", "snappy-go", "gzip"],
)
def test_files_written_by_others_are_read(tmp_path, compressor, pack):
    first, second = [b"", b"x" * 300_000, b"", b"y", b""], [b"z" * 70_000, b"\0" * 5]
    (tmp_path / "data-00000").write_bytes(chunk(first, compressor, pack) + chunk(second, compressor, pack))
    source = open_source(str(tmp_path))
    expected = first + second
    for order in ([6, 1, 0, 5, 3, 2, 4, 1], range(7), [4], [2, 2]):
        assert source.read(order) == [expected[i] for i in order]


def test_frames_that_hold_no_data_are_stepped_over(tmp_path):
    def padded(body: bytes) -> bytes:
        framed = bytes(cramjam.snappy.compress(body))
        return framed[:10] + b"\xfe\x05\x00\x00hello" + framed[10:] + b"\x80\x01\x00\x00!" + framed[:10]

    (tmp_path / "a").write_bytes(chunk([b"one", b"two"], 1, padded))
    assert open_source(str(tmp_path)).read([1, 0]) == [b"two", b"one"]


@pytest.mark.parametrize("compressor", ALL)
def test_what_is_written_has_the_described_layout(tmp_path, compressor):
    data = write(tmp_path / "a", [b"abc", b"defg"], compressor).read_bytes()
    magic, crc, stored_compressor, size, count = struct.unpack_from("<5I", data)
    assert (magic, stored_compressor, size, count) == (0x01020304, compressor, len(data) - 20, 2)
    assert zlib.crc32(data[20:]) == crc
    unpack = {0: bytes, 1: lambda b: bytes(cramjam.snappy.decompress(b)), 2: gzip.decompress}[compressor]
    assert unpack(data[20:]) == b"\x03\0\0\0abc\x04\0\0\0defg"


@pytest.mark.parametrize("compressor", ALL)
def test_a_corrupt_chunk_names_file_chunk_and_record(tmp_path, compressor):
    path = write(
        tmp_path / "a.recordio", [b"%04d" % i * 10 for i in range(9)], compressor, max_chunk_bytes=120
    )
    data = bytearray(path.read_bytes())
    second = 20 + struct.unpack_from("<I", data, 12)[0]
    data[second + 25] ^= 0x10
    path.write_bytes(data)
    source = open_source(str(path))
    assert source.read([8, 0]) == [b"0008" * 10, b"0000" * 10]
    pattern = rf"a\.recordio: record 4 at offset {second} \(index 4\) is bad: checksum"
    with pytest.raises(BadRecord, match=pattern) as caught:
        source.read([4, 0])
    assert (caught.value.index, caught.value.offset) == (4, second)
    records, errors = read_good(source, range(9))
    assert records == [b"%04d" % i * 10 for i in (0, 1, 2, 6, 7, 8)]
    assert [error.index for error in errors] == [3, 4, 5]


def test_a_chunk_whose_count_is_wrong_is_bad(tmp_path):
    whole = chunk([b"abc", b"def"], 0, bytes)
    (tmp_path / "more").write_bytes(whole[:16] + struct.pack("<I", 3) + whole[20:])
    (tmp_path / "less").write_bytes(whole[:16] + struct.pack("<I", 1) + whole[20:])
    with pytest.raises(BadRecord, match="promises 3 records and holds 2"):
        open_source(str(tmp_path / "more")).read([0])
    with pytest.raises(BadRecord, match="1 records end at byte 7 of 14"):
        open_source(str(tmp_path / "less")).read([0])


@pytest.mark.parametrize("compressor", [Compressor.NONE, Compressor.SNAPPY])
def test_damage_after_the_chunk_was_checked_is_noticed(tmp_path, compressor):
    path = write(tmp_path / "a", [bytes(range(200)), bytes(range(200))], compressor)
    source = open_source(str(path))
    source.read([0])
    with path.open("r+b") as stream:
        stream.seek(-10, 2)
        stream.write(b"\x55")
    assert source.read([0]) == [bytes(range(200))]
    with pytest.raises(BadRecord, match="record 1 "):
        source.read([1])


@pytest.mark.parametrize(("keep", "lost"), [(-1, 3), (-60, 3), (140, 1)])
def test_a_truncated_file_is_found_when_it_is_opened(tmp_path, keep, lost):
    path = write(tmp_path / "a", [b"x" * 33] * 6, Compressor.NONE, max_chunk_bytes=99)
    offset, whole = 20 + 3 * 37, 3
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=rf"offset {offset}, after {whole} whole records"):
        open_source(str(path))
    source = open_source(str(path), allow_truncated=True)
    assert len(source) == whole + lost
    records, errors = read_good(source, range(len(source)))
    assert len(records) == whole
    assert [error.offset for error in errors] == [offset] * lost


def test_a_lost_mark_is_a_tear(tmp_path):
    path = write(tmp_path / "a", [b"x" * 33] * 6, Compressor.NONE, max_chunk_bytes=99)
    data = bytearray(path.read_bytes())
    data[131:135] = b"\0\0\0\0"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a chunk should begin here.* offset 131, after 3 whole"):
        open_source(str(path))
    source = open_source(str(path), allow_truncated=True)
    _, bad = read_good(source, range(len(source)))
    assert [(b.index, b.lost_with_it) for b in bad] == [(3, 2)] and source.lost_records == 2


def test_the_older_layout_is_recognised_and_refused(tmp_path):
    body = b"\x03\0\0\0abc"
    (tmp_path / "a").write_bytes(struct.pack("<5I", 0x01020304, 1, 0xDEADBEEF, 1, len(body)) + body)
    with pytest.raises(DataError, match="older pure-Python pyrecordio"):
        open_source(str(tmp_path))


def test_memory_for_unpacked_chunks_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CACHE_BYTES", 50_000)
    records = [b"%05d" % i * 1000 for i in range(100)]
    path = write(tmp_path / "a", records, Compressor.GZIP, max_chunk_bytes=10_000)
    source = open_source(str(path))
    assert source.read(range(99, -1, -1)) == records[::-1]
    assert source._cache.weight <= 50_000


def test_several_threads_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CACHE_BYTES", 20_000)
    records = [b"%05d" % i * (i % 50) for i in range(1000)]
    for compressor in ALL:
        write(tmp_path / f"{compressor.name}.recordio", records, compressor, max_chunk_bytes=3000)
    source = open_source(str(tmp_path))
    wrong: list[int] = []

    def reader(seed: int) -> None:
        for step in range(30):
            indices = [(seed * 331 + step * 171 + k * 77) % 3000 for k in range(20)]
            if source.read(indices) != [records[i % 1000] for i in indices]:
                wrong.append(seed)

    threads = [threading.Thread(target=reader, args=(s,)) for s in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_record_larger_than_a_chunk_gets_its_own(tmp_path):
    records = [b"a", b"b" * 5000, b"c"]
    path = write(tmp_path / "a", records, max_chunk_bytes=100)
    assert open_source(str(path)).read([1, 2, 0]) == [records[1], records[2], records[0]]


def test_an_interrupted_writer_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), RecordIOWriter(tmp_path / "a") as writer:
        writer.write(b"x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
