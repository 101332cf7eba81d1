"""The command `elasticdl`."""
