"""Checkpoints: `format` is the disk's, `fit` whether it is ours, `writer` writes while training goes on."""
