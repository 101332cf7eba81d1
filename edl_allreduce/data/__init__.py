"""Record sources: any supported format, opened by path, read by record index."""

from edl_allreduce.data.opening import open_source, read_good
from edl_allreduce.data.source import Columns, Metadata, Records, RecordSource

__all__ = ["Columns", "Metadata", "RecordSource", "Records", "open_source", "read_good"]
