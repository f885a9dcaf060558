"""Code for CPUs that need not be there: their numbers, their assembly, and their instructions emulated."""
