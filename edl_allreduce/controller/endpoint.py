"""What the kubelet and Prometheus ask of a controller: /healthz, /readyz, /metrics. Read only, no token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from edl_allreduce.controller.rounds import Controller

REQUEST_SECONDS = 5.0
LONGEST_REQUEST = 8192
PLAIN = "text/plain; version=0.0.4; charset=utf-8"


class Endpoint:
    """A small HTTP server in the controller's loop."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """The port; with 0 the system chooses one."""
        self._server = await asyncio.start_server(self._answer, host, port, limit=LONGEST_REQUEST)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                words = request.split(b"\r\n", 1)[0].split()
                path = words[1].split(b"?")[0].decode("ascii", "replace") if len(words) == 3 else ""
                status, text = self._page(path) if words[0] in (b"GET", b"HEAD") else ("405 No", "GET only\n")
                body = text.encode()
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: {PLAIN}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n"
                )
                writer.write(head.encode() + (b"" if words[0] == b"HEAD" else body))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError):
            return  # a stranger, or one who hung up
        finally:
            writer.close()

    def _page(self, path: str) -> tuple[str, str]:
        match path:
            case "/healthz":
                return "200 OK", "ok\n"
            case "/readyz":
                missing = self._controller.mirror.missing()
                if missing:
                    return "503 Not ready", f"not listed yet: {', '.join(missing)} (rights? see the log)\n"
                return "200 OK", "ok\n"
            case "/metrics":
                return "200 OK", metrics(self._controller)
        return "404 Not found", "there are /healthz, /readyz and /metrics\n"


def metrics(controller: Controller) -> str:
    """In Prometheus' text format."""
    figures, hands = controller.figures, controller.hands
    lines: list[str] = []

    def add(name: str, kind: str, about: str, values: Iterable[tuple[str, float]]) -> None:
        name = f"elasticdl_controller_{name}"
        lines.append(f"# HELP {name} {about}")
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(f"{name}{labels} {value:g}" for labels, value in values)

    add("leader", "gauge", "Whether this controller acts.", [("", controller.election.leads)])
    add("term", "gauge", "The term of the lease.", [("", controller.election.term)])
    add("rounds_total", "counter", "Looks at all jobs.", [("", figures.rounds)])
    add("plans_total", "counter", "Plans of the autoscaler.", [("", figures.plans)])
    add("plan_seconds", "gauge", "How long the last plan took.", [("", figures.plan_seconds)])
    add("writes_total", "counter", "Requests that change something.", [("", hands.writes)])
    add("conflicts_total", "counter", "Writes over what had changed meanwhile.", [("", hands.conflicts)])
    add("refusals_total", "counter", "Rounds of a job that failed.", [("", figures.refusals)])
    add("waiting_pods", "gauge", "Pods of others without room.", [("", figures.waiting)])
    load = [(f'{{resource="{_quoted(name)}"}}', share) for name, share in sorted(figures.load.items())]
    add("load_ratio", "gauge", "Share of each resource that is spoken for.", load)
    phases = [(f'{{phase="{_quoted(name)}"}}', count) for name, count in sorted(figures.phases.items())]
    add("jobs", "gauge", "TrainingJobs by phase.", phases)
    for at, (name, about) in enumerate(
        (("ready", "Workers that run, without those that stand by."), ("target", "Workers wanted."))
    ):
        values = [(_labels(key), count[at]) for key, count in sorted(figures.workers.items())]
        add(f"job_workers_{name}", "gauge", about, values)
    return "\n".join(lines) + "\n"


def _labels(key: str) -> str:
    namespace, _, name = key.partition("/")
    return f'{{namespace="{_quoted(namespace)}",job="{_quoted(name)}"}}'


def _quoted(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
