"""Steps per second of two workers, over static horovodrun with the same model, records and global batch.

    python -m benchmarks.steady [--rounds 2] [--models mlp,cnn] [--steps 600] [--json FILE]

Ours is a whole elastic job: master, heartbeats, and the diary that proves afterwards that each record was
used once. Horovod Elastic commits its state every step, and every 10 steps. Plain Keras is one process with
all cores on the whole batch: what the ring has to be worth. These run in the first round only; every round
has ours and static horovodrun in turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks import frame
from benchmarks.contestants import (
    HOROVODRUN,
    NAMES,
    Hosts,
    finish,
    our_job,
    our_pace,
    peer,
    peer_environment,
    peers_run_on,
    program,
    threads_of,
    write_records,
)
from benchmarks.frame import Figure, Report, said
from benchmarks.marks import read_marks, steps_per_second

WORKERS = 2
BATCH = 64
"""Of each worker."""
EPOCH_STEPS = 150
STATIC = "static horovodrun"
OURS = "ours"
SLOWER = {"mlp": 1, "cnn": 8}
"""A model whose steps are so much longer gets so much fewer of them."""


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--models", default="mlp,cnn")
    parser.add_argument("--steps", type=int, default=600, help="of the small model; a large one makes fewer")
    parser.add_argument(
        "--static_only", action="store_true", help="leave out all peers but static horovodrun"
    )


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    data = write_records(directory / "data", EPOCH_STEPS * WORKERS * BATCH)
    report = Report(
        "steady",
        f"steps/s, {WORKERS} workers, global batch {WORKERS * BATCH}",
        ("", *(f"{model}, steps/s" for model in settings.models.split(",")), "ours / this"),
        notes=[peers_run_on()],
    )
    paces: dict[str, dict[str, list[float]]] = {}
    for round_ in range(settings.rounds):
        for model in settings.models.split(","):
            steps = max(EPOCH_STEPS // 5, settings.steps // SLOWER.get(model, 1))
            for name, contestant in contestants(model, steps, data).items():
                if name not in (OURS, STATIC) and (settings.static_only or round_):
                    continue
                with said(f"round {round_ + 1}: {model}, {name}"):
                    where = directory / f"{model}-{name.replace(' ', '-')}-{round_}"
                    paces.setdefault(name, {}).setdefault(model, []).append(contestant(where))
    _fill(report, paces, settings.models.split(","))
    return report


def contestants(model: str, steps: int, data: Path) -> dict[str, Callable[[Path], float]]:
    """Each gives its steps per second; in the order of a round."""
    warm_up = steps // 5
    common = {"model": model, "data": data, "steps": steps}

    def ours(where: Path) -> float:
        epochs = -(-steps // EPOCH_STEPS)
        every = max(1, steps // 10)
        numbers = {"num_workers": WORKERS, "minibatch_size": BATCH, "num_epochs": epochs, "max_step": steps}
        with our_job(where, model, data, **numbers, log_loss_steps=every) as job:
            finish(job)
            return our_pace(job, worker=0, warm_up=warm_up)

    def horovodrun(name: str, **more: int) -> Callable[[Path], float]:
        def run(where: Path) -> float:
            launcher = [*HOROVODRUN, "-np", str(WORKERS)]
            if name == "elastic":
                launcher = Hosts(where, NAMES[:WORKERS]).launcher(WORKERS)
            ranks = program(
                name, **common, batch=BATCH, threads=threads_of(WORKERS), marks=where / "marks", **more
            )
            with peer(where, [*launcher, *ranks], peer_environment()) as running:
                running.wait()
                return max(steps_per_second(marks, warm_up) for marks in read_marks(running.marks).values())

        return run

    def alone(where: Path) -> float:
        command = program(
            "plain", **common, batch=BATCH * WORKERS, threads=threads_of(1), marks=where / "marks"
        )
        with peer(where, command, peer_environment()) as running:
            running.wait()
            (marks,) = read_marks(running.marks).values()
            return steps_per_second(marks, warm_up)

    every = {
        OURS: ours,
        STATIC: horovodrun("static"),
        "Horovod Elastic, commit each step": horovodrun("elastic", commit_every=1),
        "Horovod Elastic, commit each 10": horovodrun("elastic", commit_every=10),
        "plain Keras, one process": alone,
    }
    small = model == "mlp"  # a commit does not show in long steps
    return {k: v for k, v in every.items() if small or k in (OURS, STATIC, "plain Keras, one process")}


def _fill(report: Report, paces: dict[str, dict[str, list[float]]], models: list[str]) -> None:
    ratios = {}
    for name, by_model in paces.items():
        cells, beside = [], []
        for model in models:
            figure = report.keep(f"{model}, {name}", Figure.of(by_model.get(model, [])))
            cells.append(figure.text("{:.1f}"))
            if figure.values and name != OURS:
                ratio = Figure.of(paces[OURS][model]).over(figure)
                ratios[model, name] = ratio
                beside.append(f"{ratio.median:.2f}")
        report.rows.append((name, *cells, ", ".join(beside)))
    words = []
    for model in models:
        ratio = report.keep(f"{model}, ratio", ratios[model, STATIC])
        words.append(f"{ratio.text()} ({model})")
    report.verdict = f"ours / {STATIC} = {', '.join(words)}; wanted ≥ 1.0 each"


if __name__ == "__main__":
    raise SystemExit(main())
