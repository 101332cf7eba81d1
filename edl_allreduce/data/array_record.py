"""ArrayRecord: random access is part of the format. Needs array-record (the extra ``arrayrecord``)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from edl_allreduce.data.files import DataFile
from edl_allreduce.data.sharded import ShardedBytes
from edl_allreduce.errors import DataError, SetupError

try:
    from array_record.python.array_record_module import ArrayRecordReader
except ImportError as error:
    raise SetupError(
        "reading ArrayRecord needs array-record, which is not installed; install it with: "
        "pip install 'edl-allreduce[arrayrecord]'"
    ) from error


class ArrayRecordSource(ShardedBytes):
    """Whole records. The format finds and checks them itself."""

    kind = "arrayrecord"

    def __init__(self, files: Sequence[DataFile]) -> None:
        self._readers: list[Any] = []
        self._locks = [threading.Lock() for _ in files]
        for file in files:
            # No read-ahead: records are asked for by number, not in sequence.
            reader = ArrayRecordReader(str(file.on_this_machine()), options="readahead_buffer_size:0")
            self._readers.append(reader)
            if not reader.ok():  # the constructor is silent; closing tells why
                why = self._close_readers()
                raise DataError(f"{file.path}: is not a whole ArrayRecord file ({why}); write it again")
        super().__init__(files, [reader.num_records() for reader in self._readers])

    def _offset(self, shard: int, local: int) -> None:
        return None

    def _read_shard(self, shard: int, local: list[int]) -> list[bytes]:
        with self._locks[shard]:
            if not self._readers:
                raise DataError(
                    f"{self._files[shard].path}: the source was closed; open it again to read from it"
                )
            reader = self._readers[shard]
            try:
                records: list[bytes] = reader.read(local)
            except (RuntimeError, ValueError, OSError):
                records = [self._read_one(reader, shard, number) for number in local]
        return records

    def _read_one(self, reader: Any, shard: int, local: int) -> bytes:
        """One at a time, to learn which record of a failed read is the bad one."""
        try:
            record: bytes = reader.read([local])[0]
        except (RuntimeError, ValueError, OSError) as error:
            raise self._bad(shard, local, str(error)) from error
        return record

    def close(self) -> None:
        super().close()
        self._close_readers()

    def _close_readers(self) -> str:
        """Close all; what a reader had to complain about comes out here."""
        complaint = ""
        for reader in self._readers:
            try:
                reader.close()
            except RuntimeError as error:
                complaint = str(error)
        self._readers = []
        return complaint
