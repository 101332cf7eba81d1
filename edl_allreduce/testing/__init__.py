"""What ships for tests, also for users who test their own jobs.

faults          faults of real processes, by coordinates
jobs            whole jobs under test
warm            the same with workers that start quickly: a nursery forks them
scene           a whole job in simulated time: the master's real machine, played workers
cluster         a cluster in memory
clock           time that a test moves
fake_ring       several ranks in one process
fake_master     plans and orders for engines in one process
numpy_trainer   a trainer whose results are exact
thread_cluster  workers as threads: the real master, attendants and engines in one process
"""
