"""Instructions of NVIDIA's GPUs that TVM's programs have no word for, as device functions."""
