"""What a worker says of the exception that ends it."""

from __future__ import annotations

import resource

from edl_allreduce.core import stories
from edl_allreduce.errors import SetupError
from edl_allreduce.rpc import messages


def report(error: BaseException, *, invalid: bool, step: int, whole: bool) -> messages.Failed:
    """For the master. `whole`: with every frame (--full_traceback)."""
    story = stories.tell(error)
    # Whatever comes from outside may be gone the next time; a line of code that raises will do so again.
    weather = isinstance(error, OSError | MemoryError)
    place = "" if weather else f"{story.place}, step {step}"
    return messages.Failed(invalid, story.summary, stories.whole(error) if whole else story.text, place)


def cannot_load_tensorflow(error: Exception) -> SetupError:
    """A library that does not load is the same for every worker of this machine."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    limited = limit != resource.RLIM_INFINITY
    room = (
        f" A process may use {limit / 2**30:.1f} GB of address space here (ulimit -v), and TensorFlow needs "
        "about 5 GB: raise it, or lift it with `ulimit -v unlimited`."
        if limited
        else " If it is a lack of memory, use fewer workers on this machine (--num_workers)."
    )
    return SetupError(f"TensorFlow cannot be loaded: {type(error).__name__}: {error}.{room}")
