"""What master, workers and commands say to each other: typed messages over gRPC, nothing pickled."""
