from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ring_lab import Lab, lent


@pytest.fixture(scope="session")
def _lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture
def lab(_lab: Lab) -> Iterator[Lab]:
    """Horovod processes on demand."""
    with lent(_lab) as lab:
        yield lab
