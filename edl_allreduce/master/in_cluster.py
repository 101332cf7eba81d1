"""The master in a pod: workers are pods, and whoever comes after this process takes them over.

What must survive the process, but not the job, lies in a directory that belongs to the pod: how many workers
are wanted, which ids were used. A master that is ended (SIGTERM, SIGKILL) does not end the job: workers train
on until the next master hears them. Of a TrainingJob that may be in another pod, which the controller makes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edl_allreduce import clock, contract, files, logs
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.credentials import keep_in_secret, make_credentials
from edl_allreduce.cluster.kubernetes.events import Recorder
from edl_allreduce.cluster.kubernetes.inheritance import KeptInConfigMap
from edl_allreduce.cluster.kubernetes.manifests import (
    STATE_DIRECTORY,
    TRAINING_JOB,
    Credentials,
    MasterContext,
    page_port_of,
    port_of,
)
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.cluster.kubernetes.pods import KubernetesCluster
from edl_allreduce.cluster.kubernetes.remote import logged
from edl_allreduce.core.controller import mail
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import Result
from edl_allreduce.core.protocol import Command
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.errors import ClusterError, EdlError, SetupError
from edl_allreduce.master import managed, report
from edl_allreduce.master.display import Display
from edl_allreduce.master.history import PodHistory
from edl_allreduce.master.inheritance import Left, Notary
from edl_allreduce.master.last_word import last_word
from edl_allreduce.master.managed import Mailbox
from edl_allreduce.master.metrics import Metrics
from edl_allreduce.master.options import options_of
from edl_allreduce.master.shell import JobShell
from edl_allreduce.master.tracing import Tracing
from edl_allreduce.master.web.bundle import report_page
from edl_allreduce.master.web.feed import Feed, encode, in_common
from edl_allreduce.master.web.server import PageServer
from edl_allreduce.reading import UNDECODABLE, small_file
from edl_allreduce.rpc.identity import Tls
from edl_allreduce.rpc.server import MasterServer
from edl_allreduce.spec import JobSpec, to_argv
from edl_allreduce.web.guard import page_token

log = logging.getLogger(__name__)

TERMINATION_LOG = Path("/dev/termination-log")
CLOSE_SECONDS = 10.0
"""For each of those who are told last of a job; an API server that is silent does not hold its end."""
ENDED_BY_SIGNAL = 128 + signal.SIGTERM


class Memory(msgspec.Struct):
    """What the next master of this pod must know."""

    wanted: int
    next_id: int = 0
    credentials: Credentials | None = None
    """Only where no Secret holds them."""
    phase: str = ""
    """Of a job that is over; then there is nothing to take over."""


class MemoryFile:
    """A `Memory` on disk, replaced as a whole."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "master.json"
        self._usable = directory.is_dir() and os.access(directory, os.W_OK)

    def read(self) -> Memory | None:
        try:
            return msgspec.json.decode(small_file(self._path), type=Memory)
        except (OSError, *UNDECODABLE):
            return None

    def write(self, memory: Memory) -> None:
        if not self._usable:
            return
        try:
            files.write(self._path, msgspec.json.encode(memory), private=True)
        except OSError as error:
            log.warning("the next master of this pod will not know everything: %s: %s", self._path, error)


def run_in_cluster(spec: JobSpec, notices: Sequence[str] = ()) -> int:
    """Run the master of a job whose workers are pods; returns the exit code. `notices`: on its flags."""
    logs.print_lines(str(spec.log_level), "master", as_json=spec.logs_json)
    for notice in notices:
        log.warning("%s", notice)
    try:
        result = asyncio.run(ClusterMaster(spec, dict(os.environ)).run())
    except EdlError as error:
        log.critical("%s", error)
        return error.exit_code
    log.info("%s: %s", result.phase.value, result.reason)
    if result.path:
        log.info("The result is in %s", result.path)
    return 1 if result.phase is Phase.FAILED else 0


async def _within(seconds: float, last: Coroutine[Any, Any, None], what: str) -> None:
    """Do it if it works in time; the end of a job does not depend on it."""
    try:
        await asyncio.wait_for(last, seconds)
    except TimeoutError:
        log.warning("%s could not be sent within %g s", what, seconds)
    except Exception:
        log.exception("%s could not be sent", what)


class ClusterMaster:
    """Serves one job from a pod."""

    def __init__(self, spec: JobSpec, environ: dict[str, str]) -> None:
        self._environ = environ
        namespace = environ.get(contract.POD_NAMESPACE, spec.namespace)
        self.spec = dataclasses.replace(spec, namespace=namespace)
        self._file = MemoryFile(Path(STATE_DIRECTORY))
        self._flags = to_argv(self.spec, "worker")
        self._harmless = logs.Harmless(log, "somebody who is told of the job failed")
        self._api = Api.connect(force_kubeconfig=spec.force_use_kube_config_file)
        self._ends: asyncio.Task[None] | None = None

    async def run(self) -> Result:
        """Take over what is there, then serve until the job is over."""
        before = self._file.read()
        if before is not None and before.phase:
            return await self._was_over(before.phase)
        owner = self._owner()
        credentials = self._credentials(before)
        self._memory = before or self._first_memory()
        if not self._has_secret:
            self._memory.credentials = credentials
        self._cluster = self._make_cluster(credentials, owner)
        found = await self._cluster.start()
        restarted = before is not None or bool(found.living)
        self._memory.next_id = max(self._memory.next_id, found.next_id)
        self._file.write(self._memory)
        options = options_of(self.spec)
        if restarted:
            log.info(
                "an earlier master of this job left workers %s; waiting to hear them", list(found.living)
            )
            until = clock.now() + options.deadlines.rejoin
            options = dataclasses.replace(options, recover_until=until)
        sized_by = managed.sized_by(self._pod) if owner["kind"] == TRAINING_JOB else {}
        self.history = await asyncio.to_thread(self._open_history, owner, goes_on=before is not None)
        self.feed = Feed(
            lambda: dataclasses.replace(self.job.status(), flags=self._flags),
            history=self.history.known,
            about=lambda: {**in_common(self.job.state.course), **sized_by},
        )
        self.recorder = self._recorder(owner)
        self.tracing = Tracing(self.spec.job_name, self._environ)
        self.metrics = Metrics(lambda: self.job.status(), lambda: self.job.traffic)
        for record in self.history.known:
            self._tell_log(record)
            self.metrics.told(record)
        known, serial = self.history.known, self.history.last_serial
        self.job = JobShell(options, self._cluster, self._tell, last_serial=serial, known=known)
        if self.history.left is not None:
            self.job.inherit(self.history.left.job, found.living)
        self.notary = Notary(lambda: Left(self.job.last_serial, self.job.leave()), self.history.keep)
        self.job.adopt(dataclasses.replace(found, next_id=self._memory.next_id), self._memory.wanted)
        if self.history.known and not found.living:
            self.job.returned()
        self._mailbox = self._open_mailbox() if owner["kind"] == TRAINING_JOB else None
        return await self._serve(credentials)

    async def _serve(self, credentials: Credentials) -> Result:
        server = MasterServer(credentials.token, self.job.attend, self._answer)
        tls = Tls(credentials.certificate, credentials.private_key)
        # All addresses: tunnels of the API server arrive on the pod's loopback.
        anywhere = "[::]" if ":" in self._environ.get(contract.POD_IP, "") else "0.0.0.0"
        await server.start(anywhere, port_of(self.spec), tls)
        page = PageServer(self.feed, self._answer, page_token(credentials.token), self.metrics.render)
        page_port = page_port_of(self.spec)
        if page_port is not None:  # all addresses: probes and monitors come from other machines
            try:
                await page.start(anywhere, page_port)
            except OSError as error:
                log.warning("the job has no page: port %d: %s", page_port, error.strerror)
        self.feed.start()
        self.metrics.start()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_end)
        await self._show("Running")
        if self._mailbox is not None:
            self._mailbox.start()
        self.recorder.start()
        self.notary.start()
        display = Display(self.job.status, show=False)
        result = await self.job.run()
        await display.close()
        await self._keep_the_end(result)
        if self._mailbox is not None:
            await self._mailbox.close()
        await self._show("Finished")
        await page.stop()
        self._write_report()
        await server.stop(1.0)
        return result

    def _write_report(self) -> None:
        """Where --report says, if the pod has a place that outlives it there."""
        path = self.spec.report
        if not path:
            return
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            files.write(Path(path), report_page(encode(self.feed.update())).encode())
            log.info("The report is in %s", path)
        except OSError as error:
            known = f"--job_name={self.spec.job_name} --namespace={self.spec.namespace}"
            log.warning(
                "--report=%s cannot be written: %s; `elasticdl report %s` makes it of this log",
                path, error.strerror, known,
            )  # fmt: skip

    async def _keep_the_end(self, result: Result) -> None:
        """First that the job is over, for the next master of this pod; then what others should hear of it."""
        self._memory.phase = result.phase.value
        self._file.write(self._memory)
        self._write_last_word()
        for line in report.summary(self.job.status(), {}):
            log.info("%s", line)
        self.metrics.close()
        await _within(CLOSE_SECONDS, self.notary.close(), "what the next master should know")
        await _within(CLOSE_SECONDS, self.recorder.close(), "the last Events")
        await _within(CLOSE_SECONDS, asyncio.to_thread(self.tracing.close), "the last traces")

    def _tell(self, event: EventRecord) -> None:
        listeners = (
            self.history.write,
            self._tell_log,
            self.feed.tell,
            self.metrics.told,
            self.tracing.told,
            self.recorder.tell,
        )
        for tell in listeners:  # one that fails is no reason to leave out the next
            with self._harmless:
                tell(event)

    def _tell_log(self, event: EventRecord) -> None:
        print(logged(event, as_json=self.spec.logs_json), flush=True)

    def _asked_to_end(self) -> None:
        """Once more is now."""
        if self._ends is not None:
            self._leave("asked to end twice")
        elif not self.job.over:
            self._ends = asyncio.create_task(self._end_in_order())

    async def _end_in_order(self) -> None:
        await _within(CLOSE_SECONDS, self.notary.close(), "what the next master should know")
        self._leave("asked to end")

    def _leave(self, why: str) -> None:
        """This process ends, not the job. Workers that belong to this pod go with it, if it was deleted."""
        if not self.job.over:
            log.info("%s: workers train on, the next master of this job takes them over", why)
            logging.shutdown()
            os._exit(ENDED_BY_SIGNAL)

    # ---------------------------------------------------------------------------------------- surroundings

    async def _was_over(self, phase: str) -> Result:
        """An earlier process ended the job, and perhaps could not say so."""
        why = "the job was over when this master started"
        said = mail.Progress(phase, why, clock.wall()).text()
        self._name = self._environ.get(contract.POD_NAME) or names.master_name(self.spec.job_name)
        await self._mark({"annotations": {mail.PROGRESS: said}}, "the end of the job")
        return Result(Phase(phase), why, 0, "", [], {})

    def _first_memory(self) -> Memory:
        """Of the first master in this pod: what the controller ordered, and what an earlier pod knew."""
        annotations = self._pod["metadata"].get("annotations") or {}
        orders = mail.orders_in(annotations)
        carried = mail.read_progress(annotations.get(mail.PROGRESS, ""))
        return Memory(
            wanted=orders.workers if orders is not None and orders.workers else self.spec.num_workers,
            next_id=carried.next_id if carried is not None else 0,
        )

    def _open_mailbox(self) -> Mailbox:
        def wanted(count: int) -> None:
            self._memory.wanted = count
            self._file.write(self._memory)

        return Mailbox(
            self._api,
            self._pod,
            self.job,
            next_id=lambda: self._memory.next_id,
            wanted=wanted,
            leave=self._leave,
        )

    @property
    def _has_secret(self) -> bool:
        return bool(self._environ.get(contract.JOB_SECRET))

    def _credentials(self, before: Memory | None) -> Credentials:
        parts = [
            self._environ.get(name, "")
            for name in (contract.JOB_TOKEN, contract.MASTER_CERTIFICATE, contract.MASTER_KEY)
        ]
        if self._has_secret:
            if not all(parts):
                wanted = f"{contract.JOB_TOKEN}, {contract.MASTER_CERTIFICATE} and {contract.MASTER_KEY}"
                raise SetupError(f"the master's pod must get {wanted} from the job's Secret")
            return Credentials(*parts)
        if before is not None and before.credentials is not None:
            return before.credentials
        return make_credentials()

    def _make_cluster(self, credentials: Credentials, owner: Object) -> KubernetesCluster:
        ip = self._environ.get(contract.POD_IP, "")
        own = f"[{ip}]:{port_of(self.spec)}" if ":" in ip else f"{ip}:{port_of(self.spec)}"
        context = MasterContext(
            master_addr=self._environ.get(contract.MASTER_ADDR) or own,
            secret=self._environ.get(contract.JOB_SECRET, ""),
            environment=self._environ,
        )
        if not self._has_secret:
            keep_in_secret(self._api, self.spec, credentials, owner)
        return KubernetesCluster(self.spec, self._api, context, owner, on_launch=self._used)

    def _owner(self) -> Object:
        """Who owns the workers: whoever manages this pod's job, or else this pod."""
        self._name = self._environ.get(contract.POD_NAME) or names.master_name(self.spec.job_name)
        pod = self._pod = self._api.get(names.path("pods", self.spec.namespace, self._name))
        for owner in pod["metadata"].get("ownerReferences") or []:
            if owner["kind"] == TRAINING_JOB:
                return {
                    "apiVersion": owner["apiVersion"],
                    "kind": owner["kind"],
                    "metadata": {"name": owner["name"], "uid": owner["uid"]},
                }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"]}

    def _open_history(self, owner: Object, *, goes_on: bool) -> PodHistory:
        """What belongs to a TrainingJob outlives the pod of its master."""
        keepsake = None
        if owner["kind"] == TRAINING_JOB:
            uid = self._pod["metadata"]["uid"]
            keepsake = KeptInConfigMap(self._api, self.spec.namespace, self.spec.job_name, owner, uid)
        return PodHistory(Path(STATE_DIRECTORY), goes_on=goes_on, keepsake=keepsake)

    def _recorder(self, owner: Object) -> Recorder:
        """Events are about the master's pod, and about whoever manages it."""
        subjects = [{"apiVersion": "v1", "kind": "Pod", "metadata": self._pod["metadata"]}]
        if owner["kind"] == TRAINING_JOB:
            meta = {**owner["metadata"], "namespace": self.spec.namespace}
            subjects.append({**owner, "metadata": meta})
        return Recorder(self._api, subjects, lambda: self.job.status())

    def _used(self, worker_id: int) -> None:
        if worker_id >= self._memory.next_id:
            self._memory.next_id = worker_id + 1
            self._file.write(self._memory)

    async def _answer(self, command: Command) -> JobStatus:
        if self._mailbox is not None:
            self._mailbox.check(command)
        status = dataclasses.replace(await self.job.answer(command), flags=self._flags)
        if status.wanted != self._memory.wanted:
            self._memory.wanted = status.wanted
            self._file.write(self._memory)
        return status

    async def _show(self, word: str) -> None:
        """The label by which ElasticDL's scripts follow a job."""
        await self._mark({"labels": {names.STATUS_LABEL: word}}, f"the label status={word}")

    async def _mark(self, metadata: Object, what: str) -> None:
        path = names.path("pods", self.spec.namespace, self._name)
        try:
            await asyncio.to_thread(self._api.patch, path, {"metadata": metadata})
        except ClusterError as error:
            log.warning("%s could not be written to the master's pod: %s", what, error)

    def _write_last_word(self) -> None:
        """For `elasticdl status` of a job that is over: Kubernetes keeps it with the pod."""
        try:
            TERMINATION_LOG.write_bytes(last_word(self.job.status()))
        except OSError:
            log.debug("there is no %s to write to", TERMINATION_LOG)
