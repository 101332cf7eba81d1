"""Jobs on Kubernetes as the commands see them: found by name, asked through a tunnel of the API server.

The tunnel ends at the master's port, where the job's own certificate and token count as they do for workers;
both come from the job's Secret, so whoever may read that may command the job.
"""

from __future__ import annotations

import base64
import logging
import queue
import socket
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from edl_allreduce import clock, contract, logs
from edl_allreduce.cluster.known import Address, event_line, read_event
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.names import Object, Replica
from edl_allreduce.core import pod_causes
from edl_allreduce.core.protocol import Ask
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.errors import ApiRefused, ClusterError, MasterUnreachable, UsageError
from edl_allreduce.reading import UNDECODABLE
from edl_allreduce.spec.cluster_flags import DOCUMENTED_PORT
from edl_allreduce.storage.url import Place

log = logging.getLogger(__name__)

LIST_SECONDS = 1.0
"""How often the API server is asked for new pods while logs are followed."""
FRESH_SECONDS = 1.0
"""How long what the API server said about the master's pod is believed."""
ENDED = ("Succeeded", "Failed")
NOT_FOUND = 404
NOT_STARTED = 400
"""What the API server answers when a log is asked for before the container runs."""
CHUNK = 64 * 1024
EVENT_PREFIX = "event {"
"""How a line of the master's log begins that tells an event as JSON."""
JSON_PREFIX = '{"event":{'
"""The same where all lines are JSON (--log_format=json)."""


def logged(event: EventRecord, *, as_json: bool = False) -> str:
    """An event as the master prints it, whatever --log_level is: its log is what is left of a job."""
    line = event_line(event).decode().rstrip()
    if not as_json:
        return f"event {line}"
    return f'{{"event":{line},"time":"{logs.time_of(event.wall)}","level":"INFO","process":"master"}}'


def events_in(lines: Iterable[str]) -> list[EventRecord]:
    """The events of a master from what its pod printed."""
    return [event for line in lines if (event := _event_in(line)) is not None]


class _JsonLine(msgspec.Struct):
    event: EventRecord


def _event_in(line: str) -> EventRecord | None:
    if line.startswith(EVENT_PREFIX):
        return read_event(line.partition(" ")[2])
    if not line.startswith(JSON_PREFIX):
        return None
    try:
        return msgspec.json.decode(line, type=_JsonLine).event
    except UNDECODABLE:
        return None


class Tunnel:
    """A port on this machine's loopback that leads to a port of a pod."""

    def __init__(self, api: Api, namespace: str, pod: str, port: int) -> None:
        self._api, self._namespace, self._pod, self._port = api, namespace, pod, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="tunnel", daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            try:
                far = self._api.forward(self._namespace, self._pod, self._port)
            except (ClusterError, OSError) as error:
                log.debug("no tunnel: %s", error)
                near.close()
                continue
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: Any, target: Any) -> None:
    try:
        while data := source.recv(CHUNK):
            target.sendall(data)
    except OSError:
        pass  # one side hung up; the other hears it now
    finally:
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # closed already


@dataclass
class ClusterJob:
    """One job on Kubernetes, running or not. Commands use it as they use a local one."""

    api: Api
    namespace: str
    name: str
    _pod: Object | None = None
    _asked: float = float("-inf")
    _address: Address | None = None
    _tunnel: Tunnel | None = field(default=None, repr=False)
    _said: JobStatus | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """Where the rest of the story is."""
        return f"kubectl logs -n {self.namespace} {names.master_name(self.name)}"

    @property
    def named(self) -> str:
        return f"--job_name={self.name} --namespace={self.namespace}"

    @property
    def started(self) -> float:
        """Not known: the list of jobs does not show it for pods."""
        return 0.0

    def resize(self, workers: int | None) -> bool:
        return False

    def audit_dir(self) -> Place:
        raise UsageError(
            "name the directory of a job on Kubernetes: mount its volume, then --audit_dir=DIR (or its URL)."
        )

    def pod(self) -> Object | None:
        """The master's pod, not much older than now."""
        if clock.now() - self._asked > FRESH_SECONDS:
            try:
                path = names.path("pods", self.namespace, names.master_name(self.name))
                self._pod = self.api.get(path)
            except ApiRefused as error:
                if error.status != NOT_FOUND:
                    raise
                self._pod = None
            self._asked = clock.now()
        return self._pod

    def phase(self) -> str:
        pod = self.pod()
        return str(pod["status"].get("phase", "Pending")) if pod is not None else "Gone"

    def running(self) -> Address | None:
        """How to reach the master, if its pod runs."""
        if self.phase() != "Running":
            return None
        if self._address is None:
            self._address = self._open()
        return self._address

    def _open(self) -> Address:
        path = names.path("secrets", self.namespace, self._secret())
        try:
            data = self.api.get(path)["data"]
        except ApiRefused as error:
            raise ClusterError(
                f"job {self.name}: its Secret cannot be read, so its master cannot be asked: {error}"
            ) from error
        token, certificate = (base64.b64decode(data[key]).decode() for key in ("token", "tls.crt"))
        tunnel = Tunnel(self.api, self.namespace, names.master_name(self.name), self._port())
        return Address(
            job_name=self.name,
            address=tunnel.address,
            token=token,
            pid=0,
            ticks=0,
            started=0.0,
            certificate=certificate,
        )

    def _secret(self) -> str:
        """As the master's pod names it: that of a TrainingJob is the job's own, not that of its name."""
        pod = self.pod()
        environment = pod["spec"]["containers"][0].get("env") or [] if pod is not None else []
        named = (one.get("value", "") for one in environment if one["name"] == contract.JOB_SECRET)
        return next(named, "") or names.secret_name(self.name)

    def _port(self) -> int:
        return next(iter(self._ports().values()), DOCUMENTED_PORT)

    def _ports(self) -> dict[str, int]:
        """Of the master, by name; its own port first."""
        pod = self.pod()
        ports = pod["spec"]["containers"][0].get("ports") or [] if pod is not None else []
        return {port.get("name", ""): int(port["containerPort"]) for port in ports}

    def over(self) -> bool:
        return self.phase() in (*ENDED, "Gone")

    def absence(self) -> str:
        pod = self.pod()
        if pod is None:
            return "its master's pod is gone"
        match pod_causes.read(pod):
            case pod_causes.Coming(text):
                return f"its master's pod is on its way. {text}".strip()
            case pod_causes.Over(_, text):
                return f"its master {text}, without a result. See: {self.where}"
        return f"its master's pod is {self.phase()}. See: {self.where}"

    def result(self) -> JobStatus | None:
        """What the master said last: Kubernetes keeps it with the pod."""
        pod = self.pod()
        for container in (pod or {}).get("status", {}).get("containerStatuses") or []:
            words = container.get("state", {}).get("terminated", {}).get("message", "")
            try:
                return msgspec.json.decode(words, type=JobStatus)
            except UNDECODABLE:
                continue  # it did not end in order
        return None

    def events(self) -> list[EventRecord]:
        """The latest ones from the master; when it is over, all from its log."""
        from edl_allreduce.rpc.client import command

        address = self.running()
        if address is None:
            return self.history()
        try:
            self._said = command(address.address, address.token, Ask(), certificate=address.certificate)
        except MasterUnreachable:
            log.debug("no answer for now")  # a master that restarts; the next question may be luckier
        return self._said.events if self._said is not None else []

    def history(self) -> list[EventRecord]:
        """All from the master's log, whether it runs or not: it remembers only the latest itself."""
        if self.pod() is None:
            return []
        return events_in(self._pod_lines(names.master_name(self.name)))

    def page(self) -> str:
        if self.running() is None:
            return ""
        if self._tunnel is None and (port := self._ports().get(names.PAGE_PORT)):
            self._tunnel = Tunnel(self.api, self.namespace, names.master_name(self.name), port)
        return self._tunnel.address if self._tunnel is not None else ""

    def report(self) -> bytes:
        """A pod keeps no files for later: the report is made of the master's log."""
        return b""

    # ------------------------------------------------------------------------------------------------ logs

    def pods(self) -> dict[str, str]:
        """Names of pods by what people call them: 0, 1…, master."""
        chosen = names.selector(self.name)
        items = self.api.get(names.path("pods", self.namespace), labelSelector=chosen).get("items") or []
        workers = {i: p["metadata"]["name"] for p in items if (i := names.worker_id_of(p)) is not None}
        found = {str(i): workers[i] for i in sorted(workers)}
        return {**found, Replica.MASTER.value: names.master_name(self.name)}

    def logs(self) -> list[str]:
        return list(self.pods())

    def log_lines(self, whose: str = "", *, follow: bool = False) -> Iterator[tuple[str, str]]:
        if follow:
            yield from self._followed(whose)
            return
        for name, pod in self._chosen(whose).items():
            yield from ((name, line) for line in self._shown(pod))

    def _chosen(self, whose: str) -> dict[str, str]:
        return {
            name: pod
            for name, pod in self.pods().items()
            if whose == name or (not whose and name != Replica.MASTER.value)
        }

    def _followed(self, whose: str) -> Iterator[tuple[str, str]]:
        """One thread per pod; workers that are made later are followed, too."""
        lines: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        threads: dict[str, threading.Thread] = {}
        over = False
        while not over:
            over = self.phase() != "Running"
            for name, pod in self._chosen(whose).items():
                if name not in threads:
                    threads[name] = threading.Thread(
                        target=self._follow_pod, args=(name, pod, lines), daemon=True
                    )
                    threads[name].start()
            # A worker may end a moment after its master, so that there is always one more look.
            yield from _until_silent(lines, LIST_SECONDS)
            over = over or (whose in threads and not threads[whose].is_alive())
        yield from _until_silent(lines, 0.0)

    def _follow_pod(self, name: str, pod: str, lines: queue.SimpleQueue[tuple[str, str]]) -> None:
        try:
            for line in self._shown(pod, follow=True):
                lines.put((name, line))
        except ClusterError as error:
            log.warning("the log of %s ends here: %s", pod, error)

    def _shown(self, pod: str, *, follow: bool = False) -> Iterator[str]:
        """What a pod printed for people: events are there in words, too."""
        lines = self._pod_lines(pod, follow=follow)
        return (line for line in lines if not line.startswith((EVENT_PREFIX, JSON_PREFIX)))

    def _pod_lines(self, pod: str, *, follow: bool = False) -> Iterator[str]:
        """What a pod printed."""
        path = names.path("pods", self.namespace, pod)
        query = {"follow": "true"} if follow else {}
        silent = True
        for _ in clock.polls(FRESH_SECONDS):
            try:
                for line in self.api.lines(f"{path}/log", 3600.0, **query):
                    silent = False
                    yield line.decode(errors="replace")
            except ApiRefused as error:
                if error.status not in (NOT_FOUND, NOT_STARTED):
                    raise
            # Of a pod that has no node yet the log is not refused, but empty.
            if not follow or not silent or self._is_over(path):
                return

    def _is_over(self, path: str) -> bool:
        try:
            return self.api.get(path)["status"].get("phase") in ENDED
        except ApiRefused as error:
            if error.status != NOT_FOUND:
                raise
            return True


def _until_silent(lines: queue.SimpleQueue[tuple[str, str]], seconds: float) -> Iterator[tuple[str, str]]:
    """What comes within so many seconds, and whatever is there then."""
    deadline = clock.now() + seconds
    while True:
        try:
            left = deadline - clock.now()
            yield lines.get(timeout=left) if left > 0 else lines.get_nowait()
        except queue.Empty:
            return
