"""Intel's oneDNN (the wheel `onednn`) through ctypes: the Graph API in a user's layout, and primitives in its own."""

from tvmconvgrad.bench.peers.onednn.graph import GraphOperator
from tvmconvgrad.bench.peers.onednn.library import OneDNNError, installed, version
from tvmconvgrad.bench.peers.onednn.primitive import Primitive
from tvmconvgrad.bench.peers.onednn.words import graph_lacks

__all__ = ["GraphOperator", "OneDNNError", "Primitive", "graph_lacks", "installed", "version"]
