"""Worker processes that build and measure candidates."""
