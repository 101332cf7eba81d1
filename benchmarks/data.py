"""Does reading by index keep up with plain tf.data reading of the same files, both shuffled?

    python -m benchmarks.data [--records 20000] [--pixels 784] [--batch 64] [--rounds 5] [--json FILE]

Both sides give shuffled, parsed batches of the same records to the same thread. tf.data reads TFRecord files
in sequence through its shuffle buffer (16 Ki records, as many as our shuffle mixes) and a `feed` per record;
ours is the worker's own pipeline: order by arithmetic, random reads with every checksum verified, the same
`feed`, one thread ahead of the training thread. Rounds alternate, so that what else the machine does hits
both; the figure is the median over rounds of the ratio ours / tf.data.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from edl_allreduce.core.schedule import BLOCK_RECORDS, WINDOW_BLOCKS, Order, Schedule
from edl_allreduce.data import Columns, RecordSource, open_source
from edl_allreduce.data.writing import Format, write_columns

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf  # after the variable that keeps it quiet

from edl_allreduce.worker.pipeline import Parser, Pipeline
from edl_allreduce.worker.zoo import Mode

FILES = 8
WANTED_RATIO = 0.95


def main(argv: list[str] | None = None) -> int:
    """Measure, show, and fail when reading does not keep up."""
    parser = argparse.ArgumentParser(description="reading by index against plain tf.data reading")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--pixels", type=int, default=784)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    flags = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(Path(directory), flags.records, flags.pixels, flags.batch, flags.rounds)
    show(figures)
    if flags.json:
        flags.json.write_text(
            json.dumps({"settings": vars(flags) | {"json": None}, "figures": figures}, indent=2)
        )
    return 0 if figures["tfrecord"]["ratio"] >= WANTED_RATIO else 1


def measure(
    directory: Path, records: int, pixels: int, batch: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Records per second of tf.data on TFRecord files and of ours on several formats."""
    random = np.random.default_rng(0)
    columns: Columns = {
        "image": random.integers(0, 256, (records, pixels), dtype=np.uint8),
        "label": random.integers(0, 10, records),
    }
    for form in (Format.TFRECORD, Format.RECORDIO):
        write_columns(
            directory / form, columns, form, records_per_shard=-(-records // FILES), advance=lambda _: None
        )

    def feed(dataset: Any, mode: object, metadata: object) -> Any:
        spec = {
            "image": tf.io.FixedLenFeature([pixels], tf.float32),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        parsed = dataset.map(lambda record: tf.io.parse_single_example(record, spec))
        return parsed.map(lambda features: (features["image"] / 255.0, features["label"]))

    files = sorted(map(str, (directory / Format.TFRECORD).glob("data-*")))

    def plain() -> Iterator[int]:
        dataset = tf.data.TFRecordDataset(files).shuffle(BLOCK_RECORDS * WINDOW_BLOCKS)
        for _, labels in feed(dataset, None, None).batch(batch).prefetch(4):
            yield len(labels)

    contestants: dict[str, Callable[[], Iterator[int]]] = {"tf.data": plain}
    for form in (Format.TFRECORD, Format.RECORDIO):
        source = open_source(str(directory / form))
        contestants[form] = _ours(source, Parser(feed, Mode.TRAINING, source.metadata), batch)
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    for round_ in range(rounds + 1):
        for name, contestant in contestants.items():
            wall, used = time.perf_counter(), time.process_time()
            read = sum(contestant())
            wall, used = time.perf_counter() - wall, time.process_time() - used
            if read != records:
                raise AssertionError(f"{name} read {read} records of {records}")
            if round_:  # the first one warms up: traces, page cache
                rates[name].append(records / wall)
                cpu[name].append(used / records * 1e6)
    return {
        name: {
            "records_per_second": statistics.median(rates[name]),
            "cpu_microseconds_per_record": statistics.median(cpu[name]),
            "ratio": statistics.median(a / b for a, b in zip(rates[name], rates["tf.data"], strict=True)),
        }
        for name in contestants
    }


def _ours(source: RecordSource, parser: Parser, batch: int) -> Callable[[], Iterator[int]]:
    schedule = Schedule(Order(len(source), seed=1), epochs=1)

    def run() -> Iterator[int]:
        pipeline = Pipeline(
            source,
            schedule,
            parser,
            rank=0,
            size=1,
            step=0,
            position=0,
            global_batch=batch,
            minibatch=batch,
            bad_records_allowed=0,
        )
        for _ in range(schedule.steps(batch)):
            yield sum(part.records for part in pipeline.take().parts)
        pipeline.close()

    return run


def show(figures: dict[str, dict[str, float]]) -> None:
    table = Table("reader", "records/s", "CPU µs/record", "ratio")
    for name, row in figures.items():
        table.add_row(
            name,
            f"{row['records_per_second']:.0f}",
            f"{row['cpu_microseconds_per_record']:.1f}",
            f"{row['ratio']:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
