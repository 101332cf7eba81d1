"""Messages as bytes: the name of the class, then its fields. Nothing that is decoded can run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import msgspec

from edl_allreduce import outside
from edl_allreduce.core import protocol
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import BadMessage
from edl_allreduce.reading import UNDECODABLE
from edl_allreduce.version import __version__

_encoder = msgspec.msgpack.Encoder()
_frame = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])

LARGEST = 2**53
"""Every number of ours is far below it, and every language and format can hold it."""

_T = TypeVar("_T")


def encode(message: object) -> bytes:
    """A name of a file may be no UTF-8, and with it an exception that names it: that part is escaped."""
    name = type(message).__name__
    try:
        return _encoder.encode((name, message))
    except UnicodeEncodeError:
        return _encoder.encode((name, _escaped(msgspec.to_builtins(message, builtin_types=(bytes,)))))


def _escaped(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list():
            return [_escaped(part) for part in value]
        case dict():
            return {_escaped(key): _escaped(part) for key, part in value.items()}
    return value


def _check_numbers(value: Any) -> None:
    """What is counted from them, or written down, must not overflow."""
    match value:
        case int():
            if abs(value) > LARGEST:
                raise ValueError(f"{value:.3g} is beyond every count of ours")
        case list() | tuple():
            for part in value:
                _check_numbers(part)
        case dict():
            for key, part in value.items():
                _check_numbers(key)
                _check_numbers(part)
        case _ if dataclasses.is_dataclass(value):
            for part in vars(value).values():
                _check_numbers(part)


def _decoder(*kinds: type[_T]) -> Callable[[bytes], _T]:
    """For messages of these classes, and no others; whatever else comes is a BadMessage."""
    decoders = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in kinds}

    def decode(data: bytes) -> _T:
        try:
            name, fields = _frame.decode(data)
            if name not in decoders:
                raise ValueError(f"none is called {name[:40]!r}")
            message = decoders[name].decode(fields)
            _check_numbers(message)
            return message
        except UNDECODABLE as error:
            raise BadMessage(
                f"{len(data)} bytes are no message of version {__version__}: {outside.line(error)}. "
                "Run the same version of this package at both ends."
            ) from error

    return decode


decode_from_worker: Callable[[bytes], protocol.FromWorker] = _decoder(*get_args(protocol.FromWorker))
decode_from_master: Callable[[bytes], protocol.FromMaster] = _decoder(*get_args(protocol.FromMaster))
decode_command: Callable[[bytes], protocol.Command] = _decoder(*get_args(protocol.Command))
decode_status = _decoder(JobStatus)
