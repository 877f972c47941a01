"""The models that are measured on slow links: a step of theirs takes a CPU core a tenth of a second
up to a second, and their gradients take a link of 1 Gbit/s about as long.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F  # noqa: N812 - the name used everywhere

from disco_fuse.workload import Batch, Workload
from disco_fuse.zoo.bert import Bert, masked_tokens
from disco_fuse.zoo.byte_gpt import ByteGPT, next_byte_loss, text_batches
from disco_fuse.zoo.definition import define, images, next_tokens, token_loss
from disco_fuse.zoo.medium import ResNet18
from disco_fuse.zoo.rnnlm import RNNLM
from disco_fuse.zoo.vgg import VGG


def bert_mini() -> Workload:
    """BERT of 4 layers of width 256, vocabulary 8192, batch 8 of 64 tokens: 5.3 M parameters."""
    batches = masked_tokens(batch=8, time=64, vocab=8192)
    return define("bert_mini", lambda: Bert(8192, 256, 4, 4, 64), batches, token_loss)


def resnet18_cifar() -> Workload:
    """Batch 8 of 32 px, 10 classes: 11.2 M parameters."""
    batches = images(batch=8, size=32, classes=10)
    return define("resnet18_cifar", ResNet18, batches, F.cross_entropy)


def byte_gpt() -> Workload:
    """The quickstart's model: 4 layers of width 256, batch 8 of 128 bytes: 3.3 M parameters."""

    def batches(rank: int, world_size: int) -> Iterator[Batch]:
        yield from text_batches(rank=rank, world_size=world_size, batch=8, context=128)

    return define(
        "byte_gpt",
        lambda: ByteGPT(num_layers=4, width=256, num_heads=4, context=128),
        batches,
        next_byte_loss,
    )


def rnnlm_small() -> Workload:
    """2 LSTM layers of width 256, vocabulary 4096, batch 16 of 16 tokens: 3.2 M parameters."""
    batches = next_tokens(batch=16, time=16, vocab=4096)
    return define("rnnlm_small", lambda: RNNLM(4096, 256), batches, token_loss)


def vgg_dense() -> Workload:
    """Six convolutions and dense layers of width 1024, batch 16 of 32 px: 3.4 M parameters."""
    stages = ((2, 32), (2, 64), (2, 128))
    batches = images(batch=16, size=32, classes=10)
    return define("vgg_dense", lambda: VGG(stages, 1024, 32, 10), batches, F.cross_entropy)
