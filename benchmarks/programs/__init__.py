"""What peers run: plain scripts as a Horovod user writes them, on the same models and records as ours."""
