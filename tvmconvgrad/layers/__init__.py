"""Layers of networks: the shapes that kernels are measured, tuned and built for, and files of them."""

from tvmconvgrad.layers.files import layers_text, read_layers, write_layers
from tvmconvgrad.layers.layer import GRADIENTS, KINDS, Layer, LayerGradient
from tvmconvgrad.layers.selection import Selection, select_gradients
from tvmconvgrad.layers.suites import SUITES, suite

__all__ = [
    "GRADIENTS",
    "KINDS",
    "SUITES",
    "Layer",
    "LayerGradient",
    "Selection",
    "layers_text",
    "read_layers",
    "select_gradients",
    "suite",
    "write_layers",
]
