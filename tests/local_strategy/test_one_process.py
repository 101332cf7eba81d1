"""`--distribution_strategy=Local`: one process, the same model as a ring."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.training


def test_one_process_gives_the_model_that_two_workers_give(launch, weights):
    ring = launch(name="ring", num_workers=2)
    assert ring.wait() == 0, ring.story()
    alone = launch(name="alone", distribution_strategy="Local", minibatch_size=32)
    assert alone.wait() == 0, alone.story()
    one, two = alone.audit(), ring.audit()
    assert one.clean and (one.steps, one.epochs) == (two.steps, two.epochs)
    for expected, got in zip(weights(ring.output), weights(alone.output), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)
