"""Checkpoints: files, and who writes them."""
