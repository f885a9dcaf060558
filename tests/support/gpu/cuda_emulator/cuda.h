// Stands in for CUDA's header of the same name: generated code includes it, and needs nothing of it here.
