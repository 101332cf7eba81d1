"""CSV: a record is a line; header, quotes, line ends and wrong lines are handled."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.data import csv_lines as module
from edl_allreduce.data import open_source, read_good
from edl_allreduce.errors import BadRecord, DataError


def source_of(tmp_path, text: str | bytes, name="a.csv", **params):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return open_source(str(path), params=params)


def lines(source):
    return source.read(range(len(source)))


fields = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@given(
    rows=st.lists(st.lists(fields, min_size=3, max_size=3), min_size=1, max_size=12),
    end=st.sampled_from(["\n", "\r\n"]),
    final=st.booleans(),
    window=st.sampled_from([1, 3, 7, 1 << 20]),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_any_fields_in_any_order_come_back_as_written(tmp_path_factory, rows, end, final, window, data):
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    text = out.getvalue() if final else out.getvalue().removesuffix(end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SCAN_BYTES", window)
        source = source_of(tmp_path_factory.mktemp("round"), text, header="false")
    assert len(source) == len(rows)
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20))
    read = source.read(indices)
    parsed = [next(csv.reader(io.StringIO(line.decode(), newline=""))) for line in read]
    assert parsed == [rows[i] for i in indices]


def test_a_header_is_found_and_left_out(tmp_path):
    source = source_of(tmp_path, "age,name\n41,ann\n32,bob\n")
    assert lines(source) == [b"41,ann", b"32,bob"]
    assert source.metadata.column_names == ("age", "name")
    assert source.describe(1) == "file a.csv, record 1, offset 16"


@pytest.mark.parametrize("text", ["1,2\n3,4\n", "a,b\nc,d\n", "a,a\n1,2\n", "a,\n1,2\n", "only,text"])
def test_lines_that_are_no_header_stay(tmp_path, text):
    source = source_of(tmp_path, text)
    assert lines(source) == text.encode().split()
    assert source.metadata.column_names == ()


def test_the_user_decides_about_the_header(tmp_path):
    text = "120,4,setosa\n6.4,2.8,2\n"
    assert lines(source_of(tmp_path, text, header="true")) == [b"6.4,2.8,2"]
    assert len(source_of(tmp_path, "a,b\n1,2\n", header="false")) == 2
    assert lines(source_of(tmp_path, "a,b\nc,d\n", columns="b")) == [b"d"]
    with pytest.raises(DataError, match="header=perhaps: must be one of auto, true, false"):
        source_of(tmp_path, text, header="perhaps")


def test_files_may_repeat_the_header_or_leave_it_out(tmp_path):
    (tmp_path / "1.csv").write_text("a,b\n1,x\n")
    (tmp_path / "2.csv").write_text("a,b\n2,y\n")
    (tmp_path / "3.csv").write_text("3,z\n")
    (tmp_path / "4.csv").write_text("")
    assert lines(open_source(str(tmp_path))) == [b"1,x", b"2,y", b"3,z"]


def test_columns_are_chosen_in_the_order_asked_for(tmp_path):
    source = source_of(tmp_path, 'a,b,c\n1,"x, ""y""",3\n4,"two\nlines",6\n', columns="c,b")
    assert lines(source) == [b'3,"x, ""y"""', b'6,"two\nlines"']
    assert source.metadata.column_names == ("c", "b")
    with pytest.raises(DataError, match="no column 'd'; its first line names a, b, c"):
        source_of(tmp_path, "a,b,c\n1,2,3\n", columns="a,d")


def test_columns_name_the_fields_of_a_file_without_header(tmp_path):
    source = source_of(tmp_path, "1,2\n3,4\n", columns="x,y")
    assert (source.metadata.column_names, lines(source)) == (("x", "y"), [b"1,2", b"3,4"])
    with pytest.raises(DataError, match=r"no header and 2 fields per line, but columns=\.\.\. names 3"):
        source_of(tmp_path, "1,2\n3,4\n", columns="x,y,z")


def test_blank_lines_and_a_byte_order_mark_are_no_data(tmp_path):
    source = source_of(tmp_path, b"\xef\xbb\xbfa,b\r\n\r\n1,2\r\n\n3,4")
    assert lines(source) == [b"1,2", b"3,4"]
    assert source.metadata.column_names == ("a", "b")


@pytest.mark.parametrize(
    ("name", "params", "text"),
    [
        ("a.tsv", {}, "1\t2,5\n"),
        ("a.csv", {"sep": "\\t"}, "1\t2,5\n"),
        ("a.csv", {"sep": "semicolon"}, "1;2,5\n"),
    ],
)
def test_other_separators_work(tmp_path, name, params, text):
    source = source_of(tmp_path, text, name, **params)
    assert lines(source) == [text.encode().strip()]
    assert source._width == 2


def test_a_long_separator_is_refused(tmp_path):
    with pytest.raises(DataError, match="must be one character"):
        source_of(tmp_path, "1::2\n", sep="::")


def test_a_line_with_other_fields_is_a_bad_record(tmp_path):
    source = source_of(tmp_path, 'a,b\n1,2\n3\n4,"5,6"\n7,8,9\n')
    records, errors = read_good(source, range(4))
    assert records == [b"1,2", b'4,"5,6"']
    assert [(error.index, error.offset) for error in errors] == [(1, 8), (3, 18)]
    with pytest.raises(BadRecord, match=r"a\.csv: record 1 at offset 8 .* 1 fields, the others have 2"):
        source.read([1])


def test_bytes_that_are_not_utf8_are_a_bad_record_where_they_matter(tmp_path):
    source = source_of(tmp_path, b"a,b\n1,2\n\xff,3\n", columns="b")
    with pytest.raises(BadRecord, match="not CSV in UTF-8"):
        source.read([1])


def test_a_quote_that_never_closes_is_found_when_opened(tmp_path):
    text = '1,a\n2,"b\n3,c\n'
    with pytest.raises(DataError, match=r"never closes.*quoting=none.* offset 4, after 1 whole records"):
        source_of(tmp_path, text)
    assert lines(source_of(tmp_path, text, quoting="none")) == [b"1,a", b'2,"b', b"3,c"]
    source = open_source(str(tmp_path / "a.csv"), allow_truncated=True)
    records, errors = read_good(source, range(len(source)))
    assert (records, [(error.index, error.offset) for error in errors]) == ([b"1,a"], [(1, 4)])
    assert errors[0].lost_with_it == source.lost_records == 1


def test_a_header_alone_is_no_data(tmp_path):
    with pytest.raises(DataError, match="no record"):
        source_of(tmp_path, "a,b\n", header="true")


def test_text_files_are_read_when_asked_for(tmp_path):
    source = source_of(tmp_path, "1,2\n", "a.txt", reader_type="CSV")
    assert lines(source) == [b"1,2"]
