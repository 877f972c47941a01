"""Rounding against eager PyTorch."""

from __future__ import annotations

import torch
from converter_check import check


def test_floor() -> None:
    x = torch.linspace(-2.0, 2.0, 33).double()
    check(lambda a: (torch.floor(a), a * torch.floor(a * 3.0)), [x])
