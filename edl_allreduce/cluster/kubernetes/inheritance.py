"""What a TrainingJob's master leaves to the next one, in a ConfigMap that belongs to the TrainingJob.

The directory of a pod goes with the pod; this stays. It has a size that Kubernetes allows: the last events,
compressed, and the sums of the job. Each write names the version that it replaces, and whose it is: a master
that lives on behind a broken network does not write over what its successor wrote.
"""

from __future__ import annotations

import base64
import gzip
import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from edl_allreduce.cluster.known import event_line, read_event
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.manifests import owned
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.core.status import EventRecord
from edl_allreduce.errors import ApiRefused

log = logging.getLogger(__name__)

JOB: Final = "job.json.gz"
EVENTS: Final = "events.jsonl.gz"
HOLDER: Final = "elasticdl.org/master"
"""Annotation: the uid of the master's pod that writes."""
LARGEST_EVENTS: Final = 256 * 1024
"""Bytes, compressed; Kubernetes takes 1 MiB for the whole."""
LARGEST_TEXT: Final = 32 * 1024 * 1024
"""Bytes, unpacked: whoever may write ConfigMaps must not fill the master's memory."""
BYTES_PER_SECOND: Final = 32 * 1024
"""Of what is written on average: a large one is written more seldom."""
NOT_FOUND, CONFLICT = 404, 409


@dataclass
class KeptInConfigMap:
    """Of one TrainingJob, for one master of it. Calls block."""

    api: Api
    namespace: str
    job_name: str
    owner: Object
    """The TrainingJob."""
    holder: str
    """The uid of this master's pod."""
    _version: str = field(default="", init=False)
    _wrote: bool = field(default=False, init=False)
    _lost: bool = field(default=False, init=False)
    """Another master writes."""

    @property
    def name(self) -> str:
        return f"{names.secret_name(self.job_name, self.owner['metadata']['uid'])}-history"

    def read(self) -> tuple[bytes, list[EventRecord]]:
        """The sums and the last events that an earlier master left; nothing where there was none."""
        try:
            found = self.api.get(names.path("configmaps", self.namespace, self.name))
        except ApiRefused as error:
            if error.status != NOT_FOUND:
                raise
            return b"", []
        self._version = found["metadata"]["resourceVersion"]
        data = found.get("binaryData") or {}
        told = (read_event(line) for line in _unpacked(data.get(EVENTS, "")).splitlines())
        return _unpacked(data.get(JOB, "")), [event for event in told if event is not None]

    def write(self, job: bytes, events: Sequence[EventRecord]) -> float:
        """Returns for how many seconds the API server should be left alone."""
        if self._lost:
            return 0.0
        sums, kept = gzip.compress(job, mtime=0), _packed_events(events)
        content = {"binaryData": {JOB: _text(sums), EVENTS: _text(kept)}}
        try:
            made = self._send(content)
        except ApiRefused as error:
            if error.status == CONFLICT:
                self._look_who_wrote()
            elif error.status == NOT_FOUND:  # somebody deleted it
                self._version = ""
            else:
                raise
            if self._lost:
                return 0.0
            made = self._send(content)
        self._version, self._wrote = made["metadata"]["resourceVersion"], True
        return (len(sums) + len(kept)) / BYTES_PER_SECOND

    def _send(self, content: Object) -> Object:
        annotations = {HOLDER: self.holder}
        if not self._version:
            metadata = {"name": self.name, "namespace": self.namespace, "annotations": annotations}
            whole = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {**metadata, "labels": {"app": names.APP, names.JOB_LABEL: self.job_name}},
                **content,
            }
            return self.api.create(names.path("configmaps", self.namespace), owned(whole, self.owner))
        metadata = {"resourceVersion": self._version, "annotations": annotations}
        path = names.path("configmaps", self.namespace, self.name)
        return self.api.patch(path, {"metadata": metadata, **content})

    def _look_who_wrote(self) -> None:
        """A master that wrote before is no longer the one who does; a new one takes it over."""
        found = self.api.get(names.path("configmaps", self.namespace, self.name))["metadata"]
        holder = (found.get("annotations") or {}).get(HOLDER, "")
        self._lost = self._wrote and holder != self.holder
        if self._lost:
            log.warning("another master keeps the history of this job; this one no longer does")
        self._version = found["resourceVersion"]


def _packed_events(events: Sequence[EventRecord]) -> bytes:
    """As many of the last ones as there is room for."""
    kept = list(events)
    while True:
        packed = gzip.compress(b"".join(map(event_line, kept)), mtime=0)
        if len(packed) <= LARGEST_EVENTS:
            return packed
        kept = kept[(len(kept) + 1) // 2 :]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unpacked(text: str) -> bytes:
    """What can be read of it; a ConfigMap may be edited by others."""
    try:
        return zlib.decompressobj(wbits=31).decompress(base64.b64decode(text), LARGEST_TEXT)
    except (ValueError, zlib.error):
        return b""
