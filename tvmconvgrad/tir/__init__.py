"""TVM programs: the annotations that schedules set, helpers to rewrite programs, and passes. It knows no schedule."""
