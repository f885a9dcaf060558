"""Measurement on other machines: by packs, or TVM's RPC."""
