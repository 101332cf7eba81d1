"""Faults by coordinates, and helpers for tests of jobs. Users may test their own jobs with them."""
