"""The only module that talks to object storage, through fsspec: requests, made again while that may help.

What the libraries raise is sorted once, here: no such object, no rights, or weather. Weather is waited for,
up to a deadline. Credentials are found by the libraries; nothing of them passes through this package.
"""

from __future__ import annotations

import functools
import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, TypeVar

from edl_allreduce import clock, outside
from edl_allreduce.contract import STORAGE_SECONDS
from edl_allreduce.errors import (
    DataError,
    EdlError,
    ObjectMissing,
    SetupError,
    StorageError,
    StorageRefused,
    UsageError,
)
from edl_allreduce.storage.url import EXTRAS, Object, Url

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_SECONDS: Final = 120.0
"""How long a request that fails is made again, from its first failure on; it gets a second attempt whatever
the first one took. Stores that restart or shed load are back after less."""
ATTEMPT_SECONDS: Final = 60.0
"""How long one request for little may take; nobody waits for an answer that was lost."""
SLOWEST: Final = 1 << 20
"""Bytes per second of a link that is still worth waiting for."""
LISTING_SECONDS: Final = 3600.0
"""How long a listing may take, which comes in pages of a thousand names; each page has the limit of the
library, a minute without a byte with S3."""
_FIRST_REST: Final = 0.1
_LONGEST_REST: Final = 5.0
_PIECE: Final = 16 << 20
_NO_SUCH_RANGE: Final = 416

_ATTEMPTS: Final = 3
"""Of the library, for each part of what has many: an upload, or a listing, need not begin anew for one. For
all else one layer that tries again is enough, and it has a deadline: ours."""
_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, ~/.aws, or the role of the pod or "
    "machine",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default login`, or the service account "
    "of the pod or machine",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or a connection string, or the identity "
    "of the pod or machine",
    "hdfs": "the user of this process, HADOOP_USER_NAME, or a Kerberos ticket",
    "memory": "",
}
_VERSIONS: Final = (
    "generation",
    "ETag",
    "etag",
    "md5Hash",
    "mtime",
    "last_modified",
    "LastModified",
    "created",
)
"""What tells two contents of one name apart, by the words of each library; the first that is there counts."""

_REFUSED_NAMES: Final = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "DefaultCredentialsError"}
    | {"ClientAuthenticationError", "CredentialUnavailableError", "ParamValidationError"}
)
"""Errors of the libraries, which may not be loaded here, that another attempt does not change."""
_REFUSED_CODES: Final = frozenset({"InvalidBucketName", "KeyTooLongError", "EntityTooLarge"})
"""The same of S3's answers with status 400; its others (a slow body, a wrong digest) are weather."""

_granted: Final[set[tuple[str, Url]]] = set()
"""What this process was allowed to do, and where: a refusal there is a token that is being renewed."""


class _Kind(Enum):
    MISSING = auto()
    FORBIDDEN = auto()
    REFUSED = auto()
    WEATHER = auto()


class Store:
    """What can be asked of object storage; `patience` is for each request."""

    def __init__(self, patience: float) -> None:
        self._patience = patience

    # ---------------------------------------------------------------------------------------------- reading

    def look(self, url: Url) -> Object:
        """The object as it is now; ObjectMissing when there is none."""

        def ask(files: Any, path: str) -> Object:
            info = self._call(files, "info", path)
            if info["type"] != "file":
                raise FileNotFoundError(path)
            return _object(url, info)

        return self._patiently("found", url, ask)

    def exists(self, url: Url) -> bool:
        try:
            self.look(url)
        except ObjectMissing:
            return False
        return True

    def read(self, url: Url, start: int, stop: int) -> bytes:
        """Exactly these bytes of an object that has them; DataError when it has them no more."""

        def ask(files: Any, path: str) -> bytes:
            data = b""
            try:
                data = self._call(files, "cat_file", path, start=start, end=stop, size=stop - start)
            except Exception as error:
                if _status(error) != _NO_SUCH_RANGE:
                    raise
            if len(data) == stop - start:
                return data
            now = int(self._call(files, "info", path)["size"])
            if now < stop:
                raise DataError(
                    f"{url}: was replaced while the job reads it: had at least {stop} bytes, has {now} now; "
                    "data must stay as it is while a job runs. Start the job again"
                )
            raise OSError(f"{stop - start} bytes were asked for, {len(data)} came")

        return self._patiently("read", url, ask) if stop > start else b""

    def whole(self, url: Url, limit: int) -> bytes:
        """All of a small object."""
        size = self.look(url).size
        if size > limit:
            raise StorageRefused(f"{url}: has {size} bytes, at most {limit} are expected there")
        return self.read(url, 0, size)

    def below(self, url: Url) -> list[Object]:
        """Every object whose name begins with this one and a slash, or the one that has exactly this name."""

        def ask(files: Any, path: str) -> list[Object]:
            found: dict[str, Any] = self._call(files, "find", path, detail=True, limit=LISTING_SECONDS)
            named = ((_relative(path, name), info) for name, info in found.items())
            return sorted(
                _object(url / relative if relative else url, info)
                for relative, info in named
                if relative is not None and info["type"] == "file" and not (relative == "" and len(found) > 1)
            )

        try:
            return self._patiently("listed", url, ask, parts=True)
        except ObjectMissing:
            return []

    def download(self, found: Object, path: Path) -> None:
        """All of an object into a file, piece by piece."""
        with path.open("wb") as file:
            for start in range(0, found.size, _PIECE):
                file.write(self.read(found, start, min(found.size, start + _PIECE)))

    # ---------------------------------------------------------------------------------------------- writing

    def write(self, url: Url, data: bytes) -> None:
        """Replace an object as a whole."""
        self._patiently(
            "written",
            url,
            lambda files, path: self._call(files, "pipe_file", path, data, size=len(data)),
        )

    def upload(self, local: Path, url: Url) -> None:
        """The same with a file."""
        size = local.stat().st_size
        self._patiently(
            "written",
            url,
            lambda files, path: self._call(files, "put_file", str(local), path, size=size),
            parts=True,
        )

    def delete(self, urls: Iterable[Url]) -> None:
        """One after the other; one that is gone already is no error."""
        for url in urls:
            try:
                self._patiently("deleted", url, lambda files, path: self._call(files, "rm_file", path))
            except ObjectMissing:
                continue

    # --------------------------------------------------------------------------------------------- requests

    def _call(
        self,
        files: Any,
        name: str,
        *arguments: Any,
        size: int = 0,
        limit: float = ATTEMPT_SECONDS,
        **options: Any,
    ) -> Any:
        """One request. Libraries that work asynchronously get a limit, so that none is waited for in vain."""
        if not files.async_impl:
            return getattr(files, name)(*arguments, **options)
        from fsspec.asyn import sync

        seconds = limit + size / SLOWEST
        return sync(files.loop, getattr(files, f"_{name}"), *arguments, timeout=seconds, **options)

    def _patiently(self, done: str, url: Url, ask: Callable[[Any, str], T], *, parts: bool = False) -> T:
        """`parts`: one call is many requests, of which the library makes each again."""
        deadline: float | None = None
        for rest in _rests():
            files = _file_system(url, parts)
            path: str = files._strip_protocol(str(url))  # what every method of fsspec calls first
            try:
                answer = ask(files, path)
            except (AttributeError, EdlError, ImportError, TypeError):
                raise  # a mistake in a program, or told already
            except Exception as error:
                match _kind(error):
                    case _Kind.MISSING:
                        raise ObjectMissing(f"{url}: there is no such object or bucket") from error
                    case _Kind.REFUSED:
                        raise StorageRefused(_refusal(done, url, error)) from error
                    case _Kind.FORBIDDEN if not _was_granted(done, url):
                        raise StorageRefused(_refusal(done, url, error)) from error
                    case _Kind.FORBIDDEN:
                        _opened.cache_clear()  # the next client looks for credentials anew
                if deadline is None:
                    deadline = clock.now() + self._patience
                elif clock.now() + rest > deadline:
                    raise StorageError(
                        f"{url}: could not be {done} for {self._patience:.0f} s ({_words(error)}); check "
                        f"that the storage can be reached from here ({STORAGE_SECONDS} says how long to try)"
                    ) from error
                log.info("%s: not %s (%s); once more in %.1f s", url, done, _words(error), rest)
            else:
                _grant(done, url)
                return answer
            clock.sleep(rest)
        raise AssertionError("the rests between attempts never end")


def _grant(done: str, url: Url) -> None:
    url = Url(url.scheme, url.path)  # an Object is not equal to its name
    if done in ("found", "read"):
        _granted.add((done, url))
    if done != "found":
        _granted.add((done, url.parent))


def _was_granted(done: str, url: Url) -> bool:
    """Rights go by folders. Where listing is forbidden, S3 calls forbidden what is only missing: to look for
    one object proves nothing about its neighbour."""
    url = Url(url.scheme, url.path)
    if done == "found":
        return not _granted.isdisjoint({("found", url), ("read", url)})
    return not _granted.isdisjoint({(done, url.parent), (done, url.parent.parent)})


def store(patience: float | None = None) -> Store:
    """With the patience of this process unless another is given."""
    return Store(_patience() if patience is None else patience)


def _patience() -> float:
    given = os.environ.get(STORAGE_SECONDS, "")
    try:
        return float(given) if given else PATIENCE_SECONDS
    except ValueError:
        raise UsageError(f"{STORAGE_SECONDS}={given}: expected a number of seconds") from None


def _file_system(url: Url, parts: bool) -> Any:
    # The name of a Hadoop is in the URL; buckets of the others share one client.
    return _opened(url.scheme, str(url) if url.scheme == "hdfs" else "", _ATTEMPTS if parts else 1)


@functools.lru_cache(maxsize=16)
def _opened(scheme: str, address: str, attempts: int) -> Any:
    extra = EXTRAS[scheme]
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if scheme == "s3":
        options["config_kwargs"] = {"retries": {"total_max_attempts": attempts}}
    try:
        import fsspec

        if address:
            files, _ = fsspec.core.url_to_fs(address)
        else:
            files = fsspec.filesystem(scheme, **options)
    except ImportError as error:
        raise SetupError(
            f"{scheme}:// needs a library that is not installed ({outside.line(error)}); install it with: "
            f"pip install 'edl-allreduce[{extra}]'"
        ) from error
    except (OSError, ValueError) as error:
        raise StorageRefused(f"{scheme}:// cannot be opened: {_words(error)}") from error
    if scheme == "s3":
        files.retries = attempts
    for talkative in ("gcsfs", "s3fs", "aiobotocore", "azure"):  # what they raise is told once, by us
        logging.getLogger(talkative).setLevel(logging.CRITICAL)
    return files


def _object(url: Url, info: Mapping[str, Any]) -> Object:
    mark = next((f"{info[name]}" for name in _VERSIONS if info.get(name) is not None), "")
    return Object.at(url, int(info["size"]), mark.strip('"'))


def _relative(path: str, name: str) -> str | None:
    """The name of what was found below `path`; None for what only begins alike."""
    base, whole = path.strip("/"), name.strip("/")
    if whole == base:
        return ""
    return whole[len(base) + 1 :] if whole.startswith(f"{base}/") else None


def _rests() -> Iterator[float]:
    """Longer and longer; by chance, so that a hundred workers do not come back at the same moment."""
    longest = _FIRST_REST
    while True:
        yield longest * random.uniform(0.5, 1.0)
        longest = min(_LONGEST_REST, 2 * longest)


def _kind(error: BaseException) -> _Kind:
    """What an error of any of these libraries means for the next attempt."""
    match _status(error):
        case 404:
            return _Kind.MISSING
        case 401 | 403:
            return _Kind.FORBIDDEN
    if isinstance(error, FileNotFoundError):
        return _Kind.MISSING
    if isinstance(error, PermissionError):
        return _Kind.FORBIDDEN
    if {kind.__name__ for kind in type(error).__mro__} & _REFUSED_NAMES or _code(error) in _REFUSED_CODES:
        return _Kind.REFUSED
    if type(error) is OSError and error.errno is None and str(error).startswith("Forbidden"):
        return _Kind.FORBIDDEN  # gcsfs has no other sign for a 403
    return _Kind.WEATHER


def _status(error: BaseException) -> int | None:
    """The HTTP status that the server answered with, where the library tells one."""
    for name in ("status_code", "status", "code"):  # azure, aiohttp, gcsfs
        code = getattr(error, name, None)
        if isinstance(code, int):
            return code
    code = _s3_answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return code if isinstance(code, int) else None


def _code(error: BaseException) -> str:
    """S3's own word for it."""
    return str(_s3_answer(error).get("Error", {}).get("Code", ""))


def _s3_answer(error: BaseException) -> Mapping[str, Any]:
    for seen in (error, error.__cause__):  # s3fs wraps what botocore says
        answer = getattr(seen, "response", None)
        if isinstance(answer, dict):
            return answer
    return {}


def _refusal(done: str, url: Url, error: BaseException) -> str:
    where = _CREDENTIALS[url.scheme]
    cure = f"; check the rights on {url.bucket}. Credentials are taken from {where}" if where else ""
    return f"{url}: cannot be {done} ({_words(error)}){cure}"


def _words(error: BaseException) -> str:
    return outside.line(str(error) or type(error).__name__, 200)
