"""The mathematics: each gradient as a tensor expression, one file for each of the three sums."""

from tvmconvgrad.te.tensors import Sum

__all__ = ["Sum"]
