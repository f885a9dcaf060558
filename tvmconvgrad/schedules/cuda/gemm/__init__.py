"""Gradients as implicit GEMMs on GPUs. Begin with rule.py.

In CUTLASS's words: ../product.py is the problem, tiles.py has the CTA tile and its warps, mainloop.py is the main loop
(multistage, or warp-specialised with TMA), copies/ fill its stages, units/ are the MMA atoms, and epilogue.py is the
epilogue. plan.py chooses all numbers by the cost model (cost.py, shapes.py); block.py puts the parts together.
"""
