"""`elasticdl.python.worker.prediction_outputs_processor`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class BasePredictionOutputsProcessor(ABC):
    """Base of a model file's PredictionOutputsProcessor."""

    @abstractmethod
    def process(self, predictions: Any, worker_id: int) -> None:
        """Take the predictions of one minibatch."""
