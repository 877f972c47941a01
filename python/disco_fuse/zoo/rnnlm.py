"""A language model of LSTM layers: Zaremba et al., "RNN regularization", 2014, without dropout.

The cell is written out and unrolled, as every exporter of torch does with nn.LSTM; the products
with the layer's input are one matrix product for all time steps.
"""

from __future__ import annotations

import torch
from torch import nn

from disco_fuse.workload import Workload
from disco_fuse.zoo.definition import define, next_tokens, token_loss


class LSTM(nn.Module):  # type: ignore[misc]
    """Hochreiter and Schmidhuber's layer with forget gate.

    i, f, g, o = W x[t] + U h + b
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(c)                      (h and c start at 0)
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, 4 * width)
        self.recurrent = nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, time, width] to all hidden states, of the same shape."""
        h = c = x.new_zeros(x.shape[0], x.shape[2])
        states = []
        for projected in self.input(x).unbind(1):
            i, f, g, o = (projected + self.recurrent(h)).chunk(4, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states, dim=1)


class RNNLM(nn.Module):  # type: ignore[misc]
    """Embedding, LSTM layers, and a dense layer to the logits.

    Parameters
    ----------
    vocab, width, num_layers : int
    """

    def __init__(self, vocab: int = 32_000, width: int = 512, num_layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.layers = nn.Sequential(*(LSTM(width) for _ in range(num_layers)))
        self.head = nn.Linear(width, vocab)
        nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [batch, time] to logits [batch, time, vocab]."""
        logits: torch.Tensor = self.head(self.layers(self.embedding(tokens)))
        return logits


def rnnlm() -> Workload:
    """2 layers of width 512, batch 128 of 128 tokens, vocabulary 32,000: 37.0 M parameters."""
    batches = next_tokens(batch=128, time=128, vocab=32_000)
    return define("rnnlm", RNNLM, batches, token_loss)


def rnnlm_small() -> Workload:
    """2 layers of width 16, batch 4 of 6 tokens, vocabulary 64."""
    batches = next_tokens(batch=4, time=6, vocab=64)
    return define("rnnlm_small", lambda: RNNLM(64, 16), batches, token_loss)
