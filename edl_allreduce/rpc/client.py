"""The other ends of the master's server: a worker's stream, and commands."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc

from edl_allreduce.contract import JOB_TOKEN
from edl_allreduce.core import protocol
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import BadMessage, MasterUnreachable, UsageError
from edl_allreduce.rpc import codec
from edl_allreduce.rpc.server import CHANNEL_OPTIONS, SERVICE, TLS_NAME

log = logging.getLogger(__name__)

REFUSED = f"the job's token is missing or wrong. Pass the token of the job in {JOB_TOKEN}."

SHORT_ATTEMPTS = [("grpc.min_reconnect_backoff_ms", 3000), ("grpc.max_reconnect_backoff_ms", 3000)]
"""On the way to a dead node packets get lost, and the kernel repeats them ever more rarely. Who tries
anew is there soon after the node: a master that comes back must hear of the ring before it plans another."""


def _channel(address: str, certificate: str) -> Any:
    """With a certificate: encrypted, and only to the master that has its key."""
    options = [*CHANNEL_OPTIONS, ("grpc.initial_reconnect_backoff_ms", 100), *SHORT_ATTEMPTS]
    if not certificate:
        return grpc.insecure_channel(address, options=options)
    named = [*options, ("grpc.ssl_target_name_override", TLS_NAME)]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(certificate.encode()), options=named)


def _metadata(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


class WorkerStream:
    """One connection to the master. Iterate it for what the master says; it ends when the master is gone."""

    def __init__(self, address: str, token: str, hello: protocol.Hello, certificate: str = "") -> None:
        self._outbox: SimpleQueue[protocol.FromWorker | None] = SimpleQueue()
        self._outbox.put(hello)
        self._channel = _channel(address, certificate)
        attend = self._channel.stream_stream(f"/{SERVICE}/Attend", codec.encode, None)
        self._call = attend(iter(self._outbox.get, None), metadata=_metadata(token))

    def send(self, message: protocol.FromWorker) -> None:
        self._outbox.put(message)

    def close(self) -> None:
        """Say everything that was sent, then end the stream."""
        self._outbox.put(None)

    def __iter__(self) -> Iterator[protocol.FromMaster]:
        try:
            for answer in self._call:
                yield codec.decode_from_master(answer)
        except BadMessage as error:
            log.warning("the connection to the master is closed: %s", error)
        except grpc.RpcError as error:
            status = error.code()
            if status is grpc.StatusCode.UNAUTHENTICATED:
                raise MasterUnreachable(f"the master refused this worker: {REFUSED}") from error
            log.info("the connection to the master ended: %s, %s", status.name.lower(), error.details())
        finally:
            self._outbox.put(None)  # a thread of gRPC waits there for the next message
            self._channel.close()


def command(
    address: str, token: str, message: protocol.Command, timeout: float = 10.0, certificate: str = ""
) -> JobStatus:
    """Send one command to a running master and return the job's status after it."""
    with _channel(address, certificate) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Command", codec.encode, None)
        try:
            answer: bytes = call(message, metadata=_metadata(token), timeout=timeout)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise UsageError(error.details()) from error
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise UsageError(f"the master at {address} refused: {REFUSED}") from error
            raise MasterUnreachable(
                f"no answer from the master at {address}: {error.code().name.lower()}, {error.details()}"
            ) from error
    return codec.decode_status(answer)
