"""The published experiments, run again: PaddlePaddle EDL's two, and a replay of many jobs.

    python -m experiments trace     many jobs on few slots, in simulated time
    python -m experiments jobs      twenty jobs come to a cluster, one after the other
    python -m experiments nginx     six jobs beside a service that grows and shrinks

docs/experiments.md has what came out, and says what is real in them and what is played.
"""
