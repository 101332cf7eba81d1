"""Who gets into the master: the token is seen before anything else of a call is read, unpacked or decoded."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from edl_allreduce import clock

log = logging.getLogger(__name__)

TELL_SECONDS = 60.0
"""How often refusals are told of: who knocks a thousand times a second must not fill a disk."""


class Door(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Lets those in who have the token. Others get a handler that reads nothing of what they send."""

    def __init__(self, token: str) -> None:
        self._right = b"Bearer " + token.encode()
        self._refused = 0
        self._tell_after = 0.0
        self._refusal = grpc.stream_stream_rpc_method_handler(self._refuse)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        if self._is_right(details.invocation_metadata):
            return await continuation(details)
        return self._refusal

    def _is_right(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        given = [value for name, value in metadata if name == "authorization"]
        if len(given) != 1:
            return False
        value = given[0].encode() if isinstance(given[0], str) else given[0]
        return hmac.compare_digest(value, self._right)

    async def _refuse(self, requests: object, context: Any) -> None:
        self._refused += 1
        if clock.now() >= self._tell_after:
            self._tell_after = clock.now() + TELL_SECONDS
            log.warning(
                "%d calls without the job's token were refused since the master began, the last from %s",
                self._refused, context.peer(),
            )  # fmt: skip
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the job's token is missing or wrong")
