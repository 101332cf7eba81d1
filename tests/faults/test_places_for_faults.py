"""The product does not know what ships for tests, unless a test asks for a fault."""

import os
import subprocess
import sys

import pytest

from edl_allreduce.testing import faults
from edl_allreduce.testing.faults import Fault

REACH = """
import sys
from edl_allreduce.faults import reach
reach("ready", worker=1)
print("edl_allreduce.testing.faults" in sys.modules)
"""


def reach(environment):
    return subprocess.run(
        [sys.executable, "-c", REACH], env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_without_a_fault_nothing_is_imported_and_nothing_happens():
    assert reach({}).stdout == "False\n"


@pytest.mark.parametrize(("worker", "crashes"), [(1, True), (2, False)])
def test_a_fault_happens_where_it_was_asked_for_and_leaves_its_proof(tmp_path, worker, crashes):
    done = reach(faults.environment([Fault("ready", "crash", {"worker": worker})], tmp_path))
    assert ("InjectedCrash" in done.stderr) == crashes == bool(done.returncode)
    assert [fired["worker"] for fired in faults.fired(tmp_path)] == ([1] if crashes else [])
