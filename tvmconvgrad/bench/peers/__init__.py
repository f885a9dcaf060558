"""The other implementations. Each file imports its library only when a worker process asks for it."""
