"""Reading records of a job, without the bad ones where the job allows some (`--max_bad_records`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from edl_allreduce.core import protocol
from edl_allreduce.data import Records, RecordSource, read_good
from edl_allreduce.errors import BadRecord, DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GoodRecords:
    """What could be read, and what was left out."""

    records: Records
    indices: Sequence[int]
    """Of the records that were read, in the order in which they were asked for."""
    left_out: Sequence[int] = ()
    problems: tuple[BadRecord, ...] = ()
    """What is wrong with those."""

    @property
    def count(self) -> int:
        return len(self.indices)


def read_records(source: RecordSource, indices: Sequence[int], *, bad_allowed: int) -> GoodRecords:
    """The records of these indices. If no bad one is allowed, the first ends the job."""
    if not bad_allowed:
        return GoodRecords(_read_all(source, indices), indices)
    records, problems = read_good(source, indices)
    if not problems:
        return GoodRecords(records, indices)
    lost = {problem.index for problem in problems}
    good = [index for index in indices if index not in lost]
    return GoodRecords(records, good, [index for index in indices if index in lost], problems)


def _read_all(source: RecordSource, indices: Sequence[int]) -> Records:
    try:
        return source.read(indices)
    except BadRecord as error:
        raise DataError(
            f"{error}. Write the data again, or leave bad records out with --max_bad_records=N; "
            "`elasticdl data check` finds all of them"
        ) from error


def bad_records(data: str, problems: Iterable[BadRecord]) -> protocol.BadRecords:
    """What the job is told of records that were left out."""
    return protocol.BadRecords(data, {bad.index: (str(bad), bad.lost_with_it) for bad in problems})


def tell_left_out(
    read: GoodRecords, *, of: str, data: str, send: Callable[[protocol.BadRecords], None]
) -> None:
    """Log what was left out of the evaluation or the predictions, and tell who counts it."""
    for problem in read.problems:
        log.warning("left out of the %s: %s", of, problem)
    if read.problems:
        send(bad_records(data, read.problems))
