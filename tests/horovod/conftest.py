from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ring_lab import Lab


@pytest.fixture(scope="session")
def _lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture
def lab(_lab: Lab) -> Iterator[Lab]:
    """Horovod processes on demand; whoever ended otherwise than by our SIGKILL fails the test."""
    yield _lab
    crashed = _lab.crashed()
    _lab.reset()
    assert not crashed, f"workers that ended by themselves: {crashed}"
