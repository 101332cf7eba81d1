"""The state is read without a copy, so what was read must stay as it was while training goes on."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_allreduce.worker.keras.arrays import read_arrays

pytestmark = pytest.mark.tensorflow

OPTIMIZERS = (
    lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    lambda: keras.optimizers.RMSprop(0.1, centered=True),
    lambda: keras.optimizers.Adagrad(0.1),
    lambda: keras.optimizers.Ftrl(0.1),
)


@pytest.mark.parametrize("make", OPTIMIZERS, ids=lambda make: type(make()).__name__)
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_what_was_read_outlives_updates_dense_and_sparse(make, graph):
    model = keras.Sequential([keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.build((None, 2))
    optimizer = make()
    optimizer.build(model.trainable_variables)
    tokens = tf.constant([[1, 2], [3, 49]])

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tokens) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))

    step = tf.function(step) if graph else step
    variables = [*model.variables, *optimizer.variables]
    for _ in range(3):
        read = read_arrays(variables)
        copies = [array.copy() for array in read]
        step()
        for expected, got in zip(copies, read, strict=True):
            np.testing.assert_array_equal(got, expected)
        assert not np.array_equal(read[0], model.variables[0].numpy())


def test_a_plain_variable_that_rows_are_added_to_is_read_as_it_was():
    variable = tf.Variable(tf.zeros([5, 2]))
    (before,) = read_arrays([variable])
    variable.scatter_add(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3])))
    (between,) = read_arrays([variable])
    variable.scatter_add(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3])))
    variable.assign_add(tf.ones([5, 2]))
    assert (before.sum(), between.sum(), variable.numpy().sum()) == (0, 2, 14)
