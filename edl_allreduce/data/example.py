"""tf.train.Example in its wire format, without TensorFlow: what `elasticdl data` writes and shows.

Example { features = 1 } -> Features { map<string, Feature> feature = 1 } -> Feature { bytes_list = 1 |
float_list = 2 | int64_list = 3 }, each list with a repeated field 1, numbers packed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Value = npt.NDArray[Any] | bytes


class FeatureKind(IntEnum):
    """Field numbers of Feature."""

    BYTES = 1
    FLOAT = 2
    INT64 = 3


@dataclass(frozen=True)
class Feature:
    """One decoded feature."""

    kind: FeatureKind
    values: list[bytes] | list[float] | list[int]


def encode_example(features: Mapping[str, Value]) -> bytes:
    """Bytes stay bytes, floats become a float list, whole numbers an int64 list.

    Names come in sorted order, so equal features give equal bytes.
    """
    entries = []
    for name in sorted(features):
        entry = _field(1, name.encode()) + _field(2, _encode_feature(features[name]))
        entries.append(_field(1, entry))
    return _field(1, b"".join(entries))


def _encode_feature(value: Value) -> bytes:
    if isinstance(value, bytes):
        return _field(FeatureKind.BYTES, _field(1, value))
    flat = value.reshape(-1)
    match flat.dtype.kind:
        case "f":
            return _field(FeatureKind.FLOAT, _field(1, flat.astype("<f4").tobytes()))
        case "i" | "u" | "b":
            return _field(FeatureKind.INT64, _field(1, b"".join(_varint(int(v)) for v in flat)))
        case _:
            raise TypeError(f"a feature holds bytes, floats or whole numbers, not {flat.dtype}")


def decode_example(record: bytes) -> dict[str, Feature]:
    """The features of a serialised tf.train.Example; ValueError when it is none."""
    features: dict[str, Feature] = {}
    for number, body in _fields(record):
        if number != 1 or not isinstance(body, bytes):
            raise ValueError("not a tf.train.Example")
        for inner, entry in _fields(body):
            if inner != 1 or not isinstance(entry, bytes):
                raise ValueError("not a tf.train.Example")
            parts = dict(_fields(entry))
            name, feature = parts.get(1), parts.get(2, b"")
            if not isinstance(name, bytes) or not isinstance(feature, bytes):
                raise ValueError("not a tf.train.Example")
            for kind, values in _fields(feature):
                if not isinstance(values, bytes):
                    raise ValueError("not a tf.train.Example")
                features[name.decode()] = _decode_feature(FeatureKind(kind), values)
    if not features:
        raise ValueError("not a tf.train.Example, or one without features")
    return features


def _decode_feature(kind: FeatureKind, body: bytes) -> Feature:
    items = [value for number, value in _fields(body, fixed32=kind is FeatureKind.FLOAT) if number == 1]
    if kind is FeatureKind.BYTES:
        return Feature(kind, [item for item in items if isinstance(item, bytes)])
    if kind is FeatureKind.FLOAT:
        data = b"".join(item if isinstance(item, bytes) else struct.pack("<I", item) for item in items)
        return Feature(kind, np.frombuffer(data, "<f4").tolist())
    numbers: list[int] = []
    for item in items:
        numbers += [item] if isinstance(item, int) else _unpack_varints(item)
    return Feature(kind, [n - (1 << 64) if n >= 1 << 63 else n for n in numbers])


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number is cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _unpack_varints(data: bytes) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = _read_varint(data, at)
        values.append(value)
    return values


def _fields(data: bytes, *, fixed32: bool = False) -> Iterator[tuple[int, bytes | int]]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _read_varint(data, at)
            yield tag >> 3, value
        elif wire == 2:
            length, at = _read_varint(data, at)
            if at + length > len(data):
                raise ValueError("a field is cut off")
            yield tag >> 3, data[at : at + length]
            at += length
        elif wire == 5 and fixed32 and at + 4 <= len(data):
            yield tag >> 3, int.from_bytes(data[at : at + 4], "little")
            at += 4
        else:
            raise ValueError(f"wire type {wire} does not belong in a tf.train.Example")
