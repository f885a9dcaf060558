/* A tensor map, which is opaque, as the tests' driver writes it (fake_cuda.c) and their GPU reads it (cuda_emulator).
 *
 * Axes are innermost first. A box has `extents`; one of pixels so many channels, and pixels, which it takes row by row
 * from the part of the tensor between two corners.
 */
#pragma once

typedef struct {
    const unsigned char *memory;
    unsigned rank, item, line_bytes, pixels;
    unsigned sizes[5], steps[5];
    int extents[5], lower[3], upper[3];
} TensorMap;
