"""Passes that turn annotated loops into vector code where TVM's own lowering makes none, or slow code."""
