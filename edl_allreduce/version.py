"""The version of this package, in one place."""

__version__ = "0.1.0"

STOCK_HOROVOD = (
    "a stock build. Training works; not guaranteed: a worker that dies while the ring forms may take others "
    "with it, survivors may wait for --failure_detection_seconds, and the ring's connections do not ask who "
    "comes (docs/security.md)."
)
