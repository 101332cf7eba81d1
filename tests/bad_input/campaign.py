"""How a format takes damage: `python -m tests.bad_input.campaign npy parquet --examples=1500 --seed=1`.

Prints one line per format: how many damaged files were read, were refused with our own error, and what else
happened. Ends with 1 if anything else did. Without names all formats are tried.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.bad_input.bounds import Hung, read_or_told
from tests.bad_input.damage import damaged, said_wrong
from tests.bad_input.formats import FORMATS, Format
from tests.bad_input.texts import TEXTS

STYLE = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}


class Bench:
    """A sound set of files in a directory, one of which is damaged at a time."""

    def __init__(self, form: Format, folder: Path) -> None:
        self._format = form
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.files = list(form.make(folder))
        self._sound = {path: path.read_bytes() for path in self._everything()}
        form.read(folder)
        self._restore()

    def cases(self) -> st.SearchStrategy[tuple[Path, bytes]]:
        def of(path: Path) -> st.SearchStrategy[tuple[Path, bytes]]:
            sound = self._sound[path]
            return st.one_of(damaged([sound]), *said_wrong(path, sound)).map(
                lambda data: (path, self._format.repair(data))
            )

        return st.sampled_from(self.files).flatmap(of)

    def try_it(self, path: Path, data: bytes) -> str:
        """What the reader said about the damaged file; empty if it could read it."""
        if path.exists():
            path.unlink()  # another inode and another time: no index of the last one fits
        path.write_bytes(data)
        try:
            return read_or_told(lambda: self._format.read(self._folder))
        finally:
            self._restore()

    def _everything(self) -> list[Path]:
        return [path for path in self._folder.rglob("*") if path.is_file()]

    def _restore(self) -> None:
        for path in self._everything():
            if path not in self._sound:
                path.unlink()
        for path, data in self._sound.items():
            if not path.exists() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)


def count(
    cases: st.SearchStrategy[Any], try_it: Callable[..., str], examples: int, number: int
) -> Counter[str]:
    """How often each outcome was seen."""
    seen: Counter[str] = Counter()

    @seed(number)
    @settings(max_examples=examples, phases=[Phase.generate], **STYLE)
    @given(cases)
    def run(case: Any) -> None:
        try:
            seen["told" if try_it(*case) else "read"] += 1
        except (Exception, Hung, SystemExit) as error:  # noqa: BLE001 - what it is, is the finding
            where = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in where if "edl_allreduce" in frame.filename] or where
            place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
            seen[f"{type(error).__name__} at {place}: {str(error)[:80]!r}"] += 1

    run()
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--examples", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", type=int, default=4, help="of unclean ends that are shown")
    arguments = parser.parse_args()
    unclean_ever = False
    for name, cases, try_it in _chosen(arguments.names):
        with contextlib.redirect_stderr(io.StringIO()):
            seen = count(cases, try_it, arguments.examples, arguments.seed)
        clean = seen["read"] + seen["told"]
        unclean = {text: many for text, many in seen.most_common() if text not in ("read", "told")}
        wrong, tried = sum(unclean.values()), sum(seen.values())
        unclean_ever |= wrong > 0
        share = 100 * wrong / tried
        print(
            f"{name:<20} tried {tried:5}  read {seen['read']:5}  told {seen['told']:5}  "
            f"unclean {wrong:5} ({share:.1f} %)"
        )
        assert clean + wrong == tried
        for text, many in list(unclean.items())[: arguments.kinds]:
            print(f"    {many:5} x {text}")
        sys.stdout.flush()
    return 1 if unclean_ever else 0


def _chosen(names: list[str]):
    with tempfile.TemporaryDirectory() as scratch:
        for form in FORMATS:
            if not names or form.name in names:
                bench = Bench(form, Path(scratch) / form.name)
                yield form.name, bench.cases(), bench.try_it
        for text in TEXTS:
            if not names or text.name in names:
                yield text.name, text.cases.map(lambda case: (case,)), text.try_it


if __name__ == "__main__":
    sys.exit(main())
