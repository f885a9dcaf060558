"""Searching the numbers that schedules leave open, and logs of what was found. Importing this imports no compiler."""
