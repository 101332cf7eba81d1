"""`elasticdl.python.common.constants`, as far as model files use it."""

from __future__ import annotations


class Mode:
    """What `feed` is called for."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


class MetricsDictKey:
    """Names of a model's only output, and of labels."""

    MODEL_OUTPUT = "output"
    LABEL = "label"
