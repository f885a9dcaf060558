"""What the tests share: convolutions by their numbers, references, sources of cases."""
