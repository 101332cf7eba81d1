"""What ships for tests, also for users who test their own jobs.

faults          faults of real processes, by coordinates
jobs            whole jobs under test
fake_ring       several ranks in one process
fake_master     plans and orders for engines in one process
numpy_trainer   a trainer whose results are exact
"""
