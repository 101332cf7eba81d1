"""tf.train.Example without TensorFlow: the same bytes."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.data.example import FeatureKind, decode_example, encode_example

# SerializeToString(deterministic=True) of TensorFlow, for the features of the test below.
GOLDEN = bytes.fromhex(
    "0a590a0b0a05656d707479120212000a150a05696d616765120c120a0a080000003f0000803f0a0e0a056c6162656c12051a030a"
    "01030a170a036e656712101a0e0a0cffffffffffffffffff01ac020a0a0a017312050a030a0178"
)


def test_the_bytes_are_those_that_tensorflow_writes():
    features = {
        "image": np.array([[0.5], [1]], np.float32),
        "label": np.array(3),
        "neg": np.array([-1, 300]),
        "s": b"x",
    }
    ours = encode_example(features)
    # TensorFlow leaves the field out of an empty list; ours never writes empty lists, so compare the rest.
    empty = bytes.fromhex("0a0b0a05656d70747912021200")
    assert ours[2:] == GOLDEN[2:].replace(empty, b"")
    decoded = decode_example(GOLDEN)
    assert decoded["image"].values == [0.5, 1.0]
    assert decoded["neg"].values == [-1, 300]
    assert decoded["s"].values == [b"x"]
    assert decoded["empty"].values == []


values = st.one_of(
    st.binary(max_size=20),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5).map(lambda v: np.array(v, np.int64)),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5).map(
        lambda v: np.array(v, np.float32)
    ),
)


@given(st.dictionaries(st.text(max_size=8), values, min_size=1, max_size=5))
@settings(deadline=None)
def test_what_was_encoded_is_decoded(features):
    decoded = decode_example(encode_example(features))
    assert set(decoded) == set(features)
    for name, value in features.items():
        if isinstance(value, bytes):
            assert decoded[name].values == [value]
        else:
            assert decoded[name].kind == (
                FeatureKind.FLOAT if value.dtype == np.float32 else FeatureKind.INT64
            )
            assert decoded[name].values == value.tolist()


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_and_never_crash(data):
    with contextlib.suppress(ValueError, UnicodeDecodeError):
        decode_example(data)


@pytest.mark.parametrize("record", [b"", b"1,2,3", b"\x0a\x05abc"])
def test_what_is_no_example_is_refused(record):
    with pytest.raises(ValueError):
        decode_example(record)


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="bytes, floats or whole numbers"):
        encode_example({"a": np.array([1j])})
