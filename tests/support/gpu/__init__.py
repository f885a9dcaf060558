"""GPUs that are not there: a driver, an emulator that runs kernels, and the libraries that have tensors on GPUs."""
