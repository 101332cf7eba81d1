"""`elasticdl.python.data.reader.data_reader`, for model files with a reader of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any


class Metadata:
    """What a reader knows about its columns."""

    def __init__(
        self, column_names: list[str] | None = None, column_dtypes: dict[str, Any] | None = None
    ) -> None:
        self.column_names = column_names
        self.column_dtypes = column_dtypes


class AbstractDataReader(ABC):
    """Base of a model file's reader."""

    def __init__(self, **kwargs: Any) -> None:
        self.kwargs = kwargs

    @abstractmethod
    def read_records(self, task: Any) -> Iterator[Any]:
        """The records of `task.shard`: its name, from its start to before its end."""

    @abstractmethod
    def create_shards(self) -> Any:
        """A list of (name, start, number of records), or {name: (start, number)}."""

    @property
    def records_output_types(self) -> Any:
        import tensorflow as tf

        return tf.string

    @property
    def metadata(self) -> Metadata:
        return Metadata()
