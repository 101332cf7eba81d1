"""A convolutional network of 25 million parameters, so that a step moves 100 MB."""

from typing import Any

from benchmarks.zoo.cnn import feed, loss, optimizer, with_dense

__all__ = ["custom_model", "feed", "loss", "optimizer"]


def custom_model() -> Any:
    return with_dense(4250, 4250)
