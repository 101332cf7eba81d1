"""gs:// through gcsfs, against an emulator of Google's storage that refuses, cuts, delays and dies."""

from __future__ import annotations

import pytest

from edl_allreduce.data.opening import open_source
from edl_allreduce.data.tfrecord import TFRecordWriter
from edl_allreduce.errors import DataError, StorageRefused
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import place
from kubelab.buckets import gcs_environment
from kubelab.servers import gcs_server
from tests.object_storage.test_checkpoints import names, opened, saved

pytestmark = [pytest.mark.programs, pytest.mark.timeout(900)]  # the server is built once

RECORDS = [bytes([number]) * (9000 + 17 * number) for number in range(200)]


@pytest.fixture(scope="session")
def _google(tmp_path_factory):
    with gcs_server(tmp_path_factory.mktemp("gcs"), "records") as server:
        yield server


@pytest.fixture
def gate(_google, gate_to):
    return gate_to(_google, gcs_environment)


@pytest.fixture
def bucket(request, gate):
    return f"gs://records/{request.node.name}"


@pytest.fixture
def data(tmp_path, bucket):
    """Records on a disk and the same in the bucket; nothing of them is in the cache."""
    folder = tmp_path / "data"
    folder.mkdir()
    for shard in range(2):
        with TFRecordWriter(folder / f"data-{shard}.tfrecord") as writer:
            for record in RECORDS[shard::2]:
                writer.write(record)
    for file in folder.iterdir():
        store().upload(file, place(f"{bucket}/{file.name}"))
    source = open_source(bucket)
    assert source.fingerprint == open_source(str(folder)).fingerprint
    for file in (tmp_path / "cache").rglob("*"):
        if file.is_file():
            file.unlink()
    return source


def test_what_is_refused_cut_and_late_comes_in_the_end(data, gate):
    faults = ["503", "cut", "slow"]
    gate.fault = lambda method, path, number: faults.pop() if faults and ".tfrecord" in path else ""
    assert data.read(range(200)) == [*RECORDS[::2], *RECORDS[1::2]]
    assert min(gate.done[fault] for fault in ("503", "cut", "slow")) == 1


def test_a_server_that_is_killed_and_comes_back_is_waited_for(data, gate, _google, dies_until_missed):
    was_missed = dies_until_missed(_google, gate)
    assert data.read(range(200)) == [*RECORDS[::2], *RECORDS[1::2]]
    assert was_missed()


def test_an_object_that_is_replaced_is_an_error_and_never_mixed(data, bucket):
    url = place(f"{bucket}/data-1.tfrecord")
    store().write(url, store().whole(url, 1 << 22)[::-1])
    with pytest.raises(DataError, match="was replaced while the job reads it"):
        data.read(range(200))


def test_checkpoints_are_written_and_read_again_and_old_ones_go(bucket):
    assert [one.error for one in saved(bucket, 10, 20, keep=1)] == ["", ""]
    assert names(bucket) == ["version-20"]
    assert {found.parent.name for found in store().below(place(bucket))} == {"version-20"}
    loaded = opened(bucket).newest()
    assert loaded is not None and (loaded.contents.step, (loaded.arrays[0] == 20).all()) == (20, True)


def test_without_rights_the_message_says_where_credentials_come_from(bucket, gate):
    gate.fault = lambda method, path, number: "403"
    with pytest.raises(StorageRefused, match=r"rights on records\. Credentials are taken from GOOGLE_"):
        open_source(bucket)
    assert gate.done["403"] == 1  # asking again would not help
