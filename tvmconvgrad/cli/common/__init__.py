"""What the verbs share: options, help, exit codes, and where results are written."""
