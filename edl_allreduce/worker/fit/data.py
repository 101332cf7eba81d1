"""What `fit` trains on: arrays, a PyDataset, or anything that gives a record by its number."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf

from edl_allreduce.core.schedule import ItemOrder, Order
from edl_allreduce.errors import DataError, UsageError

Array = np.ndarray[Any, Any]
SAMPLED = 64
"""Records that are compared between workers: enough to see that somebody split or shuffled the data anew."""
KEPT_ITEMS = 3
"""Items of a PyDataset in memory: the one at hand, the one after it, and one that is asked for again."""
EXPECTED = (
    "expected NumPy arrays, a keras.utils.PyDataset, or an object with len() and [number] that gives "
    "(x, y) or (x, y, sample_weight) of one record"
)


class Batch(NamedTuple):
    """Some records: structures of arrays."""

    x: Any
    y: Any = None
    weights: Any = None


class Source(Protocol):
    """Records by number."""

    item: int
    """Not 0: records come in items of this size, and one item is one step."""

    def __len__(self) -> int: ...

    def read(self, indices: Sequence[int]) -> Batch: ...

    @property
    def fingerprint(self) -> str:
        """The same on all workers that have the same data."""

    def order(self, *, seed: int, shuffle: bool) -> Order: ...


def open_data(data: Any, y: Any = None, weights: Any = None) -> Source:
    """Whatever was given to `fit`, or why it cannot be trained on."""
    if isinstance(data, tuple) and y is None and weights is None and 1 <= len(data) <= 3:
        return open_data(*data) if len(data) > 1 else Arrays(Batch(data[0]))
    if isinstance(data, tf.data.Dataset) or hasattr(data, "__next__") or hasattr(data, "send"):
        raise UsageError(
            f"elastic.fit cannot train on a {type(data).__name__}: after a loss the survivors need the same "
            f"records again, and a stream gives them once. {EXPECTED[0].upper()}{EXPECTED[1:]}."
        )
    if isinstance(data, keras.utils.PyDataset) or _gives_records(data):
        if y is not None or weights is not None:
            raise UsageError("y and sample_weight come from the data itself where it is not an array.")
        return Items(data) if isinstance(data, keras.utils.PyDataset) else Records(data)
    return Arrays(Batch(data, y, weights))


def _gives_records(data: Any) -> bool:
    if isinstance(data, Mapping | str | bytes) or hasattr(data, "__array__"):
        return False
    if isinstance(data, list):  # of records, or of the arrays of several inputs
        return bool(data) and isinstance(data[0], tuple)
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


def _array(value: Any) -> Array:
    """In Keras' type for numbers with a fraction, as `model.fit` has it."""
    array = np.asarray(value)
    if np.issubdtype(array.dtype, np.floating) and array.dtype != keras.config.floatx():
        return array.astype(keras.config.floatx())
    return array


class Arrays:
    """Structures of arrays, one row for each record."""

    item = 0

    def __init__(self, batch: Batch) -> None:
        found = keras.tree.map_structure(lambda v: None if v is None else np.asarray(v), batch)
        self._batch = Batch(*found)
        leaves = [leaf for leaf in keras.tree.flatten(self._batch) if leaf is not None]
        if not leaves or any(leaf.ndim == 0 or leaf.dtype == object for leaf in leaves):
            raise UsageError(f"elastic.fit got a {type(batch.x).__name__}; {EXPECTED}.")
        sizes = {len(leaf) for leaf in leaves}
        if len(sizes) > 1:
            raise UsageError(
                f"x, y and sample_weight have {', '.join(map(str, sorted(sizes)))} rows; all need as many."
            )
        self._records = sizes.pop()
        if not self._records:
            raise DataError("the data holds no record")

    def __len__(self) -> int:
        return self._records

    def read(self, indices: Sequence[int]) -> Batch:
        places = np.asarray(indices)
        found = keras.tree.map_structure(lambda a: None if a is None else _array(a[places]), self._batch)
        return Batch(*found)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"arrays {self._records}".encode())
        rows = np.unique(np.linspace(0, self._records - 1, SAMPLED).astype(int))
        for leaf in keras.tree.flatten(self._batch):
            if leaf is not None:
                digest.update(f"{leaf.shape} {leaf.dtype}".encode())
                digest.update(np.ascontiguousarray(leaf[rows]).tobytes())
        return digest.hexdigest()[:16]

    def order(self, *, seed: int, shuffle: bool) -> Order:
        return Order(self._records, seed=seed, shuffle=shuffle)

    def split(self, part: float) -> tuple[Arrays, Arrays]:
        """The first records, and the last `part` of them, as validation_split of `model.fit` does."""
        at = int(self._records * (1.0 - part))
        if not 0 < at < self._records:
            raise UsageError(
                f"validation_split={part} leaves nothing to train or to validate on: there are "
                f"{self._records} records."
            )
        return self._cut(slice(None, at)), self._cut(slice(at, None))

    def _cut(self, rows: slice) -> Arrays:
        return Arrays(Batch(*keras.tree.map_structure(lambda a: _rows_of(a, rows), self._batch)))


class Records:
    """An object that gives one record at a time."""

    item = 0

    def __init__(self, data: Any) -> None:
        self._data = data
        self._lock = threading.Lock()
        self._records = len(data)
        if not self._records:
            raise DataError("the data holds no record")

    def __len__(self) -> int:
        return self._records

    def read(self, indices: Sequence[int]) -> Batch:
        found = [_unpacked(self._record(int(index))) for index in indices]
        return Batch(*keras.tree.map_structure(_stacked, *found))

    def _record(self, index: int) -> Any:
        """One at a time: training reads ahead while others read, and an object of the user's, say with an
        open file, need not know of threads."""
        with self._lock:
            return self._data[index]

    @property
    def fingerprint(self) -> str:
        """What a record holds may be made anew each time it is asked for; its kind may not."""
        first = self.read([0])
        kinds = [f"{a.shape} {a.dtype}" for a in keras.tree.flatten(first) if a is not None]
        return hashlib.sha256(f"records {self._records} {kinds}".encode()).hexdigest()[:16]

    def order(self, *, seed: int, shuffle: bool) -> Order:
        return Order(self._records, seed=seed, shuffle=shuffle)


def _unpacked(record: Any) -> Batch:
    if not isinstance(record, tuple):
        return Batch(record)
    if not 1 <= len(record) <= 3:
        raise DataError(f"a record must be (x, y) or (x, y, sample_weight), got {len(record)} parts")
    return Batch(*record)


def _stacked(*values: Any) -> Any:
    return None if values[0] is None else _array(np.stack([np.asarray(value) for value in values]))


class Items:
    """A PyDataset: each of its items is the batch of one step, of which every worker takes its share."""

    def __init__(self, data: Any) -> None:
        if type(data).on_epoch_end is not keras.utils.PyDataset.on_epoch_end:
            raise UsageError(
                f"{type(data).__name__}.on_epoch_end() changes the data between epochs, on each worker in "
                "its own way, so that records would be used twice or not at all. Leave the order to fit "
                "(shuffle=True)."
            )
        self._data = data
        self._items: int = data.num_batches
        if not self._items:
            raise DataError(f"{type(data).__name__} must have at least one item and an end to them")
        self._cache: OrderedDict[int, Batch] = OrderedDict()
        self._lock = threading.Lock()
        self.item = _rows(self._item(0))
        last = _rows(self._item(self._items - 1))
        if last > self.item:
            raise DataError(f"the last item has {last} records, the first {self.item}: items must be alike")
        self._records: int = self.item * (self._items - 1) + last

    def __len__(self) -> int:
        return self._records

    def read(self, indices: Sequence[int]) -> Batch:
        """Records of one item, or of several."""
        places = [divmod(int(index), self.item) for index in indices]
        numbers = list(dict.fromkeys(number for number, _ in places))
        parts = []
        for number in numbers:
            rows = [offset for at, offset in places if at == number]
            chosen = functools.partial(_rows_of, rows=rows)
            parts.append(Batch(*keras.tree.map_structure(chosen, self._item(number))))
        return parts[0] if len(parts) == 1 else Batch(*keras.tree.map_structure(_joined, *parts))

    def _item(self, number: int) -> Batch:
        with self._lock:
            if number not in self._cache:
                found = _unpacked(self._data[number])
                arrays = keras.tree.map_structure(lambda v: None if v is None else _array(v), found)
                self._cache[number] = Batch(*arrays)
                expected = getattr(self, "item", 0)
                if expected and number < self._items - 1 and _rows(self._cache[number]) != expected:
                    raise DataError(
                        f"item {number} has {_rows(self._cache[number])} records and item 0 {expected}: "
                        "items must be alike, but for the last one"
                    )
            self._cache.move_to_end(number)
            while len(self._cache) > KEPT_ITEMS:
                self._cache.popitem(last=False)
            return self._cache[number]

    @property
    def fingerprint(self) -> str:
        kinds = [f"{a.shape} {a.dtype}" for a in keras.tree.flatten(self._item(0)) if a is not None]
        return hashlib.sha256(f"items {self._records} {kinds}".encode()).hexdigest()[:16]

    def order(self, *, seed: int, shuffle: bool) -> Order:
        return ItemOrder(self._records, seed=seed, shuffle=shuffle, item=self.item)


def _rows(batch: Batch) -> int:
    first: Sequence[Any] = next(leaf for leaf in keras.tree.flatten(batch) if leaf is not None)
    return len(first)


def _rows_of(array: Any, rows: list[int] | slice) -> Any:
    return None if array is None else array[rows]


def _joined(*arrays: Any) -> Any:
    return None if arrays[0] is None else np.concatenate(arrays)


class Labelled:
    """Records as tensors: features, and what the loss compares the outputs with."""

    def __init__(self, class_weight: Mapping[int, float] | None = None) -> None:
        self._class_weight = class_weight

    def __call__(self, batch: Any, count: int) -> tuple[Any, dict[str, Any]]:
        labels = {}
        if batch.y is not None:
            labels["y"] = _tensors(batch.y)
        weights = batch.weights
        if self._class_weight is not None:
            if weights is not None:
                raise UsageError("give class_weight or sample_weight, not both; multiply them beforehand.")
            weights = _of_classes(batch.y, self._class_weight)
        if weights is not None:
            labels["weights"] = _tensors(weights)
        return _tensors(batch.x), labels


def _tensors(structure: Any) -> Any:
    return keras.tree.map_structure(tf.convert_to_tensor, structure)


def _of_classes(y: Any, class_weight: Mapping[int, float]) -> Array:
    """As `model.fit` has it: y are the numbers of classes, or one column for each class."""
    if not isinstance(y, np.ndarray):
        raise UsageError("class_weight needs a model with one output, whose y are classes.")
    classes = y
    if y.ndim > 1:
        classes = y.argmax(-1) if y.shape[-1] != 1 else y[..., 0]
    classes = np.round(classes).astype(np.int64)
    weights = [class_weight.get(int(number), 1.0) for number in classes.reshape(len(y), -1)[:, 0]]
    return np.array(weights, keras.config.floatx())
