"""The PyTorch front door (needs torch, which nothing outside this folder and the zoo imports)."""

from __future__ import annotations

from disco_fuse.frontend.torch.step import training_step

__all__ = ["training_step"]
