"""The worker process: it holds the model, and the ring re-forms around it."""
