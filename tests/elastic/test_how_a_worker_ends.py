"""What the code of a worker that ended says: who is asked to leave has not failed."""

from __future__ import annotations

import pytest

from edl_allreduce.contract import EXIT_EVICTED, EXIT_FAILED, EXIT_TERMINATED
from edl_allreduce.worker.loop.orders import Ending
from edl_allreduce.worker.main import exit_code


@pytest.mark.parametrize(
    ("ending", "told", "draining", "code"),
    [
        (Ending.RELEASED, True, False, 0),
        (Ending.RELEASED, True, True, 0),
        (Ending.EVICTED, True, True, EXIT_EVICTED),
        (Ending.LEFT, True, True, 0),
        (Ending.LEFT, False, True, EXIT_TERMINATED),
        (Ending.ABANDONED, False, False, EXIT_FAILED),
        (Ending.ABANDONED, False, True, EXIT_TERMINATED),
    ],
)
def test_a_worker_ends_with_the_code_of_what_happened(ending, told, draining, code):
    assert exit_code(ending, told=told, draining=draining) == code
