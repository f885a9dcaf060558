"""What was measured: the arithmetic on it, means, the table on a terminal, and pictures."""
