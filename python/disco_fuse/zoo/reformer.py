"""The Reformer: Kitaev et al., "Reformer: the efficient transformer", ICLR 2020.

Attention with shared queries and keys over locality-sensitive hash buckets, in reversible residual
layers; sizes as in DisCo's runs (two hashes, chunks of 16). Simplified: the hash's rotations are
drawn once and not in every step, the chunk before the first of a hash round is the last of the same
round, activations are stored and not recomputed, the feed-forward network is not chunked, positions
are learned and not axial. Positions are sorted by counting who comes before whom.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - the name used everywhere
from torch import nn

from disco_fuse.workload import Workload
from disco_fuse.zoo.attention import merge_heads, split_heads
from disco_fuse.zoo.definition import define, next_tokens, token_loss

# Scores of what a position may not see, and of itself, which it sees if there is nothing else.
HIDDEN_SCORE = -1e9
SELF_SCORE = -1e5


class LSHAttention(nn.Module):  # type: ignore[misc]
    """Causal attention among positions whose queries hash alike (section 2).

        order  = positions sorted by (bucket of the query, position), for each hash
        chunks = order cut into pieces; a chunk sees itself and the one before
        result = the hashes' results, weighted by softmax of their logsumexp

    Keys are the queries, scaled to length 1.

    Parameters
    ----------
    width, num_heads : int
    chunk : int
        Positions in a chunk; divides the sequence.
    num_hashes, num_buckets : int
        The number of buckets is even.
    """

    def __init__(
        self, width: int, num_heads: int, chunk: int, num_hashes: int, num_buckets: int
    ) -> None:
        super().__init__()
        self.num_heads, self.chunk = num_heads, chunk
        self.query = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)
        rotations = torch.randn(num_hashes, width // num_heads, num_buckets // 2)
        self.register_buffer("rotations", rotations)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, time, width] to the same shape."""
        q, v = (split_heads(part, self.num_heads) for part in (self.query(x), self.value(x)))
        order, rank = self._sort(self._buckets(q.detach()))
        sorted_q, sorted_v = (self._chunks(_take(part[:, :, None], order)) for part in (q, v))
        position = self._chunks(order)
        scale = torch.rsqrt(sorted_q.square().sum(-1, keepdim=True) + 1e-6)
        keys = _with_previous(sorted_q * scale)
        scores = sorted_q @ keys.transpose(-1, -2) / math.sqrt(q.shape[-1])
        own, seen = position[..., :, None], _with_previous(position)[..., None, :]
        scores = scores.masked_fill(seen == own, SELF_SCORE)
        scores = scores.masked_fill(seen > own, HIDDEN_SCORE)
        total = scores.logsumexp(-1, keepdim=True)
        attended = (scores - total).exp() @ _with_previous(sorted_v)
        # Back to the order of time, and the hashes together.
        attended, total = (_take(part.flatten(3, 4), rank) for part in (attended, total))
        result: torch.Tensor = self.out(merge_heads((attended * total.softmax(2)).sum(2)))
        return result

    def _buckets(self, q: torch.Tensor) -> torch.Tensor:
        """Queries [batch, heads, time, n] to buckets [batch, heads, hashes, time]."""
        rotated = q[:, :, None] @ self.rotations
        rotated = torch.cat([rotated, -rotated], dim=-1)
        largest = rotated == rotated.amax(-1, keepdim=True)
        return (largest * torch.arange(rotated.shape[-1])).sum(-1)

    def _sort(self, buckets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions in sorted order, and the rank of each position, both shaped like buckets."""
        time = torch.arange(buckets.shape[-1])
        key = buckets * len(time) + time
        rank = (key[..., :, None] > key[..., None, :]).sum(-1)
        return torch.zeros_like(rank).scatter_add(-1, rank, time.expand(rank.shape)), rank

    def _chunks(self, x: torch.Tensor) -> torch.Tensor:
        """Axis 3, time, cut into two: chunks and positions."""
        return x.unflatten(3, (-1, self.chunk))


def _take(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """x [batch, heads, hashes or 1, time, n] at positions [batch, heads, hashes, time]."""
    index = positions[..., None].expand(*positions.shape, x.shape[-1])
    return x.expand(index.shape).gather(3, index)


def _with_previous(chunks: torch.Tensor) -> torch.Tensor:
    """[batch, heads, hashes, chunks, positions, ...]: every chunk after the one before it."""
    previous = torch.cat([chunks[:, :, :, -1:], chunks[:, :, :, :-1]], dim=3)
    return torch.cat([previous, chunks], dim=4)


class Layer(nn.Module):  # type: ignore[misc]
    """Reversible residual layer: a + attention(norm(b)), then b + feed_forward(norm(a))."""

    def __init__(self, width: int, num_heads: int, hidden: int, hashing: tuple[int, ...]) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = LSHAttention(width, num_heads, *hashing)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both halves [batch, time, width] to the same shapes."""
        a = a + self.attention(self.norm1(b))
        b = b + self.down(F.relu(self.up(self.norm2(a))))
        return a, b


class Reformer(nn.Module):  # type: ignore[misc]
    """A language model on reversible layers; both halves start as the embedding.

    Parameters
    ----------
    vocab, width, num_heads, hidden, num_layers : int
    context : int
        Longest sequence.
    hashing : (int, int, int)
        Positions in a chunk, hashes, buckets.
    """

    def __init__(
        self,
        vocab: int = 32_000,
        width: int = 256,
        num_heads: int = 4,
        hidden: int = 512,
        num_layers: int = 3,
        context: int = 64,
        hashing: tuple[int, int, int] = (16, 2, 8),
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.position = nn.Parameter(torch.empty(context, width))
        self.layers = nn.ModuleList(
            Layer(width, num_heads, hidden, hashing) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(2 * width)
        self.head = nn.Linear(2 * width, vocab)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [batch, time] to logits [batch, time, vocab]."""
        a = b = self.embedding(tokens) + self.position[: tokens.shape[1]]
        for layer in self.layers:
            a, b = layer(a, b)
        logits: torch.Tensor = self.head(self.norm(torch.cat([a, b], dim=-1)))
        return logits


def reformer() -> Workload:
    """3 layers of width 256, batch 128 of 64 tokens, vocabulary 32,000: 26.0 M parameters."""
    batches = next_tokens(batch=128, time=64, vocab=32_000)
    return define("reformer", Reformer, batches, token_loss)


def reformer_small() -> Workload:
    """2 layers of width 32, batch 4 of 16 tokens, vocabulary 64."""
    batches = next_tokens(batch=4, time=16, vocab=64)
    return define(
        "reformer_small", lambda: Reformer(64, 32, 4, 64, 2, 16, (4, 2, 8)), batches, token_loss
    )
