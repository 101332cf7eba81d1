"""The Lease by which one of several controllers acts; `core/controller/lease.py` decides."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Protocol

from edl_allreduce.clock import SYSTEM, Clock
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.core.controller import lease
from edl_allreduce.core.controller.lease import Create, Follow, Lease, Standing, Take
from edl_allreduce.errors import ApiRefused, ClusterError, EdlError

log = logging.getLogger(__name__)

NAME = "elasticdl-controller"


class LeaseApi(Protocol):
    """The part of the API that is needed here."""

    def get(self, path: str, **query: str | int) -> Object: ...

    def create(self, path: str, manifest: Object, **query: str | int) -> Object: ...

    def replace(self, path: str, whole: Object) -> Object: ...


class NotLeading(EdlError):
    """This controller may not write: it does not lead, or has not renewed its lease in time."""


class Election:
    """One controller's part in it. `check` guards every write."""

    def __init__(self, api: LeaseApi, namespace: str, me: str, *, clock: Clock = SYSTEM) -> None:
        self._api, self._clock = api, clock
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self._object: Object | None = None
        self.standing = Standing(me)
        self.told = ""

    @property
    def leads(self) -> bool:
        return self.standing.leads(self._clock.now())

    @property
    def term(self) -> int:
        return self.standing.term

    def check(self, term: int) -> None:
        """Before each write, with the term in which it was decided."""
        if not self.leads:
            raise NotLeading("this controller does not lead (any more): nothing is written")
        if term != self.term:
            raise NotLeading(f"this was decided in term {term}, and now it is term {self.term}")

    async def run(self) -> None:
        while True:
            await self.step()
            await self._clock.rest(lease.RETRY)

    async def step(self) -> None:
        """One look, and one write if it is due."""
        try:
            found = await asyncio.to_thread(self._get)
            now = self._clock.now()
            self._object = found
            self.standing = lease.seen(self.standing, _read(found) if found is not None else None, now)
            match lease.decide(self.standing, now):
                case Create(wanted):
                    await self._write(wanted, now, "there was no lease", create=True)
                case Take(wanted, why):
                    await self._write(wanted, now, why)
                case Follow(why):
                    self._tell(why)
        except ClusterError as error:
            self._tell(f"the lease cannot be kept: {error}")

    async def step_down(self) -> None:
        """So that the next one need not wait."""
        if not self.leads or self._object is None:
            return
        held = self._object
        freed = {**held, "spec": {**held["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}
        self.standing = Standing(self.standing.me)
        try:
            await asyncio.to_thread(self._api.replace, f"{self._path}/{NAME}", freed)
        except ClusterError as error:
            log.info("the lease could not be given back: %s", error)

    def _get(self) -> Object | None:
        try:
            return self._api.get(f"{self._path}/{NAME}")
        except ApiRefused as error:
            if error.status == 404:
                return None
            raise

    async def _write(self, wanted: Lease, sent_at: float, why: str, *, create: bool = False) -> None:
        stamp = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = (self._object or {}).get("spec") or {}
        same_term = before.get("leaseTransitions") == wanted.term
        spec = {
            "holderIdentity": wanted.holder,
            "leaseDurationSeconds": int(wanted.duration),
            "leaseTransitions": wanted.term,
            "acquireTime": before.get("acquireTime", stamp) if same_term else stamp,
            "renewTime": stamp,
        }
        if create:
            metadata = {"name": NAME, "namespace": self._namespace}
            whole = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
            written = await asyncio.to_thread(self._api.create, self._path, {**whole, "spec": spec})
        else:
            assert self._object is not None
            whole = {**self._object, "spec": spec}
            written = await asyncio.to_thread(self._api.replace, f"{self._path}/{NAME}", whole)
        self._object = written
        led = self.leads
        self.standing = lease.written(self.standing, _read(written), sent_at)
        if not led:
            self._tell(f"leads in term {self.term}: {why}")

    def _tell(self, words: str) -> None:
        if words != self.told:
            self.told = words
            log.info("%s: %s", self.standing.me, words)


def _read(found: Object) -> Lease:
    spec = found.get("spec") or {}
    return Lease(
        holder=str(spec.get("holderIdentity") or ""),
        term=int(spec.get("leaseTransitions") or 0),
        version=str(found["metadata"]["resourceVersion"]),
        duration=float(spec.get("leaseDurationSeconds") or lease.DURATION),
    )
