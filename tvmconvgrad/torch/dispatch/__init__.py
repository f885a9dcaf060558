"""What PyTorch's dispatcher calls: the override of its convolutions, this package's operators, their derivatives."""
