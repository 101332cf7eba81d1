"""CSV: one record per line, given out as the bytes of that line; a quoted field may span lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from edl_allreduce.data.files import DataFile, DataPath, opened, pread, read_spans
from edl_allreduce.data.index import FileIndex, Tear, load_all, refuse_tear
from edl_allreduce.data.sharded import ShardedBytes
from edl_allreduce.data.source import Metadata
from edl_allreduce.errors import DataError

T = TypeVar("T")

_BOM = b"\xef\xbb\xbf"
_NEWLINE, _RETURN, _QUOTE = 10, 13, 34
_SEPARATORS = {"\\t": "\t", "tab": "\t", "semicolon": ";", "pipe": "|", "space": " "}
_SCAN_BYTES = 16 << 20


@dataclass(frozen=True)
class Dialect:
    """How to take lines apart; from --data_reader_params."""

    separator: str = ","
    quoted: bool = True
    header: bool | None = None
    """None: find out by looking."""

    @classmethod
    def of(cls, params: Mapping[str, str], first: DataFile) -> Self:
        separator = params.get("sep") or ("\t" if first.path.suffix.lower() == ".tsv" else ",")
        separator = _SEPARATORS.get(separator, separator)
        if len(separator) != 1:
            raise DataError(f"sep={separator}: must be one character, or one of {', '.join(_SEPARATORS)}")
        return cls(
            separator,
            _choice(params, "quoting", {"double": True, "none": False}, default=True),
            _choice(params, "header", {"auto": None, "true": True, "false": False}, default=None),
        )

    def fields(self, line: bytes) -> list[str]:
        text = line.decode("utf-8")
        if not text:
            return [""]
        rows = csv.reader(
            io.StringIO(text, newline=""),
            delimiter=self.separator,
            quoting=csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE,
            strict=True,
        )
        return next(rows)

    def join(self, fields: Sequence[str]) -> bytes:
        out = io.StringIO(newline="")
        if self.quoted:
            # The writer quotes the characters of its line end, so both must be in it.
            csv.writer(out, delimiter=self.separator, lineterminator="\r\n").writerow(fields)
        else:
            out.write(self.separator.join(fields))
        return out.getvalue().removesuffix("\r\n").encode("utf-8")

    def count(self, line: bytes) -> int:
        """Number of fields, without the cost of a parser where no quote can hide a separator."""
        if self.quoted and b'"' in line:
            return len(self.fields(line))
        return line.count(self.separator.encode()) + 1


def _choice(params: Mapping[str, str], key: str, known: Mapping[str, T], *, default: T) -> T:
    value = params.get(key)
    if value is None:
        return default
    try:
        return known[value.strip().lower()]
    except KeyError:
        raise DataError(f"{key}={value}: must be one of {', '.join(known)} in --data_reader_params") from None


class CsvSource(ShardedBytes):
    """Lines without their line end. With ``columns``, lines that hold just these columns, in this order."""

    kind = "csv"

    def __init__(
        self,
        files: Sequence[DataFile],
        *,
        params: Mapping[str, str],
        columns: Sequence[str] = (),
        allow_truncated: bool = False,
    ) -> None:
        self._dialect = Dialect.of(params, files[0])
        stamp = f"csv quoted={self._dialect.quoted}"
        quoted = self._dialect.quoted
        indexes = load_all(files, stamp, lambda path: build_index(path, quoted), _fits)
        for file, index in zip(files, indexes, strict=True):
            if index.tear is not None and not allow_truncated:
                raise refuse_tear(file.path, index.tear)
        firsts = [self._head(file, index) for file, index in zip(files, indexes, strict=True)]
        header = self._find_header(files, firsts, columns)
        self._spans = [
            index.table[1:]
            if header is not None and lines and self._parse(file, lines[0]) == header
            else index.table
            for file, index, lines in zip(files, indexes, firsts, strict=True)
        ]
        self._width = self._find_width(files, firsts, header)
        self._chosen, names = self._choose(header, columns, str(files[0].path))
        self._metadata = Metadata(self.kind, names)
        self.header = self._dialect.join(names) if header is not None else None
        """The line that names the columns of what is read, if the files have such a line."""
        self.suffix = ".tsv" if self._dialect.separator == "\t" else ".csv"
        tears = [index.tear for index in indexes]
        counts = [len(s) + (tear is not None) for s, tear in zip(self._spans, tears, strict=True)]
        super().__init__(files, counts, tears)

    @property
    def metadata(self) -> Metadata:
        return self._metadata

    def _find_header(
        self, files: Sequence[DataFile], firsts: Sequence[Sequence[bytes]], columns: Sequence[str]
    ) -> list[str] | None:
        """The header of the first file that has lines; the other files may repeat it or leave it out."""
        if self._dialect.header is False:
            return None
        for file, lines in zip(files, firsts, strict=True):
            if lines:
                fields = [self._parse(file, line) for line in lines]
                return fields[0] if self._dialect.header or _is_header(fields, columns) else None
        return None

    def _find_width(
        self, files: Sequence[DataFile], firsts: Sequence[Sequence[bytes]], header: list[str] | None
    ) -> int:
        if header is not None:
            return len(header)
        return next(
            (len(self._parse(f, lines[0])) for f, lines in zip(files, firsts, strict=True) if lines), 0
        )

    def _choose(
        self, header: list[str] | None, columns: Sequence[str], where: str
    ) -> tuple[list[int] | None, tuple[str, ...]]:
        """Positions of the wanted columns (None: the line as it is), and the names of what comes out."""
        if not columns:
            return None, tuple(header or ())
        if header is None:
            if len(columns) != self._width:
                raise DataError(
                    f"{where}: has no header and {self._width} fields per line, but columns=... names "
                    f"{len(columns)}; name each field once, or say header=true if the first line holds the "
                    "names"
                )
            return None, tuple(columns)
        missing = [name for name in columns if name not in header]
        if missing:
            raise DataError(
                f"{where}: has no column {missing[0]!r}; its first line names {', '.join(header)}. Correct "
                "columns=... in --data_reader_params"
            )
        positions = [header.index(name) for name in columns]
        return (None if positions == list(range(len(header))) else positions), tuple(columns)

    def _head(self, file: DataFile, index: FileIndex) -> list[bytes]:
        """The first two lines, for finding the header and the number of fields."""
        with opened(file.path) as fd:
            return [pread(fd, end - start, start) for start, end in index.table[:2].tolist()]

    def _parse(self, file: DataFile, line: bytes) -> list[str]:
        try:
            return self._dialect.fields(line)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{file.path}: its first lines are not CSV in UTF-8 ({error})") from error

    def _offset(self, shard: int, local: int) -> int:
        spans, tear = self._spans[shard], self._tears[shard]
        return int(spans[local, 0]) if local < len(spans) or tear is None else tear.offset

    def _read_shard(self, shard: int, local: list[int]) -> list[bytes]:
        spans, tear = self._spans[shard], self._tears[shard]
        if tear is not None and local[-1] == len(spans):
            raise self._bad(shard, len(spans), str(tear), lost_with_it=tear.lost_records)
        starts, ends = spans[local].T.tolist()
        with self._pool.open(self._files[shard].path) as fd:
            lines = read_spans(fd, starts, ends)
        return [self._check(shard, at, line) for at, line in zip(local, lines, strict=True)]

    def _check(self, shard: int, local: int, line: bytes) -> bytes:
        try:
            if self._chosen is None:
                count = self._dialect.count(line)
            else:
                fields = self._dialect.fields(line)
                count = len(fields)
        except (csv.Error, UnicodeDecodeError) as error:
            raise self._bad(shard, local, f"it is not CSV in UTF-8 ({error})") from error
        if count != self._width:
            raise self._bad(shard, local, f"it has {count} fields, the others have {self._width}")
        return line if self._chosen is None else self._dialect.join([fields[i] for i in self._chosen])


def _fits(index: FileIndex, size: int) -> bool:
    """Whether this can be the index of a file of this size: lines one after the other, none of them empty."""
    spans, tear = index.table, index.tear
    if spans.ndim != 2 or spans.shape[1] != 2:
        return False
    bounds = spans.reshape(-1)
    if len(bounds) and (bounds[0] < 0 or bounds[-1] > size or (np.diff(bounds) < 0).any()):
        return False
    if (spans[:, 0] >= spans[:, 1]).any():
        return False
    return tear is None or (tear.whole_records == len(spans) and tear.counted == 1)


def _is_header(lines: Sequence[Sequence[str]], columns: Sequence[str]) -> bool:
    """Names: none empty, none twice, none a number, while the next line has a number; or those asked for."""
    names = lines[0]
    if columns and set(columns) <= set(names):
        return True
    if any(not name.strip() or _is_number(name) for name in names) or len(set(names)) != len(names):
        return False
    return len(lines) > 1 and any(_is_number(field) for field in lines[1])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def build_index(path: DataPath, quoted: bool) -> FileIndex:
    """[start, end) of each line that is not blank. A line end inside quotes is part of the record.

    Quotes inside quoted fields are doubled, so a line end is a record's end exactly when the number of
    quotes before it is even: that can be counted without parsing.
    """
    cuts: list[npt.NDArray[np.int64]] = []
    returns: list[npt.NDArray[np.bool_]] = []
    quotes_before = base = 0
    previous = -1
    with opened(path) as fd:
        begin = len(_BOM) if pread(fd, len(_BOM), 0) == _BOM else 0
        while block := pread(fd, _SCAN_BYTES, base):
            data = np.frombuffer(block, np.uint8)
            newlines = np.flatnonzero(data == _NEWLINE)
            if quoted:
                quotes = np.flatnonzero(data == _QUOTE)
                newlines = newlines[(np.searchsorted(quotes, newlines) + quotes_before) % 2 == 0]
                quotes_before += quotes.size
            cuts.append(newlines + base)
            before = np.where(newlines > 0, data[newlines - 1], previous)
            returns.append(before == _RETURN)
            previous = int(data[-1])
            base += data.size
    ends = np.concatenate([*cuts, np.empty(0, np.int64)]).astype(np.int64)
    stripped = ends - np.concatenate([*returns, np.empty(0, np.bool_)]).astype(np.int64)
    starts = np.concatenate(([begin], ends + 1))
    open_quote = quoted and quotes_before % 2 == 1
    last_end = base - (previous == _RETURN)
    tail = starts[-1] < last_end and not open_quote
    spans = np.stack([starts[:-1], stripped], axis=1)
    if tail:
        spans = np.concatenate([spans, [[starts[-1], last_end]]])
    spans = spans[spans[:, 1] > spans[:, 0]].astype(np.int64)
    if open_quote:
        reason = (
            "a quoted field never closes (if quotes are ordinary characters here, say quoting=none in "
            "--data_reader_params)"
        )
        start = int(starts[-1])
        return FileIndex(spans, Tear(start, len(spans), reason, lost_bytes=base - start, counted=1))
    return FileIndex(spans)
