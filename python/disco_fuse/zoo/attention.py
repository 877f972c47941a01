"""Multi-head attention and the pre-norm transformer block.

Vaswani et al., "Attention is all you need", 2017, section 3.2; pre-norm as in GPT-2 and ViT.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name used everywhere
from torch import nn


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, num_heads: int, *, causal: bool = False
) -> torch.Tensor:
    """softmax(q k^T / sqrt(width of a head)) v for every head.

    ``q`` is [batch, time, width], ``k`` and ``v`` are [batch, source time, width]; the result has
    the shape of ``q``.
    """
    q, k, v = (split_heads(part, num_heads) for part in (q, k, v))
    return merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=causal))


def split_heads(x: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[batch, time, width] to [batch, heads, time, width of a head]."""
    batch, time, width = x.shape
    return x.view(batch, time, num_heads, width // num_heads).transpose(1, 2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """[batch, heads, time, width of a head] to [batch, time, width]."""
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):  # type: ignore[misc]
    """Multi-head attention with a projection each for queries, keys and values."""

    def __init__(self, width: int, num_heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Of ``x`` [batch, time, width] to ``source`` [batch, source time, width]."""
        q, k, v = self.query(x), self.key(source), self.value(source)
        result: torch.Tensor = self.out(attend(q, k, v, self.num_heads, causal=self.causal))
        return result


class SelfAttention(nn.Module):  # type: ignore[misc]
    """Multi-head self-attention with one projection for queries, keys and values."""

    def __init__(self, width: int, num_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, time, width] to the same shape."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        result: torch.Tensor = self.out(attend(q, k, v, self.num_heads, causal=self.causal))
        return result


class Block(nn.Module):  # type: ignore[misc]
    """Pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x)).

    Parameters
    ----------
    width, num_heads : int
        The width must be a multiple of the heads.
    causal : bool
        Whether a position sees no later ones.
    gelu : {"none", "tanh"}
        The form of GELU, by torch's name for the approximation.
    """

    def __init__(self, width: int, num_heads: int, *, causal: bool, gelu: str = "none") -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, num_heads, causal=causal)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(gelu), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, time, width] to the same shape."""
        x = x + self.attention(self.norm1(x))
        result: torch.Tensor = x + self.mlp(self.norm2(x))
        return result
