"""The core of the Reformer: Kitaev et al., "Reformer: the efficient transformer", ICLR 2020.

Kept: attention with shared queries and keys, where a position sees itself only when it sees nothing
else, and reversible residual layers. Simplified: attention is over the whole sequence and not over
hash buckets (at 64 tokens the two differ little in work), activations are stored and not
recomputed, the feed-forward network is not chunked, positions are learned and not axial.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name used everywhere
from torch import nn

from disco_fuse.workload import Workload
from disco_fuse.zoo.attention import merge_heads, split_heads
from disco_fuse.zoo.definition import define, next_tokens, token_loss

# Scores of what a position may not see, and of itself, which it sees if there is nothing else.
HIDDEN_SCORE = -1e9
SELF_SCORE = -1e5


class SharedAttention(nn.Module):  # type: ignore[misc]
    """Causal attention whose keys are the queries, scaled to length 1 (section 2)."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, time, width] to the same shape."""
        q, v = (split_heads(part, self.num_heads) for part in (self.query(x), self.value(x)))
        k = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6)
        scores = q @ k.transpose(-1, -2) / q.shape[-1]
        order = torch.arange(x.shape[1])
        scores = scores.masked_fill(order[:, None] == order, SELF_SCORE)
        scores = scores.masked_fill(order[:, None] < order, HIDDEN_SCORE)
        result: torch.Tensor = self.out(merge_heads(scores.softmax(-1) @ v))
        return result


class Layer(nn.Module):  # type: ignore[misc]
    """Reversible residual layer: a + attention(norm(b)), then b + feed_forward(norm(a))."""

    def __init__(self, width: int, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SharedAttention(width, num_heads)
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
    """

    def __init__(
        self,
        vocab: int = 32_000,
        width: int = 256,
        num_heads: int = 4,
        hidden: int = 512,
        num_layers: int = 3,
        context: int = 64,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.position = nn.Parameter(torch.empty(context, width))
        self.layers = nn.ModuleList(Layer(width, num_heads, hidden) for _ in range(num_layers))
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
    return define("reformer_small", lambda: Reformer(64, 32, 4, 64, 2, 16), batches, token_loss)
