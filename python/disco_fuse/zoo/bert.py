"""BERT-base with its masked-language-model head: Devlin et al., "BERT", NAACL 2019.

Left out: next-sentence prediction with its pooler, padding (all sequences are full), dropout.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name used everywhere
from torch import nn

from disco_fuse.workload import Batch, Workload
from disco_fuse.zoo.attention import Attention
from disco_fuse.zoo.definition import IGNORED, Batches, define, token_loss

# Share of the tokens that are to be predicted (section 3.1).
MASKED = 0.15


class Layer(nn.Module):  # type: ignore[misc]
    """Self-attention and a feed-forward network with GELU, each as norm(x + f(x))."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, num_heads)
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, time, width] to the same shape."""
        x = self.norm1(x + self.attention(x, x))
        result: torch.Tensor = self.norm2(x + self.down(F.gelu(self.up(x))))
        return result


class Bert(nn.Module):  # type: ignore[misc]
    """Token, position and segment embeddings, layers, and a head tied to the token embedding.

    Parameters
    ----------
    vocab, width, num_heads, num_layers : int
    context : int
        Longest sequence.
    """

    def __init__(
        self,
        vocab: int = 30_522,
        width: int = 768,
        num_heads: int = 12,
        num_layers: int = 12,
        context: int = 512,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.position = nn.Parameter(torch.empty(context, width))
        self.segment = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.Sequential(*(Layer(width, num_heads) for _ in range(num_layers)))
        self.transform = nn.Linear(width, width)
        self.transform_norm = nn.LayerNorm(width, eps=1e-12)
        self.head = nn.Linear(width, vocab)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        nn.init.normal_(self.position, std=0.02)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        """Tokens and segments (0 or 1), both [batch, time], to logits [batch, time, vocab]."""
        x = self.embedding(tokens) + self.position[: tokens.shape[1]] + self.segment(segments)
        x = self.layers(self.norm(x))
        logits: torch.Tensor = self.head(self.transform_norm(F.gelu(self.transform(x))))
        return logits


def masked_tokens(*, batch: int, time: int, vocab: int) -> Batches:
    """Random tokens, two segments, and the tokens themselves where they are to be predicted."""

    def batches(rank: int, _world_size: int) -> Iterator[Batch]:
        generator = np.random.default_rng(rank)
        segments = np.repeat(np.arange(time) >= time // 2, batch).reshape(time, batch).T
        while True:
            tokens = generator.integers(vocab, size=(batch, time))
            masked = generator.random((batch, time)) < MASKED
            masked[0, 0] = True  # a batch without any would have no mean
            seen = np.where(masked, vocab - 1, tokens)  # the last token stands for [MASK]
            yield seen, segments.astype(np.int64), np.where(masked, tokens, IGNORED)

    return batches


def bert() -> Workload:
    """12 layers of width 768, batch 48 of 128 tokens: 109.5 M parameters."""
    batches = masked_tokens(batch=48, time=128, vocab=30_522)
    return define("bert", Bert, batches, token_loss)


def bert_small() -> Workload:
    """2 layers of width 32, batch 4 of 16 tokens, vocabulary 64."""
    batches = masked_tokens(batch=4, time=16, vocab=64)
    return define("bert_small", lambda: Bert(64, 32, 4, 2, 32), batches, token_loss)
