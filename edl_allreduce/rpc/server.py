"""The master's gRPC server: one stream per worker, one call for commands. Every call carries the token."""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from edl_allreduce.core import protocol
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import BadMessage, EdlError
from edl_allreduce.rpc import codec

SERVICE = "edl.Master"
TLS_NAME = "elasticdl-master"
"""The name in every job's certificate: whoever has its key is the master, wherever it is."""
MAX_MESSAGE = 64 * 1024 * 1024

# A dead peer on another machine closes nothing; these make the transport notice by itself.
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
]

log = logging.getLogger(__name__)

Attend = Callable[[AsyncIterator[protocol.FromWorker], str], AsyncIterator[protocol.FromMaster]]
Answer = Callable[[protocol.Command], Awaitable[JobStatus]]


@dataclass(frozen=True)
class Tls:
    """A job's own certificate and its key, as PEM."""

    certificate: str
    private_key: str


class MasterServer:
    """Listens, authenticates, decodes; what happens then is the caller's."""

    def __init__(self, token: str, attend: Attend, answer: Answer) -> None:
        self._token = token.encode()
        self._attend = attend
        self._answer = answer
        # Two masters on one port would each hear half of the workers.
        self._server = grpc.aio.server(options=[*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)])
        handlers = {
            # Bytes are decoded here, not by gRPC: after the token was seen, and with errors that we know.
            "Attend": grpc.stream_stream_rpc_method_handler(self._on_attend, None, codec.encode),
            "Command": grpc.unary_unary_rpc_method_handler(self._on_command, None, codec.encode),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def start(self, host: str, port: int, tls: Tls | None = None) -> int:
        """Listen; port 0 takes a free one. Returns the port, or raises OSError when it is taken."""
        try:
            bound: int = self._listen(f"{host}:{port}", tls)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {host}:{port}: {error}") from error
        if bound == 0:
            raise OSError(f"cannot listen on {host}:{port}; is the port taken?")
        await self._server.start()
        return bound

    def _listen(self, address: str, tls: Tls | None) -> int:
        if tls is None:
            return int(self._server.add_insecure_port(address))
        pair = [(tls.private_key.encode(), tls.certificate.encode())]
        return int(self._server.add_secure_port(address, grpc.ssl_server_credentials(pair)))

    async def stop(self, grace: float) -> None:
        await self._server.stop(grace)

    async def _authenticate(self, context: Any) -> None:
        given = dict(context.invocation_metadata()).get("authorization", "")
        if not hmac.compare_digest(given.encode(), b"Bearer " + self._token):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the job's token is missing or wrong")

    async def _on_attend(
        self, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[protocol.FromMaster]:
        await self._authenticate(context)
        async for message in self._attend(_decoded(requests, context.peer()), context.peer()):
            yield message

    async def _on_command(self, request: bytes, context: Any) -> JobStatus:
        await self._authenticate(context)
        try:
            return await self._answer(codec.decode_command(request))
        except EdlError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise  # not reached: abort raises


async def _decoded(requests: AsyncIterator[bytes], peer: str) -> AsyncIterator[protocol.FromWorker]:
    """What a worker says. One that cannot be understood has hung up, as far as the job is concerned."""
    async for request in requests:
        try:
            message = codec.decode_from_worker(request)
        except BadMessage as error:
            log.warning("the connection of %s is closed: %s", peer, error)
            return
        yield message
