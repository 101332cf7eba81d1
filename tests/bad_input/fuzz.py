"""Damage that learns: `make fuzz FORMAT=recordio SECONDS=600`, with atheris (libFuzzer for Python).

Hypothesis damages sound files by chance; this keeps what reached a line of our readers that nothing reached
before, and damages that further. Wrong is what `campaign` calls unclean. It ends at the first one; the file
that did it is `crash-…` in build/fuzz/FORMAT. What was learnt is kept there, too.

atheris is no package of the project: `make fuzz` puts it into build/fuzz.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found, unused-ignore]

with atheris.instrument_imports(include=["edl_allreduce"]):
    from tests.bad_input.campaign import Bench
    from tests.bad_input.formats import FORMATS

KEPT = Path("build/fuzz")
LONGEST = 1 << 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[form.name for form in FORMATS])
    parser.add_argument("--seconds", type=int, default=60)
    flags = parser.parse_args()
    form = next(form for form in FORMATS if form.name == flags.name)
    kept = KEPT / form.name
    (kept / "corpus").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(form, Path(scratch))
        files = sorted(bench.files)
        for number, path in enumerate(files):
            (kept / "corpus" / f"sound-{number}").write_bytes(bytes([number]) + path.read_bytes())

        def one(data: bytes) -> None:
            """The first byte says which file of several it is."""
            if data:
                bench.try_it(files[data[0] % len(files)], form.repair(data[1:]))

        # The clock is ours (`bounds`), and so is the limit of memory.
        limits = ["-timeout=0", "-handle_alrm=0", "-rss_limit_mb=0", f"-max_len={LONGEST}"]
        ends = [f"-max_total_time={flags.seconds}", f"-artifact_prefix={kept}/"]
        atheris.Setup([sys.argv[0], *limits, *ends, str(kept / "corpus")], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
