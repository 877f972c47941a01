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

from disco_fuse.zoo.gpt2 import GPT2

Tokens = npt.NDArray[np.int64]


class ByteGPT(GPT2):
    """GPT-2's architecture, with exact GELU, over single bytes.

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
        super().__init__(vocab, width, num_heads, num_layers, context, gelu="none")


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
