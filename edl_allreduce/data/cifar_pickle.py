"""The Python version of CIFAR-10 is made of pickles. They are read here without Python's unpickler: a pickle
is a program, and of its language only what describes a dictionary of numbers, words and one array is read."""

from __future__ import annotations

import io
import math
import pickletools
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_MODULES: Final = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")
_NAMES: Final = ("_reconstruct", "ndarray", "dtype")
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES: Final = frozenset(
    {
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "STRING", "BINSTRING", "SHORT_BINSTRING",
        "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
    }
)  # fmt: skip
_EMPTY: Final = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_PUT: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_GET: Final = frozenset({"GET", "BINGET", "LONG_BINGET"})
_MARK: Final = object()


class _Name:
    """numpy.core.multiarray._reconstruct and its like; nothing is imported."""

    def __init__(self, module: str, name: str) -> None:
        if module not in _MODULES or name not in _NAMES:
            raise ValueError(f"it asks for {module}.{name}, which no file of images needs")
        self.name = name


class _Made:
    """What calling a name would give, with the state that was put into it."""

    def __init__(self, name: _Name, arguments: tuple[Any, ...]) -> None:
        self.name = name.name
        self.arguments = arguments
        self.state: Any = None


def batch(data: bytes) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Labels and pixels of one file, a row per image; ValueError when it is no such file."""
    try:
        found = _run(data)
        labels, pixels = found[b"labels"], found[b"data"]
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError("it is not made as the files of CIFAR-10 are") from error
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise ValueError("its labels are not whole numbers from 0 to 255")
    return np.array(labels, np.uint8), _array(pixels)


def _array(made: Any) -> npt.NDArray[np.uint8]:
    match made:
        case _Made(
            name="_reconstruct",
            state=(
                int(),
                (int(rows), int(columns)),
                _Made(name="dtype", arguments=(b"u1" | "u1", *_)),
                bool(fortran),
                bytes(data),
            ),
        ) if rows >= 0 and columns >= 0 and math.prod((rows, columns)) == len(data):
            order: Any = "F" if fortran else "C"
            return np.frombuffer(data, np.uint8).reshape((rows, columns), order=order)
    raise ValueError("its images are not one array of bytes")


def _run(data: bytes) -> dict[Any, Any]:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for operation, argument, _ in pickletools.genops(io.BytesIO(data)):
        code = operation.name
        if code in _VALUES:
            text = code in ("STRING", "BINSTRING", "SHORT_BINSTRING")  # of Python 2: bytes
            stack.append(argument.encode("latin-1") if text else argument)
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code in _EMPTY:
            stack.append(_EMPTY[code]())
        elif code in _PUT:
            memo[len(memo) if code == "MEMOIZE" else int(argument)] = stack[-1]
        elif code in _GET:
            stack.append(memo[int(argument)])
        elif code == "STOP":
            result = stack.pop()
            if not isinstance(result, dict):
                raise ValueError("it does not hold a dictionary")
            return result
        elif code not in ("PROTO", "FRAME"):
            _apply(code, argument, stack)
    raise ValueError("it ends too early")


def _apply(code: str, argument: Any, stack: list[Any]) -> None:
    """Operations that take something from the stack."""
    match code:
        case "MARK":
            stack.append(_MARK)
        case "POP":
            stack.pop()
        case "TUPLE":
            stack.append(tuple(_above_mark(stack)))
        case "TUPLE1" | "TUPLE2" | "TUPLE3":
            stack.append(tuple(_last(stack, int(code[-1]))))
        case "APPEND" | "APPENDS":
            items = _above_mark(stack) if code == "APPENDS" else _last(stack, 1)
            _of(stack, list).extend(items)
        case "SETITEM" | "SETITEMS":
            pairs = _above_mark(stack) if code == "SETITEMS" else _last(stack, 2)
            keys = pairs[::2]
            if len(pairs) % 2 or not all(isinstance(key, bytes | str) for key in keys):
                raise ValueError("its dictionary has keys that are no words")
            _of(stack, dict).update(zip(keys, pairs[1::2], strict=True))
        case "GLOBAL":
            stack.append(_Name(*argument.split(" ", 1)))
        case "STACK_GLOBAL":
            stack.append(_Name(*map(str, _last(stack, 2))))
        case "REDUCE":
            name, arguments = _last(stack, 2)
            if not isinstance(name, _Name) or not isinstance(arguments, tuple):
                raise ValueError("it calls something that is no function")
            stack.append(_Made(name, arguments))
        case "BUILD":
            (state,) = _last(stack, 1)
            _of(stack, _Made).state = state
        case _:
            raise ValueError(f"it uses {code}, which no file of images needs")


def _of(stack: list[Any], kind: type[Any]) -> Any:
    if not isinstance(stack[-1], kind):
        raise ValueError("it is not made as the files of CIFAR-10 are")
    return stack[-1]


def _last(stack: list[Any], count: int) -> list[Any]:
    if len(stack) < count or any(item is _MARK for item in stack[-count:]):
        raise ValueError("it takes more than there is")
    taken = stack[-count:]
    del stack[-count:]
    return taken


def _above_mark(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1
    while at >= 0 and stack[at] is not _MARK:
        at -= 1
    if at < 0:
        raise ValueError("it takes more than there is")
    taken = stack[at + 1 :]
    del stack[at:]
    return taken
