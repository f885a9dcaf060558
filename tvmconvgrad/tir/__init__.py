"""TVM's programs: the annotations that schedules make, helpers to rewrite programs, and passes. Knows no schedule."""
