"""`elasticdl data`: make, look at, check, index and split training data."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from edl_allreduce import outside
from edl_allreduce.cli import subcommands
from edl_allreduce.data import RecordSource, open_source, read_good
from edl_allreduce.data.csv_lines import CsvSource
from edl_allreduce.data.example import Feature, decode_example
from edl_allreduce.data.files import DataFile
from edl_allreduce.data.locate import Kind
from edl_allreduce.data.source import Columns
from edl_allreduce.errors import DataError, UsageError
from edl_allreduce.spec.params import parse_params
from edl_allreduce.spec.words import Parser, did_you_mean

_PROGRAM: Final = "elasticdl data"
_CHECK_RECORDS: Final = 1024
_SHOWN_BAD_RECORDS: Final = 20

Advance = Callable[[int], None]


def main(argv: Sequence[str]) -> int:
    """Run one of the sub-commands."""
    return subcommands.run(_PROGRAM, "Make, inspect, check and split training data.", _COMMANDS, argv)


# --- make ---------------------------------------------------------------------------------------------


def _make(argv: Sequence[str]) -> int:
    from edl_allreduce.data.datasets import DATASETS
    from edl_allreduce.data.writing import Format, leave_mark, made_before, new_directory, write_columns

    listed = "\n".join(f"  {name:14} {dataset.summary}" for name, dataset in DATASETS.items())
    parser = Parser(
        f"{_PROGRAM} make",
        "DATASET OUT_DIR [flags]",
        "Write a data set as OUT_DIR/DATASET/train and OUT_DIR/DATASET/test, in files data-00000, "
        "data-00001, ...\n"
        "Records are tf.train.Example; images have `image` (floats from 0 to 255) and `label`.",
        f"Data sets:\n{listed}\n\nExample:\n  {_PROGRAM} make digits data --format=tfrecord",
    )
    parser.add_argument("dataset", metavar="DATASET", help="which data set, see below")
    parser.add_argument(
        "out_dir", metavar="OUT_DIR", type=Path, help="where the directory DATASET will appear"
    )
    parser.add_argument(
        "--format", default=Format.RECORDIO, choices=list(Format), type=Format, help="default: recordio"
    )
    parser.add_argument(
        "--records_per_shard", type=_positive, default=16 * 1024, metavar="N", help="default: 16384"
    )
    parser.add_argument(
        "--fraction",
        type=_fraction,
        default=1.0,
        metavar="F",
        help="use only this part of the records; default: 1",
    )
    parser.add_argument(
        "--source_dir",
        type=Path,
        metavar="DIR",
        help="directory of the original files; default: Keras' copies",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace OUT_DIR/DATASET if it exists")
    flags = parser.read(argv)
    dataset = DATASETS.get(flags.dataset)
    if dataset is None:
        parser.error(
            f"unknown data set {flags.dataset}: it must be one of {', '.join(DATASETS)}"
            f"{did_you_mean(flags.dataset, DATASETS)}"
        )
    if flags.source_dir is not None and not flags.source_dir.is_dir():
        raise DataError(
            f"{flags.source_dir}: is no directory; --source_dir names the one of the original files"
        )
    target = flags.out_dir / flags.dataset
    asked = {
        "dataset": flags.dataset,
        "format": flags.format,
        "records_per_shard": flags.records_per_shard,
        "fraction": flags.fraction,
        "source_dir": str(flags.source_dir.resolve()) if flags.source_dir is not None else None,
    }
    before = made_before(target)
    if before is not None and not flags.overwrite:
        if before == asked:
            print(f"{target}: is there already, as asked for; --overwrite writes it again")
            return 0
        other = ", ".join(f"{name}={before.get(name)}" for name in asked if before.get(name) != asked[name])
        raise DataError(
            f"{target}: exists already, made with {other}; remove it, choose another place, or "
            "say --overwrite"
        )
    splits = dataset.load(flags.source_dir)
    report = []
    with new_directory(target, overwrite=flags.overwrite) as fresh:
        for part, columns in (("train", splits.train), ("test", splits.test)):
            kept = _first_part(columns, flags.fraction)
            count = len(next(iter(kept.values())))
            with _progress(f"writing {target / part}", count) as advance:
                files = write_columns(
                    fresh / part,
                    kept,
                    flags.format,
                    records_per_shard=flags.records_per_shard,
                    advance=advance,
                )
            report.append(
                f"{target / part}: {_many(count, 'record')} in {_many(files, 'file')} ({flags.format})"
            )
        leave_mark(fresh, asked)
    print("\n".join(report))
    return 0


def _first_part(columns: Columns, fraction: float) -> Columns:
    count = len(next(iter(columns.values())))
    kept = max(1, round(count * fraction))
    return {name: values[:kept] for name, values in columns.items()}


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise ArgumentTypeError(f"{text!r} is not a number above 0 and up to 1")
    return value


# --- info ---------------------------------------------------------------------------------------------


def _info(argv: Sequence[str]) -> int:
    parser = _reading_parser(
        "info", "Say what is at PATH: format, number of records, files, the first record."
    )
    flags = parser.read(argv)
    source = _open(flags.path, flags.data_reader_params)
    files = _files(source)
    size = sum(file.size for file in files)
    lines = {
        "format": source.metadata.kind,
        "records": f"{len(source)}",
        "files": f"{len(files)} ({_bytes(size)}), {_shortened([file.name for file in files], 4)}",
        "fingerprint": source.fingerprint,
    }
    if source.metadata.class_names:
        classes = list(source.metadata.class_names)
        lines["classes"] = f"{len(classes)}: {_shortened(classes, 12)}"
    if source.metadata.column_names:
        lines["columns"] = _shortened(list(source.metadata.column_names), 40)
    for name, value in lines.items():
        print(f"{name + ':':13}{value}")
    print(f"first record ({source.describe(0)}):")
    for line in _summary(source):
        print(f"  {line}")
    source.close()
    return 0


def _summary(source: RecordSource) -> list[str]:
    records = source.read([0])
    if isinstance(records, dict):
        return [f"{name}: {_describe_value(values[0])}" for name, values in records.items()]
    record = records[0]
    if isinstance(source, CsvSource):
        return [_clipped(record.decode("utf-8", "replace"))]
    try:
        features = decode_example(record)
    except (ValueError, UnicodeDecodeError):
        return [f"{len(record)} bytes, not a tf.train.Example: {_clipped(repr(record))}"]
    return [f"{name}: {_describe_feature(feature)}" for name, feature in sorted(features.items())]


def _describe_feature(feature: Feature) -> str:
    count = len(feature.values)
    shown = ", ".join(_describe_item(value) for value in feature.values[:8])
    return f"{feature.kind.name.lower()} x {count}: {shown}{', ...' if count > 8 else ''}"


def _describe_item(value: bytes | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else _clipped(str(value), 40)


def _describe_value(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes: {_clipped(repr(value), 40)}"
    array = np.asarray(value)
    if array.ndim == 0:
        return f"{array.dtype}: {array.item()!r}"
    low_high = f", from {array.min()} to {array.max()}" if array.dtype.kind in "iufb" and array.size else ""
    return f"{array.dtype} {array.shape}{low_high}"


# --- index and check ------------------------------------------------------------------------------------


def _index(argv: Sequence[str]) -> int:
    parser = _reading_parser(
        "index",
        "Build the index of each file at PATH, once for all workers. It is kept beside the file, or in the "
        "cache\ndirectory of this user when the data is read-only. Workers do the same when they find none.",
    )
    flags = parser.read(argv)
    source = _open(flags.path, flags.data_reader_params)
    with_index = source.metadata.kind in (Kind.TFRECORD, Kind.RECORDIO, Kind.CSV)
    what = (
        "indexed" if with_index else f"nothing to index: {source.metadata.kind} has access by number itself"
    )
    print(f"{flags.path}: {_many(len(source), 'record')} in {_many(len(_files(source)), 'file')}, {what}")
    source.close()
    return 0


def _check(argv: Sequence[str]) -> int:
    parser = _reading_parser(
        "check", "Read every record at PATH and verify its checksum. Exit 1 when one is bad."
    )
    flags = parser.read(argv)
    source = _open(flags.path, flags.data_reader_params, allow_truncated=True)
    bad = 0
    with _progress(f"checking {flags.path}", len(source)) as advance:
        for start in range(0, len(source), _CHECK_RECORDS):
            stop = min(start + _CHECK_RECORDS, len(source))
            _, errors = read_good(source, range(start, stop))
            for error in errors[: max(0, _SHOWN_BAD_RECORDS - bad)]:
                print(error)
            bad += len(errors)
            advance(stop - start)
    source.close()
    if bad > _SHOWN_BAD_RECORDS:
        print(f"... and {bad - _SHOWN_BAD_RECORDS} more")
    if bad:
        lost = getattr(source, "lost_records", 0)
        more = f", and about {lost} more are lost" if lost else ""
        verb, rest = "is" if bad == 1 else "are", "all of them" if lost else "them"
        print(
            f"{flags.path}: {bad} of {len(source)} records {verb} bad{more}. Write the data again, or train "
            f"with --max_bad_records={bad} to go on without {rest}"
        )
        return 1
    print(f"{flags.path}: all {len(source)} records are good")
    return 0


# --- split ----------------------------------------------------------------------------------------------


def _split(argv: Sequence[str]) -> int:
    from edl_allreduce.data.splitting import split

    parser = _reading_parser(
        "split",
        "Split the records at PATH into equal parts for the static mode: OUT_DIR/N/data for trainer N.\n"
        "With --job_name the parts appear as OUT_DIR/JOB_NAME/N/data.",
    )
    parser.add_argument(
        "--split_count", type=_positive, metavar="N", help="number of parts; default: $SPLIT_COUNT"
    )
    parser.add_argument("--out_dir", metavar="DIR", help="default: $OUT_DIR")
    parser.add_argument("--job_name", default="", metavar="NAME", help="directory of the job inside DIR")
    parser.add_argument("--overwrite", action="store_true", help="replace parts that exist")
    flags = parser.read(argv)
    count = flags.split_count or _count_from_environment()
    out_dir = flags.out_dir or os.environ.get("OUT_DIR")
    if not count or not out_dir:
        missing = "--split_count (or SPLIT_COUNT)" if not count else "--out_dir (or OUT_DIR)"
        raise UsageError(f"{missing} is needed.\nSee `{parser.prog} --help`.")
    source = _open(flags.path, flags.data_reader_params)
    out = Path(out_dir) / flags.job_name
    with _progress(f"splitting {flags.path}", len(source)) as advance:
        parts = split(source, count, out, overwrite=flags.overwrite, advance=advance)
    print(f"{len(source)} records in {count} parts: {_shortened([str(part) for part in parts], 3)}")
    source.close()
    return 0


def _count_from_environment() -> int | None:
    text = os.environ.get("SPLIT_COUNT")
    if not text:
        return None
    try:
        return _positive(text)
    except ArgumentTypeError as error:
        raise UsageError(f"SPLIT_COUNT: {error}.") from None


# --- shared -----------------------------------------------------------------------------------------------


def _reading_parser(command: str, description: str) -> Parser:
    parser = Parser(f"{_PROGRAM} {command}", "PATH [flags]", description)
    parser.add_argument("path", metavar="PATH", help="a directory, a file, a glob or a comma-separated list")
    parser.add_argument(
        "--data_reader_params", default="", metavar='"k=v; k=v"', help="as for train, such as reader_type=CSV"
    )
    return parser


def _open(path: str, params: str, *, allow_truncated: bool = False) -> RecordSource:
    return open_source(path, params=parse_params(params), allow_truncated=allow_truncated)


def _files(source: RecordSource) -> Sequence[DataFile]:
    files: Sequence[DataFile] = getattr(source, "files", ())
    return files


@contextmanager
def _progress(label: str, total: int) -> Iterator[Advance]:
    """A bar on a terminal, nothing elsewhere: logs are for results."""
    from rich.markup import escape
    from rich.progress import Progress

    console = outside.console(sys.stderr)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(escape(outside.name(label)), total=total)  # here rich reads markup
        pending = 0

        def advance(count: int) -> None:
            nonlocal pending
            pending += count
            if pending >= 500:  # one call per record would cost more than the record
                progress.advance(task, pending)
                pending = 0

        yield advance


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _shortened(names: Sequence[str], limit: int) -> str:
    if len(names) <= limit:
        return ", ".join(names)
    return f"{', '.join(names[: limit - 1])}, ... {names[-1]}"


def _clipped(text: str, width: int = 100) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


_COMMANDS: Final[Mapping[str, subcommands.SubCommand]] = {
    "make": ("write a data set that this package knows (mnist, digits, census, ...)", _make),
    "info": ("say what is at a path", _info),
    "index": ("build the index of each file beforehand", _index),
    "check": ("read every record and verify it", _check),
    "split": ("split into parts for the static mode", _split),
}
