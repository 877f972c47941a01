"""One small function per ATen operator, by theme; importing this package registers them all."""

from __future__ import annotations

from disco_fuse.frontend.torch.converters import (
    convolution,
    distances,
    elementwise,
    embedding_bag,
    functions,
    indexing,
    linear,
    max_pooling,
    normalization,
    ordering,
    pooling,
    random,
    reduction,
    scattering,
    shape,
)
from disco_fuse.frontend.torch.converters.registry import CONVERTERS, Entry, Node, Refusal

__all__ = [
    "CONVERTERS",
    "Entry",
    "Node",
    "Refusal",
    "convolution",
    "distances",
    "elementwise",
    "embedding_bag",
    "functions",
    "indexing",
    "linear",
    "max_pooling",
    "normalization",
    "ordering",
    "pooling",
    "random",
    "reduction",
    "scattering",
    "shape",
]
