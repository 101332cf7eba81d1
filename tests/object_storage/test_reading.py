"""Records in object storage are those of the same files on a disk, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edl_allreduce.contract import CACHE_GIB, STORAGE_SECONDS
from edl_allreduce.core.course import differences
from edl_allreduce.data.locate import locate
from edl_allreduce.data.opening import open_source
from edl_allreduce.data.recordio import RecordIOWriter
from edl_allreduce.data.tfrecord import TFRecordWriter
from edl_allreduce.errors import DataError, SetupError, StorageError, StorageRefused
from edl_allreduce.storage import blocks, remote
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import Url, place
from edl_allreduce.worker.keras.fingerprint import of_objects

pytestmark = pytest.mark.programs

RECORDS = [bytes([number % 251]) * (3000 + 17 * number) for number in range(400)]


def put(directory: Path, url: str) -> None:
    """All files of a directory, under the same names."""
    for file in directory.rglob("*"):
        if file.is_file() and not file.name.startswith("."):
            target = place(f"{url}/{file.relative_to(directory)}")
            store().upload(file, target)


def tfrecords(directory: Path) -> None:
    for shard in range(2):
        with TFRecordWriter(directory / f"data-{shard}.tfrecord") as writer:
            for record in RECORDS[shard::2]:
                writer.write(record)


def recordio(directory: Path) -> None:
    with RecordIOWriter(directory / "data-0") as writer:
        for record in RECORDS:
            writer.write(record)


def csv(directory: Path) -> None:
    lines = "".join(f"{n},{n * n}\n" for n in range(400))
    (directory / "data.csv").write_text(f"x,y\n{lines}")


def npy(directory: Path) -> None:
    np.save(directory / "x.npy", np.arange(1200.0).reshape(400, 3))


def npz(directory: Path) -> None:
    np.savez(directory / "all.npz", x=np.arange(1200.0).reshape(400, 3), y=np.arange(400))


def parquet(directory: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": range(400)}), directory / "data.parquet", row_group_size=100)


def images(directory: Path) -> None:
    for number in range(20):
        folder = directory / f"class-{number % 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes([number]) * 100)


def array_record(directory: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(directory / "data.array_record"), "group_size:1")
    for record in RECORDS:
        writer.write(record)
    writer.close()


def same(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    return one == other


@pytest.mark.parametrize("write", [tfrecords, recordio, csv, npy, npz, parquet, images, array_record])
def test_every_format_gives_the_records_of_the_local_files(write, tmp_path, bucket):
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder)
    put(folder, bucket)
    local, remote_source = open_source(str(folder)), open_source(bucket)
    order = np.random.default_rng(1).permutation(len(local))
    assert same(local.read(order), remote_source.read(order))
    assert local.fingerprint == remote_source.fingerprint
    assert local.describe(3) == remote_source.describe(3)


def forget(cache: Path) -> None:
    """What is read next comes from the store."""
    for file in cache.rglob("*"):
        if file.is_file():
            file.unlink()


def test_a_glob_and_a_list_name_objects(tmp_path, bucket):
    folder = tmp_path / "data"
    folder.mkdir()
    tfrecords(folder)
    put(folder, bucket)
    everything = open_source(f"{bucket}/*.tfrecord")
    assert len(everything) == 400
    assert len(open_source(f"{bucket}/data-1*")) == 200
    assert open_source(f"{bucket}/data-0.tfrecord,{bucket}/data-1.tfrecord").read([0, 200]) == RECORDS[:2]
    with pytest.raises(DataError, match="no object matches this pattern"):
        open_source(f"{bucket}/*.csv")
    with pytest.raises(DataError, match="named twice"):
        open_source(f"{bucket}/data-0.tfrecord,{bucket}/data-0.tfrecord")


def test_bytes_come_once_and_the_next_process_finds_blocks_and_index(tmp_path, bucket, gate):
    folder = tmp_path / "data"
    folder.mkdir()
    tfrecords(folder)
    put(folder, bucket)
    open_source(bucket).read(range(400))
    fetched = gate.count("GET", "data-0.tfrecord")
    assert 0 < fetched < 10  # several blocks with one request
    source = open_source(bucket)
    assert source.read(range(400))[399] == RECORDS[399]
    assert gate.count("GET", "data-0.tfrecord") == fetched
    assert gate.count("PUT", ".data-0.tfrecord.idx") == 1
    blocks.cache.cache_clear()
    for file in (tmp_path / "home").rglob("*.idx"):
        file.unlink()  # as on another machine
    open_source(bucket)
    assert gate.count("PUT", ".data-0.tfrecord.idx") == 1


def test_refusals_cuts_and_delays_on_the_way_change_nothing(tmp_path, bucket, gate):
    folder = tmp_path / "data"
    folder.mkdir()
    tfrecords(folder)
    put(folder, bucket)
    faults = ["503", "", "cut", "", "slow", ""]
    gate.fault = lambda method, path, number: faults[number % len(faults)]
    source = open_source(bucket)
    assert source.read(range(400)) == [*RECORDS[::2], *RECORDS[1::2]]
    assert min(gate.done[fault] for fault in ("503", "cut", "slow")) > 0


def test_a_server_that_is_killed_and_comes_back_is_waited_for(
    tmp_path, bucket, gate, server, dies_until_missed
):
    folder = tmp_path / "data"
    folder.mkdir()
    tfrecords(folder)
    put(folder, bucket)
    source = open_source(bucket)
    forget(tmp_path / "cache")
    was_missed = dies_until_missed(server, gate)
    assert source.read(range(400)) == [*RECORDS[::2], *RECORDS[1::2]]
    assert was_missed()


def test_an_object_that_is_replaced_is_an_error_and_never_mixed(tmp_path, bucket):
    folder = tmp_path / "data"
    folder.mkdir()
    csv(folder)
    put(folder, bucket)
    source = open_source(bucket)
    forget(tmp_path / "cache")
    target = place(f"{bucket}/data.csv")
    store().write(target, (folder / "data.csv").read_bytes().replace(b"\n7,", b"\n8,"))
    with pytest.raises(DataError, match="was replaced while the job reads it"):
        source.read(range(400))


def test_the_cache_stays_below_its_limit_and_gives_the_right_bytes(tmp_path, bucket, gate, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    content = np.random.default_rng(3).integers(0, 256, 9 << 20, np.uint8).tobytes()
    (folder / "one").write_bytes(content)
    put(folder, bucket)
    monkeypatch.setenv(CACHE_GIB, str(4 / 1024))
    blocks.cache.cache_clear()
    found = store().look(place(f"{bucket}/one"))
    opened = blocks.OpenObject(found)
    for _ in range(2):
        for start in range(0, len(content), 700_000):
            assert opened.pread(1000, start) == content[start : start + 1000]
    kept = sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*") if file.is_file())
    assert kept <= 4 << 20
    with pytest.raises(DataError, match="do not fit into the cache of 4 MiB"):
        opened.local_copy()


def test_reading_straight_on_asks_for_more_and_more(tmp_path, bucket, gate):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "one").write_bytes(bytes(20 << 20))
    put(folder, bucket)
    opened = blocks.OpenObject(store().look(place(f"{bucket}/one")))
    for start in range(0, 20 << 20, 1 << 20):
        opened.pread(1 << 20, start)
    assert gate.count("GET", "/one") <= 6


def test_without_rights_the_message_says_where_credentials_come_from(bucket, gate):
    gate.fault = lambda method, path, number: "403"
    with pytest.raises(StorageRefused, match=r"rights on records\. Credentials are taken from AWS_"):
        open_source(bucket)
    assert gate.done["403"] == 1  # asking again would not help


def test_a_name_that_is_not_there_is_told_at_once(bucket):
    with pytest.raises(DataError, match="no object has this name"):
        open_source(f"{bucket}/nothing")


def test_a_server_that_never_comes_is_given_up_at_the_deadline(bucket, gate, monkeypatch):
    monkeypatch.setenv(STORAGE_SECONDS, "3")
    gate.fault = lambda method, path, number: "503"
    with pytest.raises(StorageError, match=r"could not be listed for 3 s"):
        open_source(bucket)
    assert gate.done["503"] > 1


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch):
    import fsspec

    remote._opened.cache_clear()

    def missing(scheme: str, **options: object) -> None:
        raise ImportError("Install adlfs to access Azure")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(SetupError, match=r"pip install 'edl-allreduce\[azure\]'"):
        store().look(Url("az", "box/name"))


def test_a_listing_of_many_pages_may_take_longer_than_one_request(tmp_path, bucket, gate, monkeypatch):
    for number in range(3):
        store().write(place(f"{bucket}/{number}"), b"")
    monkeypatch.setattr(remote, "ATTEMPT_SECONDS", 0.05)
    gate.fault = lambda method, path, number: "slow"
    assert len(store(0).below(place(bucket))) == 3
    assert gate.done["slow"] > 0


@pytest.mark.parametrize("write", [tfrecords, csv, npy, parquet, images])
def test_a_worker_that_finds_another_version_differs_from_the_rest(write, tmp_path, bucket):
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder)
    put(folder, bucket)
    first, same_again = open_source(bucket), open_source(bucket)
    assert of_objects(first) == of_objects(same_again) != {}
    assert of_objects(open_source(str(folder))) == {}
    found = next(one for one in store().below(place(bucket)) if not one.name.startswith("."))  # no index
    data = bytearray(store().read(found, 0, found.size))
    data[-1] ^= 1
    store().write(found.url, bytes(data))
    files = locate(bucket, None).files  # of the same names and sizes
    assert differences(of_objects(first), of_objects(SimpleNamespace(files=files))) == (
        "versions of the data's objects"
    )
