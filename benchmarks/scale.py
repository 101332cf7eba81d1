"""How long does it take to open a large data set, and what does it hold in memory?

    python -m benchmarks.scale [--records 1280000] [--shards 1024] [--bytes 64] [--rounds 2] [--json FILE]

As many records and shards as ImageNet has, but small ones: what grows with their number is measured, not the
disk. Each part runs in a process of its own, so that memory is its own: first without any index, then with
those that the first one left. The first batch is 256 records of the shuffled order; the one in the middle is
what a worker reads first that joins in the middle of an epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from benchmarks import frame
from benchmarks.frame import BenchmarkFailed, Figure, Report
from edl_allreduce import clock
from edl_allreduce.core.schedule import Order, Schedule
from edl_allreduce.data import open_source
from edl_allreduce.data.writing import Format, write_shards

BATCH = 256
FORMATS = (Format.TFRECORD, Format.RECORDIO)
WANTED = 10.0
"""Seconds with an index: what a newcomer spends on importing TensorFlow anyway."""


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=1_280_000)
    parser.add_argument("--shards", type=int, default=1024)
    parser.add_argument("--bytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    """Opening, the first batch and memory, for each format, without and with an index."""
    title = f"{settings.records:,} records in {settings.shards:,} shards"
    columns = ("format", "open", "first batch", "batch in the middle", "memory", "index")
    report = Report("scale", title, columns)
    slowest = 0.0
    for form in FORMATS:
        data = directory / form
        data.mkdir()
        record = bytes(settings.bytes - 8)
        records = (number.to_bytes(8, "little") + record for number in range(settings.records))
        write_shards(data, records, form, -(-settings.records // settings.shards), lambda count: None)
        for kind in ("without an index", "with one"):
            rounds = 1 if kind == "without an index" else settings.rounds
            found = [_in_a_process(data, directory / f"cache-{form}") for _ in range(rounds)]
            if any(each["records"] != settings.records for each in found):
                raise BenchmarkFailed(f"{form}: {found[0]['records']} records of {settings.records}")
            times = {n: Figure.of([each[n] for each in found]) for n in ("open", "first", "middle")}
            for name, figure in times.items():
                report.keep(f"{form} {kind}, {name} s", figure)
            memory = max(each["memory"] for each in found)
            index = _size(directory / f"cache-{form}") + sum(p.stat().st_size for p in data.glob(".*"))
            report.keep(f"{form} {kind}, memory bytes", Figure.of([memory]))
            report.keep(f"{form}, index bytes", Figure.of([float(index)]))
            shown = [times[name].text("{:.2f}") + " s" for name in ("open", "first", "middle")]
            row = (f"{form} {kind}", *shown, f"{memory / 2**20:.0f} MiB", f"{index / 2**20:.1f} MiB")
            report.rows.append(row)
            if kind == "with one":
                slowest = max(slowest, times["open"].median + times["first"].median)
    report.verdict = f"open and first batch with an index = {slowest:.2f} s; wanted ≤ {WANTED:.0f} s"
    return report


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _in_a_process(data: Path, cache: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.scale", "--part", str(data)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": str(cache)}
    )
    if done.returncode:
        raise BenchmarkFailed(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def part(data: str) -> dict[str, float]:
    """One process's own figures."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = clock.now()
    source = open_source(data)
    opened = clock.now()
    schedule = Schedule(Order(len(source), seed=1), epochs=2)
    source.read(schedule.order.indices(schedule.span(0, BATCH)))
    first = clock.now()
    source.read(schedule.order.indices(schedule.span(len(source) + len(source) // 2, BATCH)))
    middle = clock.now()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    times = {"open": opened - began, "first": first - opened, "middle": middle - first}
    return {**times, "memory": grown * 1024.0, "records": float(len(source))}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        print(json.dumps(part(sys.argv[2])))
    else:
        sys.exit(main())
