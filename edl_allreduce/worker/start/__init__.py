"""The ways in which a worker process begins."""
