"""What `elastic.fit` reads its records from."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from edl_allreduce.worker.fit.call import _sources

pytestmark = pytest.mark.tensorflow


class OneReader:
    """Records from something that has one place to read from, as a file has."""

    def __init__(self) -> None:
        self.first_is_in, self.another_came = threading.Event(), threading.Event()
        self.inside = 0
        self.most = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.first_is_in.is_set():
            self.another_came.set()
        else:
            self.first_is_in.set()
            self.another_came.wait(0.5)  # nobody comes when all is well
        self.inside -= 1
        return np.zeros(2, "float32"), number


@pytest.mark.parametrize("validates", [False, True])
def test_records_are_read_by_one_thread_at_a_time(validates):
    data = OneReader()
    source, validation = _sources(data, None, None, 0.0, data)
    found: list[Any] = []
    ahead = threading.Thread(target=lambda: found.append(source.read([0, 1])))
    ahead.start()
    assert data.first_is_in.wait(30)
    batch = (validation if validates else source).read([2, 3])
    ahead.join(30)
    assert data.most == 1
    assert [found[0].y.tolist(), batch.y.tolist()] == [[0, 1], [2, 3]]
