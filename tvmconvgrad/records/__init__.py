"""What tuning has found: choices, logs, and their look-up. Needs no compiler."""
