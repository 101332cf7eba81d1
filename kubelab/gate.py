"""The way into the cluster's network: a port on this machine's loopback, forwarded to the API server.

Run as a file inside the control plane's namespaces. The listening socket was opened outside and is handed
down, so that one end is here and the other there, and this machine gets no new link, address or rule.
"""

import asyncio
import contextlib
import socket
import sys


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


async def serve(listener: socket.socket, host: str, port: int) -> None:
    """Forward every connection, for ever."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()  # the API server is down: a reset tells the client at once
            return
        await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))

    server = await asyncio.start_server(forward, sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3])))
