"""Rewrites of scheduled programs that several schedules share; each file begins with a program before and after."""
