"""A fuzzer of all that a user can pass and of all files that are read: `python -m tests.fuzz_surface --help`."""
