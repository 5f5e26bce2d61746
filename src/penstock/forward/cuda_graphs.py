"""All CUDA graphs of a backend."""

from __future__ import annotations

from typing import NamedTuple

from penstock.forward.chunk_graphs import ChunkGraphs
from penstock.forward.decode_graphs import DecodeGraphs
from penstock.forward.graph_capture import GraphCapture


class CudaGraphs(NamedTuple):
    decode: DecodeGraphs
    chunks: ChunkGraphs

    def capture(self, capture: GraphCapture) -> None:
        self.decode.capture(capture)
        self.chunks.capture(capture)

    def capture_largest(self, capture: GraphCapture) -> None:
        """Capture and discard the largest graphs, so that the memory pool grows to what `capture` will need."""
        self.decode.capture_largest(capture)
        self.chunks.capture_largest(capture)
