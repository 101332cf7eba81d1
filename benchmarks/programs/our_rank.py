"""One of our workers without a model: it follows plans and says when it reached the others."""

from __future__ import annotations

import argparse
import os

from edl_allreduce import clock
from edl_allreduce.core import protocol
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.protocol import Seat
from edl_allreduce.rpc.client import WorkerStream
from edl_allreduce.worker.attendant import Attendant
from edl_allreduce.worker.ring.horovod import HorovodRing

DEADLINES = Deadlines(60.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--worker", type=int, required=True)
    flags = parser.parse_args()
    seat = Seat(f"rank-{flags.worker}", flags.worker, "127.0.0.1")
    control = Attendant(
        lambda hello: WorkerStream(flags.master, flags.token, hello),
        seat,
        deadlines=DEADLINES,
        master_grace=1.0,
    )
    control.start()
    ring = HorovodRing(control.store.port, "lo", DEADLINES.collective, flags.token)
    control.watch(ring)
    control.ready(protocol.Ready(0, False, "", 0, 0))
    generation = 0
    while isinstance(order := control.next_order(generation), protocol.NewPlan):
        if generation:
            ring.leave()
            control.switching(0)
        generation = order.plan.generation
        control.entering(order.plan, None)
        ring.join(order.plan, seat.uid)
        ring.gather([ring.rank])
        control.send(protocol.Note(protocol.NoteKind.NOTICE, f"{generation} {clock.now()!r}"))
    os._exit(0)  # nobody waits for the others here


if __name__ == "__main__":
    main()
