"""Four models whose step takes 0.1 to a few seconds on one core: what ``bench-kernels`` runs.

Widths and batches of BERT, ResNet18 and GPT-2 are those the project set itself; what it left open
is stated at each function.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name used everywhere
from torch import nn

from disco_fuse.workload import Workload
from disco_fuse.zoo.bert import Bert, masked_tokens
from disco_fuse.zoo.definition import define, images, next_tokens, token_loss
from disco_fuse.zoo.gpt2 import GPT2
from disco_fuse.zoo.rnnlm import RNNLM


class BasicBlock(nn.Module):  # type: ignore[misc]
    """relu(shortcut(x) + two 3x3 convolutions of x), each with batch norm (He et al., figure 5)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, channels, height, width] to [batch, width, height / stride, width / stride]."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):  # type: ignore[misc]
    """Four stages of two basic blocks behind a 3x3 convolution, as is usual for 32x32 images.

    Parameters
    ----------
    width : int
        Channels of the first stage; each later stage halves the image and doubles them.
    classes : int
    """

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks, channels = [], width
        for stage in range(4):
            for number in range(2):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(BasicBlock(channels, width << stage, stride))
                channels = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images [batch, 3, size, size] to logits [batch, classes]."""
        x = self.blocks(F.relu(self.norm(self.conv(images))))
        logits: torch.Tensor = self.classifier(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


def bert() -> Workload:
    """6 layers of width 512, 8 heads, batch 8 of 128 tokens; the vocabulary is BERT's."""
    batches = masked_tokens(batch=8, time=128, vocab=30_522)
    return define("bert", lambda: Bert(30_522, 512, 8, 6, 128), batches, token_loss)


def resnet18() -> Workload:
    """Batch 32 of 32 px, 10 classes."""
    return define("resnet18", ResNet18, images(batch=32, size=32, classes=10), F.cross_entropy)


def gpt2() -> Workload:
    """6 layers of width 384, 6 heads, batch 8 of 128 bytes: a vocabulary of 256."""
    batches = next_tokens(batch=8, time=128, vocab=256)
    return define("gpt2", lambda: GPT2(256, 384, 6, 6, 128), batches, token_loss)


def rnnlm() -> Workload:
    """2 layers of width 256, batch 32 of 20 tokens, vocabulary 8,192."""
    batches = next_tokens(batch=32, time=20, vocab=8_192)
    return define("rnnlm", lambda: RNNLM(8_192, 256), batches, token_loss)
