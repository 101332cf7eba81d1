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
from edl_allreduce.rpc.identity import TLS_NAME, tls_of
from edl_allreduce.rpc.server import CHANNEL_OPTIONS, SERVICE
from edl_allreduce.rpc.unix import UNIX, unix_target

log = logging.getLogger(__name__)

REFUSED = f"the job's token is missing or wrong. Pass the token of the job in {JOB_TOKEN}."

OTHER_KEY = "CERTIFICATE_VERIFY_FAILED"
"""In gRPC's words: who answers there has not the key that follows from our token."""

SHORT_ATTEMPTS = [("grpc.min_reconnect_backoff_ms", 3000), ("grpc.max_reconnect_backoff_ms", 3000)]
"""On the way to a dead node packets get lost, and the kernel repeats them ever more rarely. Who tries
anew is there soon after the node: a master that comes back must hear of the ring before it plans another."""


def _channel(address: str, token: str, certificate: str) -> Any:
    """To the job's own master only: behind a socket in its directory, or with a key that nobody else has."""
    options = [*CHANNEL_OPTIONS, ("grpc.initial_reconnect_backoff_ms", 100), *SHORT_ATTEMPTS]
    if address.startswith(UNIX):
        return grpc.insecure_channel(unix_target(address), options=options)
    certificate = certificate or tls_of(token).certificate
    named = [*options, ("grpc.ssl_target_name_override", TLS_NAME)]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(certificate.encode()), options=named)


def _metadata(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


class WorkerStream:
    """One connection to the master. Iterate it for what the master says; it ends when the master is gone."""

    def __init__(self, address: str, token: str, hello: protocol.Hello, certificate: str = "") -> None:
        self._outbox: SimpleQueue[protocol.FromWorker | None] = SimpleQueue()
        self._outbox.put(hello)
        self.clean = False
        self._address = address
        self._channel = _channel(address, token, certificate)
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
            self.clean = True
        except BadMessage as error:
            log.warning("the connection to the master is closed: %s", error)
        except grpc.RpcError as error:
            status = error.code()
            if status is grpc.StatusCode.UNAUTHENTICATED:
                raise MasterUnreachable(f"the master refused this worker: {REFUSED}") from error
            if OTHER_KEY in str(error.details()):
                # Maybe somebody took the port of a master that comes back: no reason to end.
                log.warning("whoever answers at %s is not the master: %s", self._address, REFUSED)
            else:
                log.info("the connection to the master ended: %s, %s", status.name.lower(), error.details())
        finally:
            self._outbox.put(None)  # a thread of gRPC waits there for the next message
            self._channel.close()


def command(
    address: str, token: str, message: protocol.Command, timeout: float = 10.0, certificate: str = ""
) -> JobStatus:
    """Send one command to a running master and return the job's status after it."""
    with _channel(address, token, certificate) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Command", codec.encode, None)
        try:
            answer: bytes = call(message, metadata=_metadata(token), timeout=timeout)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise UsageError(error.details()) from error
            other_token = not certificate and OTHER_KEY in str(error.details())
            if error.code() is grpc.StatusCode.UNAUTHENTICATED or other_token:
                raise UsageError(f"the master at {address} refused: {REFUSED}") from error
            raise MasterUnreachable(
                f"no answer from the master at {address}: {error.code().name.lower()}, {error.details()}"
            ) from error
    return codec.decode_status(answer)
