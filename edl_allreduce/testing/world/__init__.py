"""A master and workers without processes or network: both real machines, and wires that can be cut.

The master is `core.membership`, each worker is `core.attendance`; simulated are only the arithmetic of a
step, the connections of a ring and the wires. Everything that can happen next is an *action*; who picks
actions (Hypothesis, an exhaustive search, a fair scheduler) is not the world's business. Messages of one
worker stay in order, those of different workers overtake each other at will. After every event all
properties are checked.

`play` has the world, `worker` what it knows of one, `rings` how they behave, `properties` what must be true,
`sameness` what a search need not look at twice.
"""

from edl_allreduce.testing.world.play import TICKS, Action, World
from edl_allreduce.testing.world.worker import Doing, Life, Worker

__all__ = ["TICKS", "Action", "Doing", "Life", "Worker", "World"]
