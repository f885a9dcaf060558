"""NVIDIA's driver, and what it is told: launches and tensor maps. Pure Python."""
