"""How sound files and texts are damaged: strategies whose examples Hypothesis shrinks to the least damage."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

MAGICS = (
    b"\x93NUMPY\x01\x00v\x00", b"PK\x03\x04", b"PK\x05\x06", b"\x04\x03\x02\x01", b"PAR1",
    b"\x1f\x8b\x08\x00", b"\x00\x00\x08\x03", b"\x80\x02}q\x00", b"\x80\x05\x95", b"edl-index-1 ",
    b"\xff\x06\x00\x00sNaPpY",
    b"\xef\xbb\xbf", b"{", b"[", b"\x89PNG\r\n\x1a\n",
)  # fmt: skip
"""Beginnings of other formats."""

NUMBERS = (
    0, 1, 2, 3, 4, 7, 255, 256, 0x7FFF, 0xFFFF, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
    1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
"""What a length, a count or an offset should never be, and what it could be by chance."""


@st.composite
def damaged(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """One of the samples after one to three accidents."""
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(1, 3))):
        data = _accident(draw, data)
    return data


def _accident(draw: st.DrawFn, data: bytes) -> bytes:
    at, other = _place(draw, data), _place(draw, data)
    first, last = min(at, other), max(at, other)
    match draw(st.sampled_from(_KINDS)):
        case "flip":
            bit = 1 << draw(st.integers(0, 7))
            return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] if data else data
        case "byte":
            return data[:at] + draw(st.binary(min_size=1, max_size=1)) + data[at + 1 :]
        case "number":
            width, order = draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from(("little", "big")))
            value = draw(st.sampled_from(NUMBERS)) & ((1 << 8 * width) - 1)
            return data[:at] + value.to_bytes(width, order) + data[at + width :]
        case "cut":
            return data[:at]
        case "drop":
            return data[:first] + data[last:]
        case "repeat":
            return data[:last] + data[first:last] * draw(st.integers(1, 3)) + data[last:]
        case "swap":
            middle = (first + last) // 2
            return data[:first] + data[middle:last] + data[first:middle] + data[last:]
        case "insert":
            return data[:at] + draw(st.binary(max_size=40)) + data[at:]
        case "extend":
            return data + draw(st.one_of(st.binary(max_size=40), st.just(b"\0" * 4096)))
        case "zero":
            return data[:first] + b"\0" * (last - first) + data[last:]
        case "magic":
            magic = draw(st.sampled_from(MAGICS))
            return magic + (data[len(magic) :] if draw(st.booleans()) else data)
        case _:
            return b""


_KINDS = (
    "flip", "flip", "flip", "byte", "byte", "number", "number", "number", "cut", "drop", "repeat", "swap",
    "insert", "extend", "zero", "magic", "empty",
)  # fmt: skip


def _place(draw: st.DrawFn, data: bytes) -> int:
    """Anywhere, but often near one of the ends: there are the headers, directories and footers."""
    if not data:
        return 0
    end = len(data) - 1
    near = min(96, end)
    match draw(st.integers(0, 2)):
        case 0:
            return draw(st.integers(0, near))
        case 1:
            return end - draw(st.integers(0, near))
    return draw(st.integers(0, end))


# ----------------------------------------------------------------------------------------------- texts

ODD_TEXTS = (
    "", " ", "\0", "\n", "\x1b[2J", "[/x]", "%s%n", "../../etc", "/" * 300, "-1",
    "1e309", "nan", "٣", "²", "9" * 5000,
    "--help", "-h", "\ud800", "[" * 3000, "a=b;" * 1000, "=", ":", ",", ";", "null",
)  # fmt: skip

ODD_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([10**30, -(10**30), 2**63, -1, 0]),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1.5]), st.floats(),
    st.sampled_from(ODD_TEXTS), st.text(max_size=8),
    st.just([]), st.just({}), st.just([[]]), st.just({"": {}}), st.just([None]),
)  # fmt: skip


@st.composite
def altered(draw: st.DrawFn, tree: Any) -> Any:
    """A tree of JSON in which one to three places hold something else."""
    for _ in range(draw(st.integers(1, 3))):
        tree = _alter(draw, tree)
    return tree


def _alter(draw: st.DrawFn, tree: Any) -> Any:
    if isinstance(tree, dict) and tree and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(tree)))
        match draw(st.integers(0, 5)):
            case 0:
                return {name: part for name, part in tree.items() if name != key}
            case 1:
                return {**tree, draw(st.one_of(st.text(max_size=8), st.sampled_from(ODD_TEXTS))): tree[key]}
        return {**tree, key: _alter(draw, tree[key])}
    if isinstance(tree, list) and tree and draw(st.integers(0, 4)):
        at = draw(st.integers(0, len(tree) - 1))
        match draw(st.integers(0, 4)):
            case 0:
                return tree[:at] + tree[at + 1 :]
            case 1:
                return [*tree, tree[at]]
        return [*tree[:at], _alter(draw, tree[at]), *tree[at + 1 :]]
    return draw(_odd_instead_of(tree) if draw(st.integers(0, 3)) else ODD_VALUES)


def _odd_instead_of(value: Any) -> st.SearchStrategy[Any]:
    """Of the same type, mostly: what a check of types lets through."""
    match value:
        case bool():
            return st.just(not value)
        case int():
            return st.sampled_from([0, -1, 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 10**30])
        case float():
            return st.sampled_from([0.0, -1.5, 1e300, -1e300, 1e18, math.nan, math.inf, -math.inf])
        case str():
            return odd_texts
    return ODD_VALUES


@st.composite
def damaged_json(draw: st.DrawFn, tree: Any) -> bytes:
    """Text of a tree with odd values, or with damaged bytes, or far too deep."""
    sound = json.dumps(tree).encode()
    match draw(st.integers(0, 5)):
        case 0 | 1:
            return draw(damaged([sound]))
        case 2:
            depth = draw(st.sampled_from((50, 2_000, 100_000)))
            opened = draw(st.sampled_from((b"[", b'{"a":')))
            return b'{"unknown":' + opened * depth
    return json.dumps(draw(altered(tree))).encode()


def said_wrong(path: Path, sound: bytes) -> list[st.SearchStrategy[bytes]]:
    """Of files that hold JSON or msgpack: sound as such, wrong in what they say."""
    match path.suffix:
        case ".json":
            return [damaged_json(json.loads(sound))]
        case ".jsonl":
            lines = sound.splitlines(keepends=True)
            numbers = st.integers(0, len(lines) - 1)
            return [numbers.flatmap(lambda at: _line_of(lines, at))]
        case ".msgpack":
            return [altered(msgspec.msgpack.decode(sound)).map(packed)]
    return []


def _line_of(lines: Sequence[bytes], at: int) -> st.SearchStrategy[bytes]:
    other = damaged_json(json.loads(lines[at]))
    return other.map(lambda line: b"".join([*lines[:at], line.replace(b"\n", b"") + b"\n", *lines[at + 1 :]]))


def packed(tree: Any) -> bytes:
    """As msgpack, which knows neither larger numbers nor halves of characters."""
    try:
        return msgspec.msgpack.encode(tree)
    except (OverflowError, UnicodeEncodeError):
        return msgspec.msgpack.encode(None)


odd_texts: st.SearchStrategy[str] = st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=40))


@st.composite
def damaged_text(draw: st.DrawFn, samples: Sequence[str]) -> str:
    """What a person might type by mistake: a sound text with characters lost, doubled or odd."""
    text = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        width = draw(st.integers(0, 4))
        text = text[:at] + draw(odd_texts) + text[at + width :]
    return text
