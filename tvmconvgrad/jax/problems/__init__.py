"""Which of the specification's problems a convolution of JAX is: begin with reading.py."""
