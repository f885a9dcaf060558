"""One part of a layer, and who computes its next call: kernels in the background, the comparison, its findings."""
