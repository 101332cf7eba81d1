"""Failures of a ring, from the words of Horovod, Gloo and TensorFlow to our own error."""

from __future__ import annotations

import logging

import tensorflow as tf

from edl_allreduce import outside
from edl_allreduce.core import ring_words
from edl_allreduce.errors import RingBroken

log = logging.getLogger(__name__)

BROKEN = (
    tf.errors.UnknownError,
    tf.errors.AbortedError,
    tf.errors.UnavailableError,
    tf.errors.FailedPreconditionError,
)
"""What a failed Horovod operation raises inside a tf.function; the last one when ranks brought tensors of
different shapes, which is no reason for all of them to die."""


def broken(error: tf.errors.OpError) -> RingBroken:
    """The ring's failure as our own error."""
    return RingBroken(plain(str(error.message) or type(error).__name__))


def plain(words: str) -> str:
    """For people; whoever looks for the cause in Gloo finds its own words in the log."""
    log.info("Horovod says: %s", outside.line(words, 1000))
    return ring_words.plain(words)
