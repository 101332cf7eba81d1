"""Which answers of a storage are waited out, for how long, and which end the job; in simulated time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError
from s3fs.errors import translate_boto_error

from edl_allreduce.errors import DataError, StorageError, StorageRefused
from edl_allreduce.storage import remote
from edl_allreduce.storage.remote import Store
from edl_allreduce.storage.url import Url

WHERE = Url("s3", "box/folder/name")


def answer(status: int, code: str) -> Exception:
    """As s3fs raises what S3 said."""
    said = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return translate_boto_error(ClientError(said, "GetObject"))


class Storage:
    """Answers from a list; each request takes `seconds`."""

    async_impl = False

    def __init__(self, *answers: object, seconds: float = 0.0) -> None:
        self.answers = list(answers)
        self.seconds = seconds
        self.time = 0.0
        self.asked = 0

    def _strip_protocol(self, path: str) -> str:
        return path.partition("://")[2]

    def _next(self) -> object:
        self.asked += 1
        self.time += self.seconds
        said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(said, Exception):
            raise said
        return said

    def cat_file(self, path: str, start: int, end: int) -> object:
        return self._next()

    def put_file(self, local: str, path: str) -> object:
        return self._next()

    def info(self, path: str) -> object:
        return self._next()


@pytest.fixture
def storage(monkeypatch):
    def made(*answers: object, seconds: float = 0.0) -> Storage:
        there = Storage(*answers, seconds=seconds)

        def sleep(rest: float) -> None:
            there.time += rest

        monkeypatch.setattr(remote, "clock", SimpleNamespace(now=lambda: there.time, sleep=sleep))
        monkeypatch.setattr(remote, "_file_system", lambda url, parts: there)
        return there

    remote._granted.clear()
    yield made
    remote._granted.clear()


@pytest.mark.parametrize(
    "code",
    ["RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "SlowDown", "InvalidPart"],
)
def test_what_went_wrong_on_the_way_is_asked_again(storage, code):
    there = storage(answer(400, code), b"data")
    assert Store(120).read(WHERE, 0, 4) == b"data"
    assert there.asked == 2


@pytest.mark.parametrize(
    ("status", "code"), [(401, "Unauthorized"), (403, "AccessDenied"), (400, "InvalidBucketName")]
)
def test_a_refusal_is_told_at_once(storage, status, code):
    there = storage(answer(status, code), b"data")
    with pytest.raises(StorageRefused):
        Store(120).read(WHERE, 0, 4)
    assert there.asked == 1


@pytest.mark.parametrize(
    ("status", "code"), [(401, "Unauthorized"), (403, "AccessDenied"), (400, "ExpiredToken")]
)
def test_who_had_the_right_waits_for_its_token(storage, status, code):
    there = storage(b"data", answer(status, code), b"data")
    assert Store(120).read(WHERE, 0, 4) == b"data"
    assert Store(120).read(WHERE.parent / "another", 0, 4) == b"data"
    assert there.asked == 3


def test_a_token_that_never_comes_is_a_crash_and_not_the_end_of_the_job(storage):
    there = storage(b"data", answer(403, "AccessDenied"))
    Store(120).read(WHERE, 0, 4)
    with pytest.raises(StorageError) as told:
        Store(120).read(WHERE, 0, 4)
    assert not isinstance(told.value, StorageRefused)
    assert there.time > 100


def test_to_find_one_object_is_no_right_to_find_its_neighbour(storage):
    there = storage({"type": "file", "size": 4}, answer(403, "AccessDenied"))
    Store(120).look(WHERE)
    with pytest.raises(StorageRefused):
        Store(120).look(WHERE.parent / ".name.idx")
    assert there.asked == 2


def test_a_range_that_an_object_has_no_more_means_that_it_was_replaced(storage):
    there = storage(answer(416, "InvalidRange"), {"type": "file", "size": 3})
    with pytest.raises(
        DataError, match="was replaced while the job reads it: had at least 4 bytes, has 3 now"
    ):
        Store(120).read(WHERE, 0, 4)
    assert there.asked == 2


def test_an_upload_that_takes_long_gets_a_second_attempt(storage, tmp_path):
    (tmp_path / "state").write_bytes(b"data")
    there = storage(OSError("connection reset"), None, seconds=1000)
    Store(120).upload(tmp_path / "state", WHERE)
    assert there.asked == 2


def test_patience_ends(storage):
    there = storage(OSError("connection reset"))
    with pytest.raises(StorageError, match=r"could not be read for 120 s \(connection reset\)"):
        Store(120).read(WHERE, 0, 4)
    assert 100 < there.time <= 120
    assert there.asked > 10
