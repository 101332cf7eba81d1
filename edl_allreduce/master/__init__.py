"""The job's control loop. It is not on the step path: when it dies, training goes on."""
