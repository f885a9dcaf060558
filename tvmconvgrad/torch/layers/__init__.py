"""A convolution of PyTorch as this package sees it: its parts, their problems, and the tensors' strides."""
