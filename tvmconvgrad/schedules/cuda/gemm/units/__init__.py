"""How a GEMM's tile is multiplied: FMA units, tensor cores, warpgroups."""
