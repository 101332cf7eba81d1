"""The training once more, in NumPy and float64: what an undisturbed job comes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from chaos.data import DECAY, MOMENTUM, RATE, Array, columns, first_weights


def train(batches: Iterable[Sequence[int]]) -> list[Array]:
    """The weights after one update with each of these batches of records, in this order.

    A network of one hidden layer, mean squared error, SGD with momentum and a rate that decays with the
    number of updates: what is lost of the optimiser's state shows as well as what is lost of the model's.
    """
    x, y = columns()
    kernel, bias, last, last_bias = weights = first_weights()
    speeds = [np.zeros_like(value) for value in weights]
    for step, batch in enumerate(batches):
        rows = sorted(batch)
        inputs, wanted = x[rows], y[rows]
        hidden = np.tanh(inputs @ kernel + bias)
        wrong = 2 * (hidden @ last + last_bias - wanted) / len(rows)
        back = (wrong @ last.T) * (1 - hidden**2)
        gradients = [inputs.T @ back, back.sum(0), hidden.T @ wrong, wrong.sum(0)]
        rate = RATE / (1 + DECAY * step)
        for value, speed, gradient in zip(weights, speeds, gradients, strict=True):
            speed *= MOMENTUM
            speed -= rate * gradient
            value += speed
    return weights


def distance(first: Sequence[Array], second: Sequence[Array]) -> float:
    """The largest difference of any two weights; infinite when they do not fit each other."""
    if [a.shape for a in first] != [b.shape for b in second]:
        return float("inf")
    differences = [np.abs(a - b).ravel() for a, b in zip(first, second, strict=True)]
    apart = float(np.max(np.concatenate(differences)))
    return apart if np.isfinite(apart) else float("inf")
