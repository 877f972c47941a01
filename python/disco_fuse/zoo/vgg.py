"""VGG19: Simonyan and Zisserman, "Very deep convolutional networks", ICLR 2015, configuration E."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name used everywhere
from torch import nn

from disco_fuse.workload import Workload
from disco_fuse.zoo.definition import define, images

# Number of 3x3 convolutions and their width, for each stage; a 2x2 pool ends a stage.
STAGES = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512))


class VGG(nn.Module):  # type: ignore[misc]
    """Stages of 3x3 convolutions with ReLU, then a dense classifier.

    Parameters
    ----------
    stages : sequence of (int, int)
        Number and width of the convolutions of every stage.
    hidden : int
        Width of the two dense layers.
    size : int
        Height and width of the images, a multiple of 2 ** number of stages.
    classes : int
    """

    def __init__(
        self,
        stages: Sequence[tuple[int, int]] = STAGES,
        hidden: int = 4096,
        size: int = 224,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(*_stages(stages, lambda: nn.MaxPool2d(2)))
        side = size // 2 ** len(stages)
        self.classifier = nn.Sequential(
            nn.Linear(stages[-1][1] * side * side, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
        _initialise(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images [batch, 3, size, size] to logits [batch, classes]."""
        logits: torch.Tensor = self.classifier(self.features(images).flatten(1))
        return logits


class WideVGG(nn.Module):  # type: ignore[misc]
    """The VGG19 of DisCo's authors: 331 M parameters, 61% of them in one dense layer.

    Twelve convolutions in four stages with overlapping pools, a 7x7 and a 1x1 convolution of width
    4096, and a dense layer on all of their 7 x 7 positions (at 224 px). There is no activation
    between the layers, as in their public code.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_stages(STAGES[:4], lambda: nn.MaxPool2d(3, stride=2), activation=False),
            nn.Conv2d(512, 4096, 7),
            nn.Conv2d(4096, 4096, 1),
        )
        self.classifier = nn.Linear(7 * 7 * 4096, classes)
        _initialise(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images [batch, 3, 224, 224] to logits [batch, classes]."""
        logits: torch.Tensor = self.classifier(self.features(images).flatten(1))
        return logits


def _stages(
    stages: Sequence[tuple[int, int]], pool: Callable[[], nn.Module], *, activation: bool = True
) -> list[nn.Module]:
    layers: list[nn.Module] = []
    channels = 3
    for number, width in stages:
        for _ in range(number):
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            layers += [nn.ReLU()] if activation else []
            channels = width
        layers.append(pool())
    return layers


def _initialise(model: nn.Module) -> None:
    """He initialisation, without which the signal does not survive sixteen layers."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)


def vgg19() -> Workload:
    """Batch 48 of 224 px, 1000 classes: 143.7 M parameters."""
    batches = images(batch=48, size=224, classes=1000)
    return define("vgg19", VGG, batches, F.cross_entropy)


def vgg19_wide() -> Workload:
    """The authors' variant at the same batch: 331 M parameters."""
    batches = images(batch=48, size=224, classes=1000)
    return define("vgg19_wide", WideVGG, batches, F.cross_entropy)


def vgg19_small() -> Workload:
    """Batch 4 of 32 px: the same depth at a sixteenth of the width."""
    stages = [(number, width // 16) for number, width in STAGES]
    batches = images(batch=4, size=32, classes=10)
    return define("vgg19_small", lambda: VGG(stages, 64, 32, 10), batches, F.cross_entropy)
