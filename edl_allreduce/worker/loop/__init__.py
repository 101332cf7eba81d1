"""The elastic loop: plans, rings, steps; no framework."""
