"""The Transformer, base model: Vaswani et al., "Attention is all you need", 2017."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name used everywhere
from torch import nn

from disco_fuse.workload import Batch, Workload
from disco_fuse.zoo.attention import Attention
from disco_fuse.zoo.definition import Batches, define, token_loss


class FeedForward(nn.Module):  # type: ignore[misc]
    """Two dense layers with ReLU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, time, width] to the same shape."""
        result: torch.Tensor = self.down(F.relu(self.up(x)))
        return result


class EncoderLayer(nn.Module):  # type: ignore[misc]
    """Self-attention and a feed-forward network, each as norm(x + f(x))."""

    def __init__(self, width: int, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(width, num_heads)
        self.norm1 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, hidden)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, time, width] to the same shape."""
        x = self.norm1(x + self.attention(x, x))
        result: torch.Tensor = self.norm2(x + self.feed_forward(x))
        return result


class DecoderLayer(nn.Module):  # type: ignore[misc]
    """Causal self-attention, attention to the encoder's result, and a feed-forward network."""

    def __init__(self, width: int, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(width, num_heads, causal=True)
        self.norm1 = nn.LayerNorm(width)
        self.cross_attention = Attention(width, num_heads)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, hidden)
        self.norm3 = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
        """``x`` [batch, time, width], ``encoded`` [batch, source time, width] to ``x``'s shape."""
        x = self.norm1(x + self.attention(x, x))
        x = self.norm2(x + self.cross_attention(x, encoded))
        result: torch.Tensor = self.norm3(x + self.feed_forward(x))
        return result


class Transformer(nn.Module):  # type: ignore[misc]
    """Encoder and decoder; both embeddings and the output layer share one matrix (section 3.4).

    Parameters
    ----------
    vocab : int
        Tokens, of both languages.
    width, num_heads, hidden : int
        Model width, attention heads, width of the feed-forward networks.
    num_layers : int
        Of the encoder, and of the decoder.
    context : int
        Longest sequence.
    """

    def __init__(
        self,
        vocab: int = 50_000,
        width: int = 512,
        num_heads: int = 8,
        hidden: int = 2048,
        num_layers: int = 6,
        context: int = 128,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.register_buffer("positions", sinusoids(context, width))
        sizes = (width, num_heads, hidden)
        self.encoder = nn.ModuleList(EncoderLayer(*sizes) for _ in range(num_layers))
        self.decoder = nn.ModuleList(DecoderLayer(*sizes) for _ in range(num_layers))
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=width**-0.5)

    def forward(self, source: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Source [batch, source time], tokens [batch, time] to logits [batch, time, vocab]."""
        encoded, x = self._embed(source), self._embed(tokens)
        for layer in self.encoder:
            encoded = layer(encoded)
        for layer in self.decoder:
            x = layer(x, encoded)
        logits: torch.Tensor = self.head(x)
        return logits

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        scaled = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        result: torch.Tensor = scaled + self.positions[: tokens.shape[1]]
        return result


def sinusoids(context: int, width: int) -> torch.Tensor:
    """sin and cos of position / 10000 ** (i / width) in even and odd columns (section 3.5)."""
    rates = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(context)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def _translations(*, batch: int, time: int, vocab: int) -> Batches:
    """Random source sentences, target sentences, and these one position later."""

    def batches(rank: int, _world_size: int) -> Iterator[Batch]:
        generator = np.random.default_rng(rank)
        while True:
            source = generator.integers(vocab, size=(batch, time))
            target = generator.integers(vocab, size=(batch, time + 1))
            yield source, target[:, :-1].copy(), target[:, 1:].copy()

    return batches


def transformer() -> Workload:
    """6 + 6 layers, batch 48 of 128 tokens, vocabulary 50,000: 69.7 M parameters."""
    batches = _translations(batch=48, time=128, vocab=50_000)
    return define("transformer", Transformer, batches, token_loss)


def transformer_small() -> Workload:
    """2 + 2 layers of width 32, batch 4 of 16 tokens, vocabulary 64."""
    batches = _translations(batch=4, time=16, vocab=64)
    return define(
        "transformer_small", lambda: Transformer(64, 32, 4, 64, 2, 16), batches, token_loss
    )
