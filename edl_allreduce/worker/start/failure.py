"""What a worker says of the exception that ends it."""

from __future__ import annotations

import resource

from edl_allreduce.core import protocol, stories
from edl_allreduce.errors import SetupError, StorageError

PASSING = frozenset({"AbortedError", "DeadlineExceededError", "ResourceExhaustedError", "UnavailableError"})
"""TensorFlow's words for a network or a machine in trouble; TensorFlow itself may not be loaded here."""


def report(error: BaseException, *, invalid: bool, step: int, whole: bool) -> protocol.Failed:
    """For the master. `whole`: with every frame (--full_traceback)."""
    story = stories.tell(error)
    # Whatever comes from outside may be gone the next time; a line of code that raises will do so again.
    weather = isinstance(error, OSError | MemoryError | StorageError) or type(error).__name__ in PASSING
    place = "" if weather else f"{story.place}, step {step}"
    text = stories.whole(error) if whole else story.text
    if not story.own and not invalid:
        text += _room()
    return protocol.Failed(invalid, story.summary, text, place)


def cannot_load(error: Exception) -> SetupError:
    """A library that does not load does not do so for any worker of this machine."""
    return SetupError(f"TensorFlow cannot be loaded: {type(error).__name__}: {error}.{_room()}")


def _room() -> str:
    """A limit that libraries meet in many ways, of which few name it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return (
        f"\nA process may use no more than {limit / 2**30:.1f} GB of memory here (ulimit -v), which is "
        "little for TensorFlow; lift the limit with `ulimit -v unlimited`."
    )
