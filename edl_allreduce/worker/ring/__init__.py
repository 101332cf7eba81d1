"""Rings that sum tensors: alone, under a launcher, elastic."""
