"""A small GPT on bytes, written as in any textbook, and real text to train it on.

The text is ``pydoc_data/topics.py``, the language reference that every CPython ships: half a
megabyte or more of English and code, the same on every rank, with nothing to download.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - the name used everywhere
from torch import nn

Tokens = npt.NDArray[np.int64]


class Attention(nn.Module):  # type: ignore[misc]
    """Causal multi-head self-attention."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, time, width] to the same shape."""
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.num_heads, width // self.num_heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: torch.Tensor = self.out(y.transpose(1, 2).reshape(batch, time, width))
        return result


class Block(nn.Module):  # type: ignore[misc]
    """Pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, time, width] to the same shape."""
        x = x + self.attention(self.norm1(x))
        result: torch.Tensor = x + self.mlp(self.norm2(x))
        return result


class ByteGPT(nn.Module):  # type: ignore[misc]
    """GPT-2's architecture (learned positions, tied embedding and head) over single bytes.

    Parameters
    ----------
    num_layers, width, num_heads : int
        Blocks, model width, attention heads; the width must be a multiple of the heads.
    context : int
        Longest sequence.
    vocab : int
        Number of tokens, 256 for bytes.
    """

    def __init__(
        self,
        num_layers: int = 4,
        width: int = 256,
        num_heads: int = 4,
        context: int = 128,
        vocab: int = 256,
    ) -> None:
        super().__init__()
        if width % num_heads != 0:
            raise ValueError(f"width {width} must be a multiple of num_heads {num_heads}")
        self.embedding = nn.Embedding(vocab, width)
        self.position = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [batch, time] to logits [batch, time, vocab]."""
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def next_byte_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of logits [batch, time, vocab] for targets [batch, time], in nats."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@cache
def text() -> npt.NDArray[np.uint8]:
    """The bytes of ``pydoc_data/topics.py``; found, not imported, for import would run it."""
    spec = importlib.util.find_spec("pydoc_data")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("this Python has no pydoc_data package to take text from")
    data = (Path(spec.origin).parent / "topics.py").read_bytes()
    return np.frombuffer(data, dtype=np.uint8)


def text_batches(
    *,
    batch: int,
    context: int = 128,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 0,
) -> Iterator[tuple[Tokens, Tokens]]:
    """Endless batches of text and the text one byte later.

    The text is cut into windows; every epoch shuffles all of them with the seed, and rank r takes
    each world_size-th from the r-th on. Ranks never see the same window within an epoch, and
    their k-th batches together hold the windows of the k-th batch of a single rank whose batch is
    world_size times larger.

    Parameters
    ----------
    batch : int
        Sequences per batch of this rank.
    context : int
        Bytes per sequence.
    rank, world_size : int
        Which share of the windows to take.
    seed : int
        Equal on all ranks.

    Yields
    ------
    tuple of numpy.ndarray
        Tokens and targets, int64 [batch, context].

    Raises
    ------
    ValueError
        If the rank is not one of the world, or the text has too few windows for one batch.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in [0, {world_size}), got {rank}")
    if batch < 1 or context < 1:
        raise ValueError(f"batch and context must be positive, got {batch} and {context}")
    data = text().astype(np.int64)
    num_windows = (len(data) - 1) // context
    per_step = batch * world_size
    if num_windows < per_step:
        raise ValueError(f"{num_windows} windows of {context} bytes cannot fill {per_step}")
    return _batches(data, num_windows, batch, context, (rank, world_size, seed))


def _batches(
    data: Tokens, num_windows: int, batch: int, context: int, share: tuple[int, int, int]
) -> Iterator[tuple[Tokens, Tokens]]:
    rank, world_size, seed = share
    generator = np.random.default_rng(seed)
    offsets: npt.NDArray[Any] = np.arange(context)
    while True:
        order = generator.permutation(num_windows)
        for step in range(num_windows // (batch * world_size)):
            chosen = order[step * batch * world_size : (step + 1) * batch * world_size]
            positions = chosen[rank::world_size, None] * context + offsets
            yield data[positions], data[positions + 1]
