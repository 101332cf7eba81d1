"""What a job owes its user besides the model: checkpoints that were asked for, records that were left out.

A job may end with a model and still not have done what it was told. This is where that is written down, in
the master or, where none leads, in the process itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

TOLD_ONE_BY_ONE = 10
"""Bad records that are each worth an event; after them only each doubling of their number is."""


@dataclass
class Account:
    """Grows while the job runs; `shortfall` and `remarks` are read when it ends."""

    bad_allowed: int = 0
    warning: str = ""
    """What the workers say about the result."""
    expected: str = ""
    """The fingerprint that the weights must have at the end; empty: any."""
    fingerprint: str = ""
    """Of the weights at the end, where the job is reproducible."""
    written: int = 0
    """Checkpoints of this run that are on disk."""
    _failed: int = 0
    _failure: str = ""
    _bad: dict[tuple[str, int], int] = field(default_factory=dict)
    """Which data, which record; and how many more records were lost with it, as far as one can tell."""

    def copy(self) -> Account:
        """For whoever keeps the one from before."""
        return replace(self, _bad=dict(self._bad))

    def checkpointed(self, step: int, path: str, error: str) -> str:
        """What is to be told of a checkpoint that was tried; `path`: where it is, or should be."""
        if not error:
            self.written += 1
            return f"step {step} is in {path}"
        self._failed += 1
        self._failure = f"{path}: {error}"
        return f"the checkpoint of step {step} could NOT be written to {path}: {error}"

    def left_out(self, data: str, records: Mapping[int, tuple[str, int]]) -> str:
        """Count bad records, each once, however often it is met; what is to be told of new ones, if anything.

        `records`: by index, what is wrong, and how many more are lost with it.
        """
        before = len(self._bad)
        new = [index for index in sorted(records) if (data, index) not in self._bad]
        self._bad |= {(data, index): records[index][1] for index in new}
        count = len(self._bad)
        if not new or (before >= TOLD_ONE_BY_ONE and count.bit_length() == before.bit_length()):
            return ""
        more = f" (and {len(new) - 1} more)" if len(new) > 1 else ""
        return f"left out of the {data}: {records[new[0]][0]}{more}; {self._count()}"

    def _count(self) -> str:
        return f"{_many(len(self._bad))} so far, {self.bad_allowed} allowed (--max_bad_records)"

    @property
    def too_many(self) -> str:
        """Why the job cannot go on: more bad records than allowed."""
        if len(self._bad) <= self.bad_allowed:
            return ""
        return f"{self._count()}. Check the data with: elasticdl data check"

    @property
    def shortfall(self) -> str:
        """What was asked for and is not there at all."""
        if self._failed and not self.written:
            return f"no checkpoint could be written to {self._failure}"
        return ""

    @property
    def mismatch(self) -> str:
        """How the weights are not those that were expected."""
        if not self.expected or self.fingerprint == self.expected:
            return ""
        return (
            f"the fingerprint of its weights is {self.fingerprint or 'not known'}, expected was "
            f"{self.expected} (--verify_fingerprint): data, model file, flags such as --virtual_workers, "
            "versions or machine differ from those of the other run"
        )

    @property
    def remarks(self) -> str:
        """What else a user must know at the end; empty when all is as it was asked for."""
        parts = [self.warning] if self.warning else []
        if self._bad:
            lost = sum(self._bad.values())
            with_them = f" and about {lost} more lost with {'it' if len(self._bad) == 1 else 'them'}"
            parts.append(f"{_many(len(self._bad))} left out{with_them if lost else ''}")
        if self._failed and self.written:
            tried = self._failed + self.written
            parts.append(f"{self._failed} of {tried} checkpoints could not be written ({self._failure})")
        return "; ".join(parts)


def _many(count: int) -> str:
    return f"{count} bad record{'' if count == 1 else 's'}"
