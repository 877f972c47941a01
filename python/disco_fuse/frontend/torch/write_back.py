"""Trained values back into the torch module they came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from disco_fuse.frontend.torch.layout import tvm_dtype


def write_back(model: torch.nn.Module, values: Mapping[str, npt.NDArray[Any]]) -> tuple[str, ...]:
    """Overwrite parameters and buffers of a module by trained ones, in place.

    Parameters
    ----------
    model : torch.nn.Module
        Of the structure that was imported. Tied weights stay tied: one value goes to all their
        names.
    values : mapping
        State of the step by name, as :meth:`disco_fuse.runner.StepRunner.values` gives it; what
        belongs to the optimizer is passed over.

    Returns
    -------
    tuple of str
        Tensors of the module that the step does not have, since its loss does not read them.

    Raises
    ------
    ValueError
        If a value has another shape or dtype than its tensor, or none of them is in the module;
        the module is unchanged then.
    """
    # One tensor may have several names: the step has the first, which one that is may differ.
    names: dict[int, list[str]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for kind in (model.named_parameters, model.named_buffers):
        for name, tensor in kind(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor
    found = {key: next((n for n in names[key] if n in values), None) for key in names}
    if not any(found.values()):
        raise ValueError(
            f"the values {sorted(values)[:3]} ... are not of this module, which has "
            f"{[own[0] for own in names.values()][:3]} ..."
        )
    new = {key: _checked(name, tensors[key], values[name]) for key, name in found.items() if name}
    with torch.no_grad():
        for key, value in new.items():
            tensors[key].copy_(value)
    return tuple(names[key][0] for key, name in found.items() if name is None)


def _checked(name: str, tensor: torch.Tensor, value: npt.NDArray[Any]) -> torch.Tensor:
    if value.shape != tuple(tensor.shape) or str(value.dtype) != tvm_dtype(name, tensor):
        raise ValueError(
            f"{name!r} is {tensor.dtype}{list(tensor.shape)} in the module, the value is "
            f"{value.dtype}{list(value.shape)}"
        )
    whole = np.array(value, order="C")
    if tensor.dtype is torch.bfloat16:  # numpy's is ml_dtypes', which torch does not take
        return torch.from_numpy(whole.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(whole)
