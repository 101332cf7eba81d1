"""What TensorBoard shows of a job besides curves: its flags (hparams), and the graph of its model.

Their messages are written by hand: the classes for them are in the package tensorboard, which only a reader
needs. The numbers of fields are those of its plugin_data.proto.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Mapping
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.framework.summary_pb2 import Summary, SummaryMetadata

from edl_allreduce.spec import JobSpec
from edl_allreduce.spec.declare import Group, flag_of

SHOWN: Final = frozenset({Group.MODEL, Group.DATA, Group.TRAINING, Group.ELASTICITY})
"""Of the flags: what a result depends on."""
HPARAMS: Final = "hparams"
START: Final = "_hparams_/session_start_info"
GRAPH: Final = "graph_keras_model"
UNTOLD: Final = (NotImplementedError, TypeError, ValueError, AttributeError)
"""What Keras raises where a model has no graph of layers: one that is a class of the user's own."""

HyperParameter = bool | float | str


def hparams_of(spec: JobSpec) -> dict[str, HyperParameter]:
    """The flags that a result depends on, as far as they are given or numbers."""
    found: dict[str, HyperParameter] = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if flag_of(field).group not in SHOWN or value in ("", None):
            continue
        match value:
            case bool() | str() if not isinstance(value, enum.Enum):
                found[field.name] = value
            case enum.Enum():
                found[field.name] = str(value.value)
            case int() | float():
                found[field.name] = float(value)
    return found


def session(hparams: Mapping[str, HyperParameter], group: str, wall: float) -> Summary:
    """The beginning of a run with these."""
    entries = b"".join(_part(1, _part(1, name.encode()) + _part(2, _value(v))) for name, v in hparams.items())
    start = entries + _part(4, group.encode()) + b"\x29" + struct.pack("<d", wall)  # field 5, 64 bits
    return _summary(START, HPARAMS, _part(3, start), tf.constant([], tf.float32))


def graph(model: Any) -> Summary | None:
    """The layers of a model; None where Keras does not give them."""
    try:
        described = model.to_json()
    except UNTOLD:
        return None
    return _summary("keras", GRAPH, b"1", tf.constant(described))


def _summary(tag: str, plugin: str, content: bytes, tensor: Any) -> Summary:
    data = SummaryMetadata.PluginData(plugin_name=plugin, content=content)
    value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=data))
    value.tensor.CopyFrom(tf.make_tensor_proto(tensor))
    return Summary(value=[value])


def _value(given: HyperParameter) -> bytes:
    """A google.protobuf.Value."""
    match given:
        case bool():
            return b"\x20" + _varint(given)  # field 4, a number
        case str():
            return _part(3, given.encode())
    return b"\x11" + struct.pack("<d", given)  # field 2, 64 bits


def _part(number: int, payload: bytes) -> bytes:
    """A field with a length, as protobuf writes it."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
