"""Curves for TensorBoard (`--tensorboard_log_dir`), written by rank 0.

When another rank becomes rank 0 it goes on in a file of its own; TensorBoard shows them as one curve.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from edl_allreduce.core import protocol

log = logging.getLogger(__name__)

EVERY_STEPS = 10
"""Training curves get a point this often: fine enough to look at, too rare to cost time."""
FLUSH_MILLISECONDS = 2000
"""Curves that are watched move, and the disk is left alone between."""


class Summaries:
    """Without a directory nothing is written; the file is made when the first point comes."""

    def __init__(
        self,
        directory: str,
        send: Callable[[protocol.Note], None] = lambda note: None,
        about: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        """`about`: summaries of the job and its model, asked for when the file is made."""
        self._directory = directory
        self._send = send
        self._about = about
        self._writer: Any = None

    def step(self, step: int, *, loss: float, records_per_second: float, ring: int) -> None:
        if step % EVERY_STEPS == 0:
            self._write(
                step, {"train/loss": loss, "train/records_per_second": records_per_second, "ring/size": ring}
            )

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self._write(step, {f"evaluation/{name}": value for name, value in metrics.items()})

    def pause(self, step: int, seconds: float, ring: int) -> None:
        self._write(step, {"ring/pause_seconds": seconds, "ring/size": ring})

    def flush(self) -> None:
        if self._writer is not None:
            self._try(self._writer.flush)

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        if self._directory:
            self._try(lambda: self._append(step, values))

    def _try(self, write: Callable[[], None]) -> None:
        """Curves are for looking at: a disk that fails ends them, not the training."""
        try:
            write()
        except (OSError, tf.errors.OpError) as error:
            text = f"no more curves are written to {self._directory}: {error}"
            self._directory, self._writer = "", None
            log.warning("%s", text)
            self._send(protocol.Note(protocol.NoteKind.WARNING, text, once=True))

    def _append(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._directory, flush_millis=FLUSH_MILLISECONDS)
            with self._writer.as_default():
                for summary in self._about():
                    tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=0)
        # tf.summary.scalar would need the package tensorboard, which only a reader needs.
        points = [tf.compat.v1.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        summary = tf.compat.v1.Summary(value=points).SerializeToString()
        with self._writer.as_default():
            tf.summary.experimental.write_raw_pb(summary, step=step)
