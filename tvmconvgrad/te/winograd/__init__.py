"""Winograd's algorithm: several results along an axis from fewer products than direct sums take.

With y the m results of a tile, d the m + k - 1 elements that they read, and g the k taps (cook_toom.py has the
matrices):

    y = A^T [(G g) * (B^T d)]

The m + k - 1 products f of all tiles are matrix products over channels, since these are summed before A^T is applied.
A forward convolution is:

    for f, n, tile, c:    D[f, n, tile, c] = (B^T d[n, tile, :, c])[f]            # the stage "tiled_data"
    for f, c, o:          W[f, c, o] = (G g[:, c, o])[f]                          # "tiled_filter"
    for f, n, tile, o, c: M[f, n, tile, o] += D[f, n, tile, c] * W[f, c, o]       # "sum"
    for n, tile, o:       y[n, tile, :, o] = A^T M[:, n, tile, o]                 # "untiled"

Along two axes each matrix is applied along both. F(2x2, 3x3) has 16 products instead of 36, F(4x4, 3x3) 36 instead of
144. A data gradient is the convolution with the taps in reverse order. In a weights gradient the k taps are the
results, and the m elements of dy take the place of the taps, F(k, m): the sum is over n and tiles, and has the axes
(f, c, o).

Rounding errors grow with m + k - 1 (docs/concepts.md has figures). With 4 products the factors are 1 and 1/2, so sums
of small integers stay exact. An infinity or a NaN reaches all results of the tiles that read it: in a weights gradient
all taps.

With a dilation the elements of a tile have that stride, and so many tiles interleave. Other axes are summed directly. A
strided data gradient has tiles of the positions of each output phase (te/data_gradient.py), if all phases have the same
number of taps: 4x4 taps with stride 2 are four sums of 2x2 taps.
"""
