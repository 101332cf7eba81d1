"""Your own training loop in an elastic job. The public names are in `edl_allreduce.elastic`.

The engine (plans, rings, agreement on the state, audit, checkpoints) runs in a thread of its own and treats
the user's loop as its trainer: `compute` offers a step and waits until the loop brings gradients, `commit`
sums them, hands the mean over and waits until the loop has applied it.
"""
