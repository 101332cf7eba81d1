"""Image folders: encoded bytes and the number of the class."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.data import open_source, read_good
from edl_allreduce.errors import BadRecord, DataError

PNG = b"\x89PNG\r\n\x1a\n"


def fill(root, names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PNG + name.encode())
    return root


NAMES = ["cat/1.png", "cat/2.png", "cat/deep/3.png", "ant/9.png", "dog/0.png"]
IN_ORDER = ["ant/9.png", "cat/1.png", "cat/2.png", "cat/deep/3.png", "dog/0.png"]


@given(st.lists(st.integers(0, 4), max_size=10))
@settings(max_examples=25, deadline=None)
def test_any_images_in_any_order_come_back_with_their_class(tmp_path_factory, indices):
    source = open_source(str(fill(tmp_path_factory.mktemp("round"), NAMES)))
    columns = source.read(indices)
    assert columns["image"].tolist() == [PNG + IN_ORDER[i].encode() for i in indices]
    assert columns["label"].tolist() == [[0, 1, 1, 1, 2][i] for i in indices]
    assert columns["label"].dtype == "int64"


def test_classes_are_named(tmp_path):
    source = open_source(str(fill(tmp_path, NAMES)))
    assert source.metadata.class_names == ("ant", "cat", "dog")
    assert source.metadata.column_names == ("image", "label")
    assert source.describe(3) == "file cat/deep/3.png"
    assert len(source) == 5


def test_a_glob_of_classes_means_the_same(tmp_path):
    whole = open_source(str(fill(tmp_path, NAMES)))
    globbed = open_source(str(tmp_path / "*"))
    assert globbed.fingerprint == whole.fingerprint
    assert globbed.metadata == whole.metadata


def test_images_without_classes_have_no_label(tmp_path):
    source = open_source(str(fill(tmp_path, ["b.png", "a.png"])))
    assert list(source.read([0, 1])) == ["image"]
    assert source.metadata.class_names == ()


def test_an_image_beside_the_classes_is_refused(tmp_path):
    fill(tmp_path, [*NAMES, "stray.png"])
    with pytest.raises(DataError, match=r"stray\.png: lies beside directories of classes"):
        open_source(f"{tmp_path}/*")


def test_what_is_no_image_is_a_bad_record(tmp_path):
    fill(tmp_path, NAMES)
    (tmp_path / "cat" / "2.png").write_bytes(b"<html>")
    source = open_source(str(tmp_path))
    with pytest.raises(BadRecord, match=r"cat/2\.png \(index 2\) is bad: .* b'<html>'"):
        source.read([0, 2])
    columns, errors = read_good(source, range(5))
    assert columns["label"].tolist() == [0, 1, 1, 2]
    assert [error.index for error in errors] == [2]


def test_an_image_that_changed_or_vanished_is_a_bad_record(tmp_path):
    source = open_source(str(fill(tmp_path, NAMES)))
    (tmp_path / "ant" / "9.png").write_bytes(PNG)
    (tmp_path / "dog" / "0.png").unlink()
    with pytest.raises(BadRecord, match="had 17 bytes when the data was opened, now it has 8"):
        source.read([0])
    with pytest.raises(BadRecord, match="cannot be read"):
        source.read([4])
