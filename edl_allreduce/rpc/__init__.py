"""What master, workers and commands say to each other: typed messages over gRPC, nothing pickled."""

import os

# gRPC would print a line for every connection that is no TLS: strangers could fill the log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
