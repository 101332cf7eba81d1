"""The error tree. Each message says what was expected, what was got and what to do.

EdlError
├── UsageError          a flag or an argument is wrong                       exit 2
├── JobFailed           the job ended without its result                     exit 1
├── ModelError          the user's model file does not fit the contract      exit 1
├── DataError           the data cannot be read as asked                     exit 1
│   └── BadRecord       one record is corrupt: file, offset and index known
├── CheckpointError     a checkpoint is torn, corrupt or of another format   exit 1
├── StorageError        object storage did not answer in time                exit 1
│   └── StorageRefused  it answered no: no rights, no such bucket; trying again does not help
│       └── ObjectMissing   there is no such object
├── SetupError          something is missing on this machine                 exit 1
├── ClusterError        Kubernetes did not do what was asked                 exit 1
│   ├── ClusterUnreachable  nobody answers there
│   └── ApiRefused      the API server said no: status, reason and words known
├── RingBroken          a collective failed; the ring must re-form
├── NotFinite           the loss of a step is NaN or infinite, on all ranks
├── StateDiffers        ranks do not hold the same weights; nothing was applied
├── BadMessage          bytes from the other end of a connection are no message of this version
└── MasterUnreachable   nobody answers at the master's address
"""

from __future__ import annotations


class EdlError(Exception):
    """Root of all errors that this package raises on purpose."""

    exit_code = 1


class UsageError(EdlError):
    """A flag or an argument is wrong."""

    exit_code = 2


class JobFailed(EdlError):
    """The job ended without its result; the message carries the reason of each worker."""


class ModelError(EdlError):
    """The user's model file does not fit the contract."""


class DataError(EdlError):
    """The data cannot be read as asked."""


class BadRecord(DataError):
    """One record is corrupt; training may go on without it if the user allowed that."""

    def __init__(
        self,
        message: str,
        *,
        index: int,
        path: str,
        offset: int | None = None,
        lost_with_it: int = 0,
        same: range = range(0),
    ) -> None:
        super().__init__(message)
        self.index = index
        self.path = path
        self.offset = offset
        self.lost_with_it = lost_with_it
        """Records behind it that nobody can find any more, as far as one can tell."""
        self.same = same
        """Further records that are known to be bad for the same reason: nobody need try them one by one."""


class CheckpointError(EdlError):
    """A checkpoint is torn, corrupt or of another format."""


class StorageError(EdlError):
    """Object storage did not do what was asked, although it was asked again for a while."""


class StorageRefused(StorageError):
    """It will not do it the next time either."""


class ObjectMissing(StorageRefused):
    """There is no such object."""


class SetupError(EdlError):
    """Something is missing on this machine; the message names the cure."""


class ClusterError(EdlError):
    """Kubernetes did not do what was asked."""


class ClusterUnreachable(ClusterError):
    """Nobody answers at the API server's address, or not in time."""


class ApiRefused(ClusterError):
    """The API server answered with an error."""

    def __init__(self, message: str, *, status: int, reason: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class RingBroken(EdlError):
    """A collective failed because a peer is gone; the ring must re-form."""


class NotFinite(EdlError):
    """The loss of a step is NaN or infinite. Every rank meets it in the same step, and nothing is applied."""


class StateDiffers(EdlError):
    """Ranks do not hold the same weights. Every rank meets it in the same step, and nothing is applied."""

    def __init__(self, checksums: list[int]) -> None:
        super().__init__("ranks do not hold the same weights")
        self.checksums = checksums
        """Of all ranks, in their order."""


class BadMessage(EdlError):
    """Bytes from the other end of a connection are no message that this version knows."""


class MasterUnreachable(EdlError):
    """Nobody answers at the master's address."""
