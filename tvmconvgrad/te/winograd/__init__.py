"""Winograd's algorithm: several results along an axis from fewer products than direct sums take.

With y the m results of a tile, d the n = m + k - 1 elements that they read, and g the k taps (cook_toom.py has the
matrices):

    y = A^T [(G g) * (B^T d)]

Along two axes each matrix is applied along both. F(2x2, 3x3) has 16 products instead of 36, F(4x4, 3x3) 36 instead of
144. Channels are summed before A^T is applied, which makes one matrix product of each of the 16 or 36. A data gradient
is the convolution with the taps in reverse order. In a weights gradient the k taps are the results, and the m elements
of dy take the place of the taps: F(k, m).

Rounding errors grow with n (docs/concepts.md has figures). With n = 4 the factors are 1 and 1/2, so sums of small
integers stay exact. An infinity or a NaN reaches all results of the tiles that read it: in a weights gradient all taps.

With dilation d the elements of a tile lie d apart, and d tiles interleave. Other axes are summed directly. A strided
data gradient has tiles of the positions of each output phase (te/data_gradient.py), if all phases have the same number
of taps: 4x4 taps with stride 2 are four sums of 2x2 taps.
"""
