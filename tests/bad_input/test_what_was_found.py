"""Input that once ended in a traceback, a hang, a crash or gigabytes of memory, each by its name."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import struct
import threading
import zipfile
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edl_allreduce.cli import main as cli
from edl_allreduce.core.protocol import Hello, Seat
from edl_allreduce.data import limits, open_source, read_good, recordio
from edl_allreduce.data.datasets import DATASETS
from edl_allreduce.data.numpy_files import map_array
from edl_allreduce.data.recordio import Compressor, RecordIOWriter
from edl_allreduce.errors import BadMessage, CheckpointError, DataError, UsageError
from edl_allreduce.reading import small_file
from edl_allreduce.rpc import codec
from edl_allreduce.spec import parse_job
from edl_allreduce.worker.checkpoint import format as checkpoint
from edl_allreduce.worker.checkpoint.shelf import DiskShelf, newest
from tests.bad_input.bounds import bounded
from tests.bad_input.formats import FORMATS, pickled_by_python_2
from tests.bad_input.texts import TRAIN

FORMAT = {form.name: form for form in FORMATS}


def made(name: str, folder: Path) -> list[Path]:
    return list(FORMAT[name].make(folder))


# ---------------------------------------------------------------------------------------------- RecordIO


def two_chunks(folder: Path, compressor: Compressor) -> Path:
    with RecordIOWriter(folder / "data-00000", compressor=compressor, max_chunk_bytes=500) as writer:
        for number in range(10):
            writer.write(b"%03d" % number * 30)
    return folder / "data-00000"


@pytest.mark.parametrize("compressor", list(Compressor))
@pytest.mark.parametrize("bit", [31, 20])
def test_a_flipped_bit_in_the_number_of_records_asks_for_nothing(tmp_path, compressor, bit):
    path = two_chunks(tmp_path, compressor)
    data = bytearray(path.read_bytes())
    (count,) = struct.unpack_from("<I", data, 16)
    struct.pack_into("<I", data, 16, count ^ 1 << bit)
    path.write_bytes(data)
    with bounded():
        source = open_source(str(path))
        assert len(source) == 1 + 10 - count
        records, bad = read_good(source, range(len(source)))
    assert records == [b"%03d" % number * 30 for number in range(count, 10)]
    assert [error.index for error in bad] == [0]
    assert "names more records than its" in str(bad[0])


def test_a_torn_chunk_that_claims_billions_of_records_counts_as_one(tmp_path):
    path = two_chunks(tmp_path, Compressor.NONE)
    data = bytearray(path.read_bytes()[:-5])
    second = 20 + struct.unpack_from("<I", data, 12)[0]
    struct.pack_into("<II", data, second + 12, 0xFFFFFFFF, 4_000_000_000)
    path.write_bytes(data)
    with bounded():
        source = open_source(str(path), allow_truncated=True)
        _, bad = read_good(source, range(len(source)))
    assert len(bad) == 1 and bad[0].lost_with_it > 0


def chunk(stored: bytes, compressor: Compressor, count: int) -> bytes:
    header = struct.pack("<5I", recordio.MAGIC, zlib.crc32(stored), compressor, len(stored), count)
    return header + stored


def test_a_gzip_chunk_that_unpacks_to_gigabytes_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(recordio, "CHUNK_BYTES", 16 << 20)
    bomb = gzip.compress(bytes(4 << 20), mtime=0) * 250  # members one after the other: 1 GB
    (tmp_path / "a.recordio").write_bytes(chunk(bomb, Compressor.GZIP, 5))
    with bounded():
        _, bad = read_good(open_source(str(tmp_path)), range(5))
    assert len(bad) == 5 and "it unpacks to more than 16 MiB" in str(bad[0])


def test_a_snappy_frame_that_claims_gigabytes_is_told(tmp_path):
    frame = b"\x00\x0a\x00\x00" + bytes(4) + b"\xff\xff\xff\xff\x0f" + b"\0"
    (tmp_path / "a.recordio").write_bytes(chunk(b"\xff\x06\x00\x00sNaPpY" + frame, Compressor.SNAPPY, 1))
    with bounded():
        _, bad = read_good(open_source(str(tmp_path)), [0])
    assert "at most 65536 are allowed" in str(bad[0])


def test_a_broken_chunk_of_many_records_fails_once(tmp_path):
    """Each bad record was tried again with all that were behind it: a second per thousand."""
    body = bytes(4 * 50_000)
    data = bytearray(chunk(body, Compressor.NONE, 50_000))
    data[25] ^= 1
    (tmp_path / "a.recordio").write_bytes(data)
    source = open_source(str(tmp_path))
    with bounded():
        found = [
            error
            for at in range(0, 50_000, 1024)
            for error in read_good(source, range(at, min(at + 1024, 50_000)))[1]
        ]
    assert [error.index for error in found] == list(range(50_000))


def test_a_record_that_readers_would_not_unpack_is_stored_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(recordio, "CHUNK_BYTES", 200_000)
    records = [b"small", bytes(300_000), b"after"]
    with RecordIOWriter(tmp_path / "a.recordio") as writer:
        for record in records:
            writer.write(record)
    assert open_source(str(tmp_path)).read([0, 1, 2]) == records


# ------------------------------------------------------------------------------------------------- NumPy


def npy(header: str, payload: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + payload


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,", "not that of a plain array"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,), }", "promises"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-3, -4), }", "not that of a plain array"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }", "not that of a plain array"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,), }", "rows are all empty"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 0), }", "rows are all empty"),
        ("{'descr': '<f99', 'fortran_order': False, 'shape': (1,), }", "unknown type"),
        ("(" * 9000, "not that of a plain array"),
        ("{'descr': __import__('os').abort(), 'fortran_order': False, 'shape': (1,), }", "plain array"),
    ],
    ids=["torn", "huge", "negative", "objects", "no-width", "no-columns", "no-type", "deep", "code"],
)
def test_a_header_of_numpy_that_lies_is_told(tmp_path, header, words):
    (tmp_path / "x.npy").write_bytes(npy(header, bytes(12)))
    with bounded(), pytest.raises(DataError, match=rf"x\.npy: is not a whole NumPy file .*{words}"):
        open_source(str(tmp_path))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">i8", "?", "S3", "U2", "<M8[ns]", "c16", "f2"])
def test_sound_arrays_are_read_as_numpy_reads_them(tmp_path, order, dtype):
    array = np.arange(24).reshape(4, 3, 2).astype(dtype, order=order)
    np.save(tmp_path / "x.npy", array)
    np.testing.assert_array_equal(map_array(tmp_path / "x.npy"), np.load(tmp_path / "x.npy"))
    np.savez_compressed(tmp_path / "x.npz", x=array)
    (tmp_path / "x.npy").unlink()
    got = open_source(str(tmp_path)).read([2, 0])
    np.testing.assert_array_equal(got["x"], array[[2, 0]])


def test_headers_of_python_2_and_of_other_writers_are_read(tmp_path):
    header = '{"shape": (2L, 1L), "fortran_order": False, "descr": "<i2"}'
    (tmp_path / "x.npy").write_bytes(npy(header, b"\1\0\2\0"))
    assert map_array(tmp_path / "x.npy").tolist() == [[1], [2]]


def test_an_archive_that_unpacks_to_too_much_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "UNPACKED_BYTES", 1 << 20)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1 << 20))
    with pytest.raises(DataError, match=r"claim to unpack to \d+, at most 1048576 .*belong into \.npy"):
        open_source(str(tmp_path))


def test_an_archive_packed_in_another_way_is_told(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.write(tmp_path / "x.npy", "x.npy")
    with pytest.raises(DataError, match=r"x\.npy is packed in a way that numpy\.savez does not know"):
        open_source(str(tmp_path / "a.npz"))


# ------------------------------------------------------------------------------------- original data sets


@pytest.mark.parametrize("kept", [0, 10, 0.5, -1])
def test_a_download_of_mnist_that_was_cut_off_is_told(tmp_path, kept):
    (path,) = made("mnist.npz", tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    with pytest.raises(DataError, match=r"mnist\.npz: is not a whole NumPy file"):
        DATASETS["mnist"].load(tmp_path)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x_train": np.zeros((2, 4, 4), "u1")}, "has no column 'y_train'"),
        ({"x_train": np.zeros((2, 4), "u1")}, "expected images of 3 dimensions"),
        ({"y_train": np.zeros(3, "u1")}, "and as many labels"),
        ({"y_train": np.array(["a", "b"])}, "expected whole numbers"),
    ],
    ids=["missing", "flat", "lengths", "words"],
)
def test_a_file_that_is_called_mnist_and_is_not_is_told(tmp_path, arrays, words):
    sound = {
        "x_train": np.zeros((2, 4, 4), "u1"), "y_train": np.zeros(2, "u1"),
        "x_test": np.zeros((2, 4, 4), "u1"), "y_test": np.zeros(2, "u1"),
    }  # fmt: skip
    np.savez(
        tmp_path / "mnist.npz", **(arrays if "missing" in words or "no column" in words else sound | arrays)
    )
    with pytest.raises(DataError, match=words):
        DATASETS["mnist"].load(tmp_path)


def test_an_idx_file_that_unpacks_to_gigabytes_is_told(tmp_path, monkeypatch):
    from edl_allreduce.data import datasets

    monkeypatch.setattr(datasets, "UNPACKED_BYTES", 1 << 20)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(2 << 20)))
    with pytest.raises(DataError, match=r"cannot be decompressed .it unpacks to more than 1 MiB"):
        DATASETS["mnist"].load(tmp_path)


def test_dimensions_whose_product_overflows_are_told(tmp_path):
    made("idx", tmp_path)
    huge = b"\0\0\x08\x03" + struct.pack(">3I", 1 << 31, 1 << 31, 4)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(huge)
    with pytest.raises(DataError, match=r"promises .* and holds 0"):
        DATASETS["mnist"].load(tmp_path)


CIFAR_ROWS = np.ones((2, 3073), np.uint8)
NESTED = b"\x80\x02(" + b"q\x00h\x00h\x00\x86" * 60  # a tuple of two of the tuple before, sixty times


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\x02cos\nsystem\nU\x04true\x85R.", "it asks for os.system"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "not made as the files of CIFAR-10"),
        (b"\x80\x02}" + b"N" + NESTED[3:] + b"K\x01s.", "cannot be read"),
        (b"\x80\x02" + b"]q\x00" * 20_000 + b"a" * 19_999 + b".", "does not hold a dictionary"),
        (pickled_by_python_2(CIFAR_ROWS).replace(b"U\x02u1", b"U\x02O8"), "not one array of bytes"),
        (pickled_by_python_2(CIFAR_ROWS).replace(b"(K\x01K\x02M", b"(K\x01K\x7fM"), "not one array of bytes"),
        (b"\x80\x02Peverything\n.", "it uses PERSID"),
    ],
    ids=["code", "memo", "nested-keys", "deep", "dtype", "shape", "persistent"],
)
def test_a_pickle_that_is_no_file_of_images_is_told(tmp_path, data, words):
    made("cifar-pickle", tmp_path)
    (tmp_path / "data_batch_1").write_bytes(data)
    with bounded(), pytest.raises(DataError, match=rf"data_batch_1: cannot be read.*{words}|{words}"):
        DATASETS["cifar10"].load(tmp_path)


def test_an_error_does_not_quote_a_whole_file(tmp_path):
    made("cifar-pickle", tmp_path)
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02c" + b"x" * 50_000 + b"\nsystem\n.")
    with pytest.raises(DataError, match="it asks for xxx") as told:
        DATASETS["cifar10"].load(tmp_path)
    assert len(str(told.value)) < 1000


# -------------------------------------------------------------------------------------- files and indexes


@pytest.mark.parametrize("name", ["index-tfrecord", "index-recordio", "index-csv"])
def test_a_forged_index_is_built_again(tmp_path, name):
    (path,) = made(name, tmp_path)
    sound = open_source(str(tmp_path)).read(range(20))
    head, _, payload = path.read_bytes().partition(b"\n")
    table = np.frombuffer(payload, "<i8").copy()
    table[len(table) // 2] += 1 << 40
    header = json.loads(head.removeprefix(b"edl-index-1 "))
    header["crc32"] = zlib.crc32(table.tobytes())
    path.write_bytes(b"edl-index-1 " + json.dumps(header).encode() + b"\n" + table.tobytes())
    with bounded():
        assert open_source(str(tmp_path)).read(range(20)) == sound


def test_an_index_of_a_terabyte_is_not_read(tmp_path):
    (path,) = made("index-tfrecord", tmp_path)
    os.truncate(path, 1 << 40)
    with bounded():
        assert len(open_source(str(tmp_path))) == 20


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.csv")
    with bounded(), pytest.raises(DataError, match="is neither a file nor a directory"):
        open_source(str(tmp_path / "a.csv"))
    with bounded(), pytest.raises(OSError, match="not a regular file"):
        small_file(tmp_path / "a.csv")


def test_links_that_lead_back_are_followed_once(tmp_path):
    made("images", tmp_path)
    for name in ("one", "two"):
        (tmp_path / "cat" / name).symlink_to(tmp_path / "cat")
    with bounded():
        assert len(open_source(str(tmp_path))) == 4


# ------------------------------------------------------------------------- checkpoints, jobs and audits


@pytest.mark.parametrize(
    ("field", "value"),
    [("dtype", "O"), ("dtype", "nonsense"), ("dtype", "f4,f4"), ("shape", [-3, -2]), ("shape", [1 << 62, 8])],
)
def test_a_checkpoint_of_impossible_variables_is_passed_over(tmp_path, field, value):
    contents, _, done = made("checkpoint", tmp_path)
    older = tmp_path / "version-4"
    older.mkdir()
    for path in contents.parent.iterdir():
        (older / path.name).write_bytes(path.read_bytes())
    tree = json.loads(contents.read_bytes())
    tree["model"][0][field] = value
    contents.write_text(json.dumps(tree))
    done.write_bytes(str(zlib.crc32(contents.read_bytes())).encode())
    with bounded():
        loaded, broken = newest(DiskShelf(tmp_path))
        assert loaded is not None and loaded.path == older and len(broken) == 1
        with pytest.raises(CheckpointError, match="version-5"):
            checkpoint.read(tmp_path / "version-5")


@pytest.mark.parametrize(
    "line", [b"garbage\n", b'{"serial": "x"}\n', b"\xff\xfe\n", b'{"a":' * 5000 + b"\n"],
    ids=["garbage", "types", "no-utf-8", "deep"],
)  # fmt: skip
def test_one_bad_line_does_not_hide_the_events_of_a_job(tmp_path, monkeypatch, capsys, line):
    events = made("job-files", tmp_path)[2]
    first, *rest = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join([first, line, *rest]))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert cli.main(["events", "--job_name=digits"]) == 0
    shown = capsys.readouterr().out
    assert "line 2 of events.jsonl cannot be read" in shown
    assert [f"generation {n}" in shown for n in (1, 3, 4, 5)] == [True] * 4
    assert cli.main(["status"]) == 0


@pytest.mark.parametrize(
    "change", [{"started": 1e300}, {"started": -1e18}, {"pid": 10**30}, {"flags": ["--help"]}]
)
def test_one_odd_job_does_not_hide_the_others(tmp_path, monkeypatch, capsys, change):
    address = made("job-files", tmp_path)[0]
    other = address.parent.with_name("other")
    other.mkdir()
    (other / "job.json").write_bytes(address.read_bytes().replace(b'"digits"', b'"other"'))
    address.write_text(json.dumps(json.loads(address.read_bytes()) | change))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert cli.main(["status"]) == 0
    assert "other" in capsys.readouterr().out
    (address.parent / "result.msgpack").unlink()
    assert cli.main(["audit", "--job_name=digits"]) in (1, 2)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", [b"garbage\n", b"\xff\n", b'{"fed": {"generation": 1}}\n', b"[" * 5000 + b"\n"]
)
def test_a_diary_with_a_line_that_says_nothing_is_not_clean(tmp_path, capsys, line):
    diary = made("audit-files", tmp_path)[0]
    lines = diary.read_bytes().splitlines(keepends=True)
    diary.write_bytes(b"".join([*lines[:2], line, *lines[2:]]))
    assert cli.main(["audit", f"--audit_dir={tmp_path}"]) == 1
    shown = capsys.readouterr().out
    assert "NOT CLEAN" in shown and "worker-0-uid0.jsonl: line 3 cannot be read" in shown


def test_an_audit_of_no_records_is_told(tmp_path, capsys):
    manifest = made("audit-files", tmp_path)[2]
    manifest.write_text('{"dataset": 0}')
    assert cli.main(["audit", f"--audit_dir={tmp_path}"]) == 1
    assert "speaks of a data set of 0 records" in capsys.readouterr().err


def test_a_run_of_another_name_in_an_audit_is_nobodys(tmp_path):
    made("audit-files", tmp_path)
    (tmp_path / "run-of-luck.json").write_text("{}")
    assert cli.main(["audit", f"--audit_dir={tmp_path}"]) == 0


def test_a_file_of_a_job_that_is_far_too_large_is_not_read(tmp_path, monkeypatch):
    address = made("job-files", tmp_path)[0]
    os.truncate(address, 1 << 40)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with bounded():
        assert cli.main(["status"]) == 0


# ------------------------------------------------------------------------------------- flags and messages


@pytest.mark.parametrize(
    "word",
    [
        '--cluster_spec_json={"pod_spec":{"env":{"A":"b"}}}',
        '--cluster_spec_json={"pod_spec":{"env":[{"name":[]}]}}',
        '--cluster_spec_json={"pod_spec":{"labels":{"a":1}}}',
        "--cluster_spec_json=" + '{"pod_spec":' * 3000,
        "--worker_resource_request=cpu=" + "9" * 5000,
        "--populate_env_names=" + "(" * 5000,
        "--populate_env_names=a{99999999999999999999}",
        "--num_workers=" + "9" * 5000,
    ],
    ids=[
        "env-object",
        "env-name",
        "label-number",
        "deep",
        "digits",
        "pattern-deep",
        "pattern-count",
        "number",
    ],
)
def test_a_flag_that_is_wrong_is_told(word):
    flag = word.partition("=")[0]
    with bounded(), pytest.raises(UsageError, match=flag):
        parse_job("train", [*TRAIN, "--image_name=image", word])


def test_a_port_of_many_digits_is_told():
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_job("worker", ["--master_addr=localhost:" + "9" * 5000])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x92\xa5Hello",
        b"\x92\xa5Hello" + b"\x81\xa1x" + b"\x91" * 100_000,
        msgspec.msgpack.encode(("Hello", {"seat": 5})),
        msgspec.msgpack.encode(("os.system", "true")),
        b"\x92\xa5H\xffllo\x80",
    ],
    ids=["empty", "invalid", "cut", "deep", "types", "unknown", "no-utf-8"],
)
def test_bytes_that_are_no_message_are_told(data):
    with bounded(), pytest.raises(BadMessage, match="are no message of version"):
        codec.decode_from_worker(data)


def test_a_worker_that_talks_garbage_has_hung_up_and_leaves_no_traceback(caplog):
    """It has the token; the others must not notice."""
    import grpc

    from edl_allreduce.rpc.client import _channel
    from edl_allreduce.rpc.server import SERVICE, MasterServer

    heard: list[object] = []
    ended = threading.Event()

    async def attend(requests, peer):
        async for message in requests:
            heard.append(message)
        ended.set()
        for nothing in ():
            yield nothing

    async def answer(message):
        raise AssertionError("nobody asked")

    async def serve(stop: asyncio.Event, port: list[int], ready: threading.Event) -> None:
        server = MasterServer("secret", attend, answer)
        port.append(await server.start("127.0.0.1", 0))
        ready.set()
        await stop.wait()
        await server.stop(0)

    loop, stop, port, ready = asyncio.new_event_loop(), asyncio.Event(), [], threading.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(stop, port, ready),), daemon=True)
    thread.start()
    assert ready.wait(30)
    token = [("authorization", "Bearer secret")]
    with _channel(f"127.0.0.1:{port[0]}", "secret", "") as channel:
        call = channel.stream_stream(f"/{SERVICE}/Attend")
        assert list(call(iter([codec.encode(Hello(Seat("u", 1, "h"))), b"garbage"]), metadata=token)) == []
        assert ended.wait(30) and len(heard) == 1
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(f"/{SERVICE}/Command")(b"garbage", metadata=token, timeout=30)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(f"/{SERVICE}/Command")(b"garbage", timeout=30)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    assert "are no message of version" in caplog.text and "Traceback" not in caplog.text
