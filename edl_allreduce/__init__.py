"""Elastic allreduce training for TensorFlow: the ring re-forms inside living processes."""

from edl_allreduce.version import __version__

__all__ = ["__version__"]
