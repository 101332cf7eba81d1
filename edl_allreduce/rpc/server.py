"""The master's gRPC server: one stream per worker, one call for commands. Each carries the token (`door`)."""

from __future__ import annotations

import logging
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from edl_allreduce.core import protocol
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import BadMessage, EdlError
from edl_allreduce.rpc import codec
from edl_allreduce.rpc.door import Door
from edl_allreduce.rpc.identity import Tls, tls_of
from edl_allreduce.rpc.unix import UNIX, unix_target

SERVICE = "edl.Master"
MAX_MESSAGE = 64 * 1024 * 1024
"""What a master may say to a worker or a command."""
MAX_HEARD = 16 * 1024 * 1024
"""What it hears at once from those who have the token. The longest is a list of bad records."""

# A dead peer on another machine closes nothing; these make the transport notice by itself.
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
]

IDENTITY_ONLY = 1
"""As a set of bits of gRPC's compressions. Nobody here packs, and what is packed may have any size."""
MAX_CONNECTIONS = 4096
"""Beyond the largest ring."""
DESCRIPTORS = 4 * MAX_CONNECTIONS
"""So many that those who connect leave some for starting workers."""
SERVER_OPTIONS: list[tuple[str, int]] = [
    *(option for option in CHANNEL_OPTIONS if option[0] != "grpc.max_receive_message_length"),
    ("grpc.max_receive_message_length", MAX_HEARD),
    ("grpc.compression_enabled_algorithms_bitset", IDENTITY_ONLY),
    # Two masters on one port would each hear half of the workers.
    ("grpc.so_reuseport", 0),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.server_handshake_timeout_ms", 5_000),
    # What was not asked for stays below 64 KiB; the window would grow with the sender's speed.
    ("grpc.http2.bdp_probe", 0),
    # A worker's stream is a call that lasts; a connection without any is of no use to anybody.
    ("grpc.max_connection_idle_ms", 30_000),
]

log = logging.getLogger(__name__)

Attend = Callable[[AsyncIterator[protocol.FromWorker], str], AsyncIterator[protocol.FromMaster]]
Answer = Callable[[protocol.Command], Awaitable[JobStatus]]


class MasterServer:
    """Listens, authenticates, decodes; what happens then is the caller's."""

    def __init__(self, token: str, attend: Attend, answer: Answer) -> None:
        self._token = token
        self._attend = attend
        self._answer = answer
        self._server = grpc.aio.server(interceptors=[Door(token)], options=SERVER_OPTIONS)
        handlers = {
            # Bytes are decoded here, not by gRPC: with errors that we know.
            "Attend": grpc.stream_stream_rpc_method_handler(self._on_attend, None, _Encoder()),
            "Command": grpc.unary_unary_rpc_method_handler(self._on_command, None, codec.encode),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def start(self, host: str, port: int, tls: Tls | None = None) -> int:
        """Listen, always with TLS: without a certificate of its own with that of the token.

        Port 0 takes a free one. Returns the port, or raises OSError when it is taken.
        """
        tls = tls or tls_of(self._token)
        pair = [(tls.private_key.encode(), tls.certificate.encode())]
        credentials = grpc.ssl_server_credentials(pair)
        return await self._start(
            f"{host}:{port}", lambda address: self._server.add_secure_port(address, credentials)
        )

    async def start_here(self, path: Path) -> None:
        """Listen on a socket that only those reach who may enter its directory."""
        path.unlink(missing_ok=True)  # a master that was killed left it
        await self._start(unix_target(f"{UNIX}{path}"), self._server.add_insecure_port)
        path.chmod(0o600)  # whatever the umask and its directory allow

    async def _start(self, address: str, listen: Callable[[str], int]) -> int:
        _allow_descriptors()
        try:
            bound = int(listen(address))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        if bound == 0:
            raise OSError(f"cannot listen on {address}; is the port taken?")
        await self._server.start()
        return bound

    async def stop(self, grace: float) -> None:
        await self._server.stop(grace)

    async def _on_attend(
        self, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[protocol.FromMaster]:
        async for message in self._attend(_decoded(requests, context.peer()), context.peer()):
            yield message

    async def _on_command(self, request: bytes, context: Any) -> JobStatus:
        try:
            return await self._answer(codec.decode_command(request))
        except EdlError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise  # not reached: abort raises


class _Encoder:
    """A plan names every worker and goes to every worker: it is encoded once."""

    def __init__(self) -> None:
        self._last: protocol.FromMaster | None = None
        self._encoded = b""

    def __call__(self, message: protocol.FromMaster) -> bytes:
        if message is not self._last:
            self._last, self._encoded = message, codec.encode(message)
        return self._encoded


def _allow_descriptors() -> None:
    """The usual 1,024 would be used up by strangers who connect and say nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _decoded(requests: AsyncIterator[bytes], peer: str) -> AsyncIterator[protocol.FromWorker]:
    """What a worker says. One that cannot be understood has hung up, as far as the job is concerned."""
    async for request in requests:
        try:
            message = codec.decode_from_worker(request)
        except BadMessage as error:
            log.warning("the connection of %s is closed: %s", peer, error)
            return
        yield message
