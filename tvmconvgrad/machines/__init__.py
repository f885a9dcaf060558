"""Targets, and the models of CPUs and GPUs that schedules take their numbers from."""
