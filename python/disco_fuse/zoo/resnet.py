"""ResNet50: He et al., "Deep residual learning", CVPR 2016; strides are in 3x3 convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name used everywhere
from torch import nn

from disco_fuse.workload import Workload
from disco_fuse.zoo.definition import define, images

# The outputs of a block are this many times wider than its 3x3 convolution.
EXPANSION = 4


class Bottleneck(nn.Module):  # type: ignore[misc]
    """relu(shortcut(x) + 1x1, 3x3 and 1x1 convolution of x), each with batch norm."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1, self.norm1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, channels, height, width] to [batch, 4 width, height / stride, width / stride]."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):  # type: ignore[misc]
    """A 7x7 convolution and a pool, four stages of bottlenecks, and a dense classifier.

    Parameters
    ----------
    depths : sequence of int
        Blocks of every stage; each stage but the first halves the image and doubles the width.
    width : int
        Of the first stage's 3x3 convolutions.
    classes : int
    """

    def __init__(
        self, depths: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        blocks, channels = [], width
        for stage, depth in enumerate(depths):
            for number in range(depth):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(Bottleneck(channels, width << stage, stride))
                channels = EXPANSION * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images [batch, 3, size, size] to logits [batch, classes]."""
        x = self.pool(F.relu(self.norm(self.conv(images))))
        x = F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1)
        logits: torch.Tensor = self.classifier(x)
        return logits


def resnet50() -> Workload:
    """Batch 32 of 224 px, 1000 classes: 25.6 M parameters."""
    batches = images(batch=32, size=224, classes=1000)
    return define("resnet50", ResNet, batches, F.cross_entropy)


def resnet50_small() -> Workload:
    """Batch 4 of 64 px: one block in each stage, a sixteenth of the width."""
    batches = images(batch=4, size=64, classes=10)
    return define("resnet50_small", lambda: ResNet((1, 1, 1, 1), 4, 10), batches, F.cross_entropy)
