"""Any gradient on a GPU, one thread an element. Begin with rule.py."""
