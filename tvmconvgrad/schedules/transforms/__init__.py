"""Rewrites of scheduled programs that the schedules of CPUs and GPUs share."""
