"""Every kind of file that comes from outside: how a sound one is made, and what reads all of it."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from edl_allreduce.data import open_source, read_good
from edl_allreduce.data.datasets import DATASETS
from edl_allreduce.data.recordio import Compressor, RecordIOWriter
from edl_allreduce.data.tfrecord import TFRecordWriter

ROWS = 20
LARGE = 1 << 16
"""Bytes of a file from which on no sample is made: damage must be likely to hit something."""


@dataclass(frozen=True)
class Format:
    """`make` fills a directory and names the files to be damaged; `read` opens and reads all of it."""

    name: str
    make: Callable[[Path], Sequence[Path]]
    read: Callable[[Path], None]
    repair: Callable[[bytes], bytes] = lambda data: data
    """Of damaged bytes: makes their own checksum right again, as somebody would who means harm."""
    native: bool = False
    """Read by a C++ library, which could end the process: damaged in a process of its own."""
    examples: int = 150
    """In each run of the tests."""


# ------------------------------------------------------------------------------------ records and columns


def read_all(folder: Path) -> None:
    """As `data check` does and as training does: strict first, then with what is broken counted."""
    try:
        open_source(str(folder)).close()
    finally:
        source = open_source(str(folder), allow_truncated=True)
        try:
            source.describe(0)
            for start in range(0, len(source), 1024):
                read_good(source, range(start, min(start + 1024, len(source))))
        finally:
            source.close()


def _columns() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    return {
        "x": random.random((ROWS, 3)).astype("float32"),
        "y": np.arange(ROWS),
        "word": np.array([f"w{n}" for n in range(ROWS)]),
    }


def _npy(folder: Path) -> list[Path]:
    paths = []
    for name, array in _columns().items():
        paths.append(folder / f"{name}.npy")
        np.save(paths[-1], array)
    return paths


def _npz(folder: Path) -> list[Path]:
    np.savez(folder / "a.npz", **_columns())
    return [folder / "a.npz"]


def _npz_packed(folder: Path) -> list[Path]:
    np.savez_compressed(folder / "a.npz", **_columns())
    return [folder / "a.npz"]


def _records() -> list[bytes]:
    return [bytes([n]) * (10 * n) + b"record %d" % n for n in range(ROWS)]


def _recordio(compressor: Compressor) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        with RecordIOWriter(folder / "data-00000", compressor=compressor, max_chunk_bytes=700) as writer:
            for record in _records():
                writer.write(record)
        return [folder / "data-00000"]

    return make


def _tfrecord(folder: Path) -> list[Path]:
    with TFRecordWriter(folder / "a.tfrecord") as writer:
        for record in _records():
            writer.write(record)
    return [folder / "a.tfrecord"]


def _array_record(folder: Path) -> list[Path]:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / "a.array_record"), "group_size:1")
    for record in _records():
        writer.write(record)
    writer.close()
    return [folder / "a.array_record"]


def _csv(folder: Path) -> list[Path]:
    lines = ["name,age,note", *(f'n{n},{n},"a ""quoted""\nnote, {n}"' for n in range(ROWS))]
    (folder / "a.csv").write_bytes("\r\n".join(lines).encode())
    return [folder / "a.csv"]


def _parquet(folder: Path) -> list[Path]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {**_columns(), "list": [[n, n + 1] for n in range(ROWS)]}
    columns["x"] = columns["x"][:, 0]
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=8)
    return [folder / "a.parquet"]


PNG = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\0\0\0\0:~\x9bU\0\0\0\nIDATx\x9cc`\0\0\0\2\0\1H\xaf\xa4q\0\0\0\0"
    b"IEND\xaeB`\x82"
)


def _images(folder: Path) -> list[Path]:
    paths = [folder / kind / f"{n}.png" for kind in ("cat", "dog") for n in range(2)]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(PNG)
    return paths


# ------------------------------------------------------------------------------------------------ indexes


def _index_of(make: Callable[[Path], Sequence[Path]]) -> Callable[[Path], list[Path]]:
    def made(folder: Path) -> list[Path]:
        (data,) = make(folder)
        open_source(str(folder)).close()
        return [data.with_name(f".{data.name}.idx")]

    return made


def with_right_checksum(data: bytes) -> bytes:
    """The index as somebody would forge it."""
    head, newline, payload = data.partition(b"\n")
    try:
        header = json.loads(head.removeprefix(b"edl-index-1 "))
        header["crc32"] = zlib.crc32(payload)
    except (ValueError, TypeError, RecursionError):
        return data
    return b"edl-index-1 " + json.dumps(header).encode() + newline + payload


# ------------------------------------------------------------------------------------ original data sets


def load(name: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        splits = DATASETS[name].load(folder)
        for part in (splits.train, splits.test):
            assert len(part["image"]) == len(part["label"])
            assert (part["image"].dtype, part["label"].dtype) == (np.dtype("uint8"), np.dtype("int64"))

    return read


def _digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(count)
    return random.integers(0, 9, (count, 4, 4), np.uint8), random.integers(0, 10, count).astype(np.uint8)


def _mnist_npz(folder: Path) -> list[Path]:
    (x, y), (test_x, test_y) = _digits(12), _digits(3)
    np.savez_compressed(folder / "mnist.npz", x_train=x, y_train=y, x_test=test_x, y_test=test_y)
    return [folder / "mnist.npz"]


def _idx(packed: bool) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        paths = []
        for prefix, count in (("train", 12), ("t10k", 3)):
            for kind, array in zip(("images-idx3", "labels-idx1"), _digits(count), strict=True):
                data = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
                data += array.tobytes()
                paths.append(folder / f"{prefix}-{kind}-ubyte{'.gz' if packed else ''}")
                paths[-1].write_bytes(gzip.compress(data, mtime=0) if packed else data)
        return paths

    return make


_CIFAR = (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")


def _cifar_rows(seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).integers(0, 3, (2, 3073), np.uint8)
    rows[:, 0] = (1, 9)
    return rows


def _cifar_binary(folder: Path) -> list[Path]:
    for number, name in enumerate(_CIFAR):
        (folder / f"{name}.bin").write_bytes(_cifar_rows(number).tobytes())
    return [folder / "data_batch_2.bin", folder / "test_batch.bin"]


def _cifar_tar(folder: Path) -> list[Path]:
    path = folder / "cifar-10-binary.tar.gz"
    with gzip.GzipFile(path, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for number, name in enumerate(_CIFAR):
            data = _cifar_rows(number).tobytes()
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return [path]


def _cifar_tar_bare(folder: Path) -> list[Path]:
    (packed,) = _cifar_tar(folder)
    path = packed.with_suffix("")
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    return [path]


def _cifar_pickles(dump: Callable[[np.ndarray], bytes]) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        for number, name in enumerate(_CIFAR):
            (folder / name).write_bytes(dump(_cifar_rows(number)))
        return [folder / "data_batch_2", folder / "test_batch"]

    return make


def _pickled_today(rows: np.ndarray) -> bytes:
    batch = {
        b"batch_label": b"a batch",
        b"labels": rows[:, 0].tolist(),
        b"data": np.ascontiguousarray(rows[:, 1:]),
        b"filenames": [b"a.png", b"b.png"],
    }
    return pickle.dumps(batch, 4)


def pickled_by_python_2(rows: np.ndarray) -> bytes:
    """Byte for byte as the original files are made, with fewer images."""
    return b"".join(
        (
            b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05(",
            b"".join(b"K" + bytes([label]) for label in rows[:, 0].tolist()),
            b"eU\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\t",
            b"(K\x01K" + bytes([len(rows)]) + b"M\x00\x0c\x86cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b",
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T",
            struct.pack("<I", rows[:, 1:].size),
            rows[:, 1:].tobytes(),
            b"tbU\tfilenamesq\x0c]q\r(U\x05a.pngq\x0eU\x05b.pngq\x0feu.",
        )
    )


# ------------------------------------------------------------------------------------------- checkpoints


def _checkpoint(folder: Path) -> list[Path]:
    from edl_allreduce.worker.checkpoint import format as files

    arrays = [np.full((3, 2), 0.5, "float32"), np.array([], "float32"), np.array(7, "int64")]
    described = [
        files.Variable(name, array.dtype.name, list(array.shape))
        for name, array in zip(("dense/kernel", "empty", "sgd/iteration"), arrays, strict=True)
    ]
    journal = msgspec.convert({}, files.Journal)
    course = files.JobIdentity("digits", seed=0, shuffle=True, records=600, fingerprint="f" * 16)
    snapshot = files.Snapshot(5, 240, journal, described[:2], described[2:], arrays)
    path = files.write(folder, snapshot, course)
    return [path / files.CONTENTS, path / files.STATE, path / files.DONE]


def _read_checkpoint(folder: Path) -> None:
    """A checkpoint is whole or passed over; asked for by name, a broken one is told."""
    from edl_allreduce.worker.checkpoint import format as files
    from edl_allreduce.worker.checkpoint.shelf import DiskShelf, newest

    _, broken = newest(DiskShelf(folder))
    assert all(len(words) > 20 for words in broken)
    files.read(folder / "version-5")


def _read_forged_checkpoint(folder: Path) -> None:
    """With the right checksum of what is in checkpoint.json."""
    path = folder / "version-5"
    (path / "done").write_bytes(str(zlib.crc32((path / "checkpoint.json").read_bytes())).encode())
    _read_checkpoint(folder)


# ------------------------------------------------------------------------------- files of jobs and audits


def _job(folder: Path) -> list[Path]:
    from edl_allreduce.cluster import registry
    from edl_allreduce.core.status import EventRecord
    from tests.terminal.statuses import status

    address = msgspec.convert(
        {
            "job_name": "digits", "address": "127.0.0.1:50001", "token": "t" * 64, "pid": 1 << 22, "ticks": 5,
            "started": 1.7e9, "cwd": str(folder), "mark": "m",
            "flags": ["--job_name=digits", "--audit_dir=audit", "--checkpoint_dir=checkpoints"],
        },
        registry.Address,
    )  # fmt: skip
    directory = folder / "elasticdl" / "jobs" / "digits"
    job = registry.LocalJobFiles(directory)
    job.make_room()
    job.register(address)
    job.write_result(status(phase="Succeeded", reason="all done", metrics={"accuracy": 0.5}))
    events = [EventRecord(n, 1.7e9 + n, "plan", f"generation {n}") for n in range(1, 6)]
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
    (directory / registry.EVENTS).write_bytes(lines)
    (directory / registry.MASTER_LOG).write_text("begun\nended\n")
    return [directory / name for name in (registry.ADDRESS, registry.RESULT, registry.EVENTS)]


COMMANDS = (
    ["status", "--output=json"], ["status"], ["jobs"], ["status", "--job_name=digits"],
    ["events", "--job_name=digits"],
    ["events", "--job_name=digits", "--output=json"], ["status", "--job_name=digits", "--output=json"],
    ["logs", "--job_name=digits", "master"], ["audit", "--job_name=digits"], ["stop", "--job_name=digits"],
)  # fmt: skip


def _read_job(folder: Path) -> None:
    """What every command makes of it. One that is asked about the job may refuse; lists must always work."""
    from edl_allreduce.cli import main as cli
    from edl_allreduce.errors import EdlError

    with _environment(XDG_STATE_HOME=str(folder)):
        for words in COMMANDS:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    cli._dispatch(words)
            except EdlError as error:
                assert "--job_name=digits" in words and len(str(error)) > 20, f"{words}: {error}"


@contextlib.contextmanager
def _environment(**variables: str):
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _audit(folder: Path) -> list[Path]:
    from edl_allreduce.core.audit import Applied, Begin, Fed, Manifest
    from edl_allreduce.worker.loop.diary import Diary

    paths = []
    for rank in range(2):
        diary = Diary(str(folder), rank, f"uid{rank}")
        if rank == 0:
            assert diary.open_run(0, 0) == 0
        diary.write(Begin(1, 0, rank, 2))
        for step in range(3):
            diary.write(Fed(1, step, 0, [4 * step + 2 * rank, 4 * step + 2 * rank + 1]))
            diary.write(Applied(1, step))
        os.close(diary._descriptor)
        paths.append(folder / f"worker-{rank}-uid{rank}.jsonl")
    diary.write_manifest(Manifest(12, finished=True, job_name="digits"))
    return [*paths, folder / "job.json", folder / "run-0.json"]


def _read_audit(folder: Path) -> None:
    from edl_allreduce.cli import main as cli

    with contextlib.redirect_stdout(io.StringIO()):
        assert cli._dispatch(["audit", f"--audit_dir={folder}"]) in (0, 1)


FORMATS = (
    Format("npy", _npy, read_all),
    Format("npz", _npz, read_all),
    Format("npz-compressed", _npz_packed, read_all),
    Format("recordio", _recordio(Compressor.NONE), read_all),
    Format("recordio-snappy", _recordio(Compressor.SNAPPY), read_all),
    Format("recordio-gzip", _recordio(Compressor.GZIP), read_all),
    Format("tfrecord", _tfrecord, read_all),
    Format("csv", _csv, read_all),
    Format("images", _images, read_all),
    Format("parquet", _parquet, read_all, native=True),
    Format("array_record", _array_record, read_all, native=True),
    Format("index-tfrecord", _index_of(_tfrecord), read_all, with_right_checksum),
    Format("index-recordio", _index_of(_recordio(Compressor.SNAPPY)), read_all, with_right_checksum),
    Format("index-csv", _index_of(_csv), read_all, with_right_checksum),
    Format("mnist.npz", _mnist_npz, load("mnist")),
    Format("idx", _idx(packed=False), load("mnist")),
    Format("idx-gz", _idx(packed=True), load("mnist")),
    Format("cifar-binary", _cifar_binary, load("cifar10")),
    Format("cifar-tar", _cifar_tar_bare, load("cifar10")),
    Format("cifar-tar-gz", _cifar_tar, load("cifar10")),
    Format("cifar-pickle", _cifar_pickles(pickled_by_python_2), load("cifar10")),
    Format("cifar-pickle-new", _cifar_pickles(_pickled_today), load("cifar10")),
    Format("checkpoint", _checkpoint, _read_checkpoint),
    Format("checkpoint-forged", _checkpoint, _read_forged_checkpoint),
    Format("job-files", _job, _read_job, examples=40),
    Format("audit-files", _audit, _read_audit),
)
