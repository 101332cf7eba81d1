"""Does reading by index keep up with plain tf.data reading of the same files, both shuffled?

    python -m benchmarks.data [--records 20000] [--pixels 784] [--batch 64] [--rounds 4] [--s3] [--json FILE]

Both sides give shuffled, parsed batches of the same records to the same thread. tf.data reads TFRecord files
in sequence through its shuffle buffer (16 Ki records, as many as our shuffle mixes) and a `feed` per record;
ours is the worker's own pipeline: order by arithmetic, random reads with every checksum verified, the same
`feed`, read by one thread and parsed by two, ahead of the training thread. Rounds alternate, so that what
else the machine does hits both; the figure is the median over rounds of the ratio ours / tf.data.

With --s3 the TFRecord files are also read from an S3 server on loopback (kubelab builds it once): with an
empty cache in each round, and with what an earlier round left in the cache.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import frame
from benchmarks.frame import BenchmarkFailed, Figure, Report
from edl_allreduce import clock
from edl_allreduce.core.schedule import BLOCK_RECORDS, WINDOW_BLOCKS, Order, Schedule
from edl_allreduce.data import Columns, RecordSource, open_source
from edl_allreduce.data.writing import Format, write_columns
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import place
from kubelab.buckets import s3_environment
from kubelab.servers import s3_server

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf  # after the variable that keeps it quiet

from edl_allreduce.worker.keras.pipeline import Parser, Pipeline
from edl_allreduce.worker.keras.zoo import Mode

FILES = 8
PEER = "tf.data"


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--pixels", type=int, default=784)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--s3", action="store_true", help="also from an S3 server on loopback")


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    """Records per second of tf.data on TFRecord files and of ours on several formats."""
    with _bucket(directory) if settings.s3 else nullcontext("") as bucket:
        return _measured(settings, directory, bucket)


def _measured(settings: argparse.Namespace, directory: Path, bucket: str) -> Report:
    readers = _readers(directory, settings.records, settings.pixels, settings.batch, bucket)
    rates: dict[str, list[float]] = {name: [] for name in readers}
    cpu: dict[str, list[float]] = {name: [] for name in readers}
    for round_ in range(settings.rounds + 1):
        for name, reader in readers.items():
            wall, used = clock.now(), time.process_time()
            read = sum(reader())
            wall, used = clock.now() - wall, time.process_time() - used
            if read != settings.records:
                raise BenchmarkFailed(f"{name} read {read} records of {settings.records}")
            if round_:  # the first one warms up: traces, page cache
                rates[name].append(read / wall)
                cpu[name].append(used / read)
    report = Report("data", "shuffled, parsed records", ("reader", "records/s", "CPU µs/record", "/ tf.data"))
    peer = Figure.of(rates[PEER])
    for name in readers:
        rate = report.keep(f"{name}, records/s", Figure.of(rates[name]))
        spent = report.keep(f"{name}, CPU s/record", Figure.of(cpu[name]))
        ratio = report.keep(f"{name}, ratio", rate.over(peer))
        report.rows.append((name, rate.text("{:.0f}"), f"{spent.median * 1e6:.1f}", f"{ratio.median:.2f}"))
    ours = Figure.of(report.figures[f"{Format.TFRECORD}, ratio"])
    report.verdict = f"ours / {PEER} on the same files = {ours.text()}; wanted ≥ 0.95"
    return report


def _readers(
    directory: Path, records: int, pixels: int, batch: int, bucket: str
) -> dict[str, Callable[[], Iterator[int]]]:
    """Each gives the sizes of its batches."""
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

    readers: dict[str, Callable[[], Iterator[int]]] = {PEER: plain}
    for form in (Format.TFRECORD, Format.RECORDIO):
        source = open_source(str(directory / form))
        readers[form] = _ours(source, Parser(feed, Mode.TRAINING, source.metadata), batch)
    if bucket:
        for file in map(Path, files):
            store().upload(file, place(f"{bucket}/{file.name}"))
        source = open_source(bucket)
        kept = _ours(source, Parser(feed, Mode.TRAINING, source.metadata), batch)

        def fetched() -> Iterator[int]:
            for block in (directory / "cache").glob("*/*"):
                block.unlink()
            yield from kept()

        readers["tfrecord in S3, empty cache"] = fetched
        readers["tfrecord in S3, cached"] = kept
    return readers


@contextmanager
def _bucket(directory: Path) -> Iterator[str]:
    """A server of this process; the cache is in this directory."""
    with s3_server(directory, "records") as server:
        os.environ.update(s3_environment(server.port), EDL_CACHE_DIR=str(directory / "cache"))
        yield "s3://records/data"


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


if __name__ == "__main__":
    raise SystemExit(main())
