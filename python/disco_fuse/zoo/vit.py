"""ViT-S/16: Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021, DeiT's small size."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name used everywhere
from torch import nn

from disco_fuse.workload import Workload
from disco_fuse.zoo.attention import Block
from disco_fuse.zoo.definition import define, images


class ViT(nn.Module):  # type: ignore[misc]
    """Patches and a class token with learned positions, pre-norm blocks, a dense classifier.

    Parameters
    ----------
    size, patch : int
        Height and width of images and patches in pixels; the size is a multiple of the patch.
    width, num_heads, num_layers, classes : int
    """

    def __init__(
        self,
        size: int = 224,
        patch: int = 16,
        width: int = 384,
        num_heads: int = 6,
        num_layers: int = 12,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.empty(1, 1, width))
        self.position = nn.Parameter(torch.empty((size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(
            *(Block(width, num_heads, causal=False) for _ in range(num_layers))
        )
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)
        nn.init.normal_(self.token, std=0.02)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images [batch, 3, size, size] to logits [batch, classes]."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        logits: torch.Tensor = self.classifier(self.norm(self.blocks(x))[:, 0])
        return logits


def vit() -> Workload:
    """12 layers of width 384, batch 32 of 224 px: 22.1 M parameters."""
    batches = images(batch=32, size=224, classes=1000)
    return define("vit", ViT, batches, F.cross_entropy)


def vit_small() -> Workload:
    """2 layers of width 32, batch 4 of 16 px in patches of 4 px."""
    batches = images(batch=4, size=16, classes=10)
    return define("vit_small", lambda: ViT(16, 4, 32, 4, 2, 10), batches, F.cross_entropy)
