"""A photograph is blurred by an unknown filter, the filter is found again, and the photograph sharpened.

All three by convolution gradients: `deblurring` does it, `scene` makes the blurred photograph, `picture` draws both.
"""
