"""What a worker owes its master and its ring: a pure machine. Events in, new state and instructions out.

    state, instructions = machine.handle(state, event, now)

The worker's half of the protocol whose other half is `core.membership`. Connections are events here: they
open, end, and open again, and what was lost with one is said again over the next (`queries.introduction`).
"""
