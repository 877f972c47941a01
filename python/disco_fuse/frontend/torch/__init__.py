"""The PyTorch front door (needs torch, which nothing outside this folder and the zoo imports)."""

from __future__ import annotations

from disco_fuse.frontend.torch.step import training_step
from disco_fuse.frontend.torch.torch_optimizer import from_torch_optimizer, to_torch_optimizer
from disco_fuse.frontend.torch.write_back import write_back

__all__ = ["from_torch_optimizer", "to_torch_optimizer", "training_step", "write_back"]
