"""Pure decisions. Standard library only; no I/O, no lock, no clock: time is an argument."""
