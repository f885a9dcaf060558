"""The workers that run variants: the parent's side, and what a worker can run. The process itself: bench/worker.py."""
