"""ResNet-20 for CIFAR-10 (He et al., 2015): three stages of three blocks, 0.27 million weights."""

import keras
from cifar10.cifar10_functional_api import eval_metrics_fn, feed, loss
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler

__all__ = ["callbacks", "custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

WEIGHT_DECAY = 1e-4


def custom_model():
    inputs = keras.Input((32, 32, 3), name="image")
    x = convolution(inputs, 16, 1)
    for filters, first_stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
            x = residual(x, filters, first_stride if block == 0 else 1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def convolution(x, filters, stride, *, activate=True):
    x = keras.layers.Conv2D(
        filters,
        3,
        stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(WEIGHT_DECAY),
    )(x)
    x = keras.layers.BatchNormalization(momentum=0.9)(x)
    return keras.layers.ReLU()(x) if activate else x


def residual(x, filters, stride):
    y = convolution(convolution(x, filters, stride), filters, 1, activate=False)
    if stride != 1:
        x = keras.layers.Conv2D(filters, 1, stride, use_bias=False, kernel_initializer="he_normal")(x)
    return keras.layers.ReLU()(keras.layers.add([x, y]))


def optimizer(lr=0.1):
    return keras.optimizers.SGD(lr, momentum=0.9)


def callbacks():
    """A tenth after 32 000 steps, a hundredth after 48 000, as in the paper; a short warm-up before."""

    def schedule(batch):
        if batch < 400:
            return 0.01 + 0.09 * batch / 400
        return 0.1 if batch < 32_000 else 0.01 if batch < 48_000 else 0.001

    return [LearningRateScheduler(schedule)]
