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


class JobType:
    """What a job does."""

    TRAINING_ONLY = "training_only"
    EVALUATION_ONLY = "evaluation_only"
    PREDICTION_ONLY = "prediction_only"
    TRAINING_WITH_EVALUATION = "training_with_evaluation"


class DistributionStrategy:
    """How the work is distributed; the first is not offered here."""

    PARAMETER_SERVER = "ParameterServerStrategy"
    ALLREDUCE = "AllreduceStrategy"
    LOCAL = "Local"


class SaveModelConfig:
    """Names of parameters that callbacks get."""

    SAVED_MODEL_PATH = "saved_model_path"


class MaxComputeConfig:
    """Environment variables of a MaxCompute table; a model file's own reader may look there."""

    PROJECT_NAME = "MAXCOMPUTE_PROJECT"
    ACCESS_ID = "MAXCOMPUTE_AK"
    ACCESS_KEY = "MAXCOMPUTE_SK"
    ENDPOINT = "MAXCOMPUTE_ENDPOINT"
    TUNNEL_ENDPOINT = "MAXCOMPUTE_TUNNEL_ENDPOINT"


class ReaderType:
    """Values of `reader_type` in --data_reader_params."""

    CSV_READER = "CSV"
    ODPS_READER = "ODPS"
    RECORDIO_READER = "RecordIO"
