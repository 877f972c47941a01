"""GPT-2 small: Radford et al., "Language models are unsupervised multitask learners", 2019."""

from __future__ import annotations

import torch
from torch import nn

from disco_fuse.workload import Workload
from disco_fuse.zoo.attention import Block
from disco_fuse.zoo.definition import define, next_tokens, token_loss


class GPT2(nn.Module):  # type: ignore[misc]
    """Token and learned position embeddings, causal pre-norm blocks, a tied head.

    Parameters
    ----------
    vocab, width, num_heads, num_layers : int
    context : int
        Longest sequence.
    gelu : {"tanh", "none"}
        Form of GELU; OpenAI's is the tanh approximation.
    """

    def __init__(
        self,
        vocab: int = 50_257,
        width: int = 768,
        num_heads: int = 12,
        num_layers: int = 12,
        context: int = 1024,
        gelu: str = "tanh",
    ) -> None:
        super().__init__()
        if width % num_heads != 0:
            raise ValueError(f"width {width} must be a multiple of num_heads {num_heads}")
        self.embedding = nn.Embedding(vocab, width)
        self.position = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.Sequential(
            *(Block(width, num_heads, causal=True, gelu=gelu) for _ in range(num_layers))
        )
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


def gpt2() -> Workload:
    """12 layers of width 768, batch 16 of 128 tokens: 124.4 M parameters."""
    batches = next_tokens(batch=16, time=128, vocab=50_257)
    return define("gpt2", GPT2, batches, token_loss)


def gpt2_small() -> Workload:
    """2 layers of width 32, batch 4 of 16 tokens, vocabulary 64."""
    batches = next_tokens(batch=4, time=16, vocab=64)
    return define("gpt2_small", lambda: GPT2(64, 32, 4, 2, 32), batches, token_loss)
