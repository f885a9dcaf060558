"""Passes that make vector code of annotated loops, where TVM's own lowering has none or slow code."""
