"""All benchmarks, one after the other, each in a process of its own.

    python -m benchmarks [--only steady,reform] [--directory build/benchmarks] [--write docs/….md]

Every figure goes to DIRECTORY/NAME.json. With --write the results section of a document is replaced.
`network` needs root and runs only when it is named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.frame import Report, ends_like_an_interrupt, machine, versions
from edl_allreduce import clock

NAMES = (
    *("steady", "reform", "worlds", "allreduce", "data", "scale"),
    *("checkpoint", "startup", "autoscale", "seeing", "reproducible", "master"),
)
WHEN_NAMED = ("network",)
"""It needs root."""
EVERY = (*NAMES, *WHEN_NAMED)
BEGIN, END = "<!-- results: written by python -m benchmarks -->", "<!-- end of results -->"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default=",".join(NAMES), help=f"some of {', '.join(EVERY)}")
    parser.add_argument("--directory", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--write", type=Path, help="a document with a results section")
    flags = parser.parse_args(argv)
    names = flags.only.split(",")
    unknown = sorted(set(names) - set(EVERY))
    if unknown:
        parser.error(f"there is no benchmark named {', '.join(unknown)}; there are {', '.join(EVERY)}")
    flags.directory.mkdir(parents=True, exist_ok=True)
    began = clock.now()
    with ends_like_an_interrupt():
        failed = [name for name in names if not _run(name, flags.directory)]
    for name in names:
        if name not in failed:
            print(f"{name}: {_report(flags.directory, name).verdict}")
    done = f"{len(names) - len(failed)} of {len(names)} benchmarks"
    print(f"{done} in {(clock.now() - began) / 60:.1f} minutes; figures in {flags.directory}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    if flags.write:
        there = [name for name in EVERY if _path(flags.directory, name).exists()]
        write(flags.write, [_report(flags.directory, name) for name in there])
    return 1 if failed else 0


def _run(name: str, directory: Path) -> bool:
    path = _path(directory, name)
    path.unlink(missing_ok=True)
    print(f"--- {name}", flush=True)
    with subprocess.Popen([sys.executable, "-m", f"benchmarks.{name}", "--json", str(path)]) as process:
        try:
            return process.wait() == 0
        except BaseException:
            process.terminate()  # it ends what it started
            raise


def _path(directory: Path, name: str) -> Path:
    return directory / f"{name}.json"


def _report(directory: Path, name: str) -> Report:
    found = json.loads(_path(directory, name).read_text())
    return Report(**{k: v for k, v in found.items() if k not in ("machine", "versions")})


def write(document: Path, reports: list[Report]) -> None:
    """Replace what stands between the two markers."""
    text = document.read_text()
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{document} has no results section: it needs a line {BEGIN} and a line {END}")
    where = machine()
    shown = ", ".join(f"{name} {version}" for name, version in versions().items())
    place = f"{where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['system']}. {shown}."
    body = "\n".join(report.markdown() for report in reports)
    document.write_text(f"{head}{begin}\n\n{place}\n\n{body}\n{end}{tail}")


if __name__ == "__main__":
    raise SystemExit(main())
