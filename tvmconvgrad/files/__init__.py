"""Files that appear whole, locks between processes, and places for temporary files."""
