"""What the processes of a job promise each other beside the protocol: exit codes, environment variables.

Master, workers, the kubelet and people's scripts meet here. Standard library only, imported by every layer.
"""

from __future__ import annotations

from typing import Final

# How a process ends. Commands add 2 for wrong usage (`errors.EdlError.exit_code`).
EXIT_FAILED: Final = 1
"""Something went wrong that another try may not meet."""
EXIT_INVALID: Final = 3
"""A worker: the job cannot work as described, and no other worker would do better."""
EXIT_EVICTED: Final = 4
"""A worker: the master turned it out."""
EXIT_TERMINATED: Final = 143
"""A worker: it was told to leave, and could not tell the master: 128 + SIGTERM, as shells count. Who can tell
it leaves with 0."""
EXIT_INTERRUPTED: Final = 130
"""Somebody stopped it: 128 + SIGINT, as shells count."""

LAST_WORDS_SECONDS: Final = 2.0
"""How long a process that ends waits until what it said has left: longer than a round trip on a slow network,
shorter than anybody waits for a process that was told to go."""

# The environment. A master gives it to workers that it starts; people set the token for workers elsewhere.
JOB_TOKEN: Final = "EDL_JOB_TOKEN"
"""Whoever knows it belongs to the job: every call to the master carries it."""
MASTER_CERTIFICATE: Final = "EDL_MASTER_CERTIFICATE"
"""The certificate (PEM) by which workers in pods know their master."""
MASTER_KEY: Final = "EDL_MASTER_KEY"
"""The key (PEM) of that certificate; only in the master's pod."""
MASTER_MARK: Final = "EDL_MASTER_MARK"
"""In all local workers that one master started, and in no other process."""
JOB_SECRET: Final = "EDL_JOB_SECRET"
"""In the master's pod: the Kubernetes Secret from which workers read the token."""
JOB_FLAGS: Final = "EDL_JOB_FLAGS"
"""In a user's own script: all flags of the job and of this worker, as a shell would write them."""
PINNED_FILES: Final = "EDL_PINNED_FILES"
"""In local workers: the manifest of the copies of the job's model files."""
STORAGE_SECONDS: Final = "EDL_STORAGE_SECONDS"
"""How long a request to object storage that fails is made again before that is an error; 120 without it."""
CACHE_DIR: Final = "EDL_CACHE_DIR"
"""Where parts of objects are kept on this machine; below the user's cache directory without it."""
CACHE_GIB: Final = "EDL_CACHE_GIB"
"""How much of the disk they may take."""
FAULTS: Final = "EDL_FAULTS"
"""In jobs under test: the faults to inject, as JSON."""
FAULT_DIR: Final = "EDL_FAULT_DIR"
"""In jobs under test: where a fault leaves its proof that it happened."""

# Inside of pods, where ElasticDL's users and scripts expect them.
MASTER_ADDR: Final = "MASTER_ADDR"
WORKER_ID: Final = "WORKER_ID"
WORKER_NUM: Final = "WORKER_NUM"
POD_IP: Final = "MY_POD_IP"
POD_NAME: Final = "MY_POD_NAME"
POD_NAMESPACE: Final = "MY_POD_NAMESPACE"

TENSORFLOW_THREADS: Final = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
"""TensorFlow's own variables: how many threads it starts."""
