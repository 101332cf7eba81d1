"""What the same bits cost: steps per second of two workers with --reproducible and without, in turn.

    python -m benchmarks.reproducible [--rounds 3] [--models cnn] [--steps 60] [--virtual 12,4,2]

Both are whole elastic jobs with the same model, records, global batch and threads. `--virtual_workers` says
into how many parts a step is cut; a part of few records is computed less efficiently than one of many.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import frame
from benchmarks.contestants import finish, our_job, our_pace, threads_of, write_records
from benchmarks.frame import Figure, Report, said

WORKERS = 2
BATCH = 96
"""Of each worker: a multiple of what the virtual ranks of the kinds below divide."""
EPOCH_STEPS = 60
PLAIN = "default mode"
WANTED = 1.15


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="cnn")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--virtual", default="12,4,2", help="numbers of virtual workers")


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    data = write_records(directory / "data", EPOCH_STEPS * WORKERS * BATCH)
    models = settings.models.split(",")
    report = Report(
        "reproducible",
        f"steps/s, {WORKERS} workers, global batch {WORKERS * BATCH}",
        ("", *(f"{model}, steps/s" for model in models), "time of a step beside the default mode"),
    )
    counts = [int(count) for count in settings.virtual.split(",")]
    kinds = {PLAIN: {}, **{f"{count} virtual workers": {"virtual_workers": count} for count in counts}}
    paces: dict[str, dict[str, list[float]]] = {name: {model: [] for model in models} for name in kinds}
    for round_ in range(settings.rounds):
        for model in models:
            for number, (name, more) in enumerate(kinds.items()):
                with said(f"round {round_ + 1}: {model}, {name}"):
                    where = directory / f"{model}-{number}-{round_}"
                    paces[name][model].append(_pace(where, model, data, settings.steps, more))
    _fill(report, paces, models)
    return report


def _pace(where: Path, model: str, data: Path, steps: int, more: dict[str, int]) -> float:
    numbers = {
        "num_workers": WORKERS, "minibatch_size": BATCH, "num_epochs": -(-steps // EPOCH_STEPS),
        "max_step": steps, "threads_per_worker": threads_of(WORKERS), **more,
    }  # fmt: skip
    kind = {"reproducible": True} if more else {}
    with our_job(where, model, data, **numbers, **kind, log_loss_steps=max(1, steps // 10)) as job:
        finish(job)
        return our_pace(job, worker=0, warm_up=steps // 5)


def _fill(report: Report, paces: dict[str, dict[str, list[float]]], models: list[str]) -> None:
    words = []
    for name, by_model in paces.items():
        cells, beside = [], []
        for model in models:
            figure = report.keep(f"{model}, {name}", Figure.of(by_model[model]))
            cells.append(figure.text("{:.1f}"))
            cost = report.keep(f"{model}, {name}, cost", Figure.of(paces[PLAIN][model]).over(figure))
            beside.append(f"{cost.median:.2f}")
            if name != PLAIN:
                words.append(f"{cost.text()} ({model}, {name})")
        report.rows.append((name, *cells, ", ".join(beside)))
    report.verdict = f"a step takes {', '.join(words)} times as long; wanted ≤ {WANTED} for the cnn"


if __name__ == "__main__":
    raise SystemExit(main())
