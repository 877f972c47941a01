"""What is to be trained, named as ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from disco_fuse.frontend.optimizer import Optimizer

if TYPE_CHECKING:
    import torch

Batch = tuple[NDArray[Any], ...]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, its loss and optimizer, and where its batches come from.

    Attributes
    ----------
    name : str
    model : torch.nn.Module
        In training mode, with the weights training starts from: the function that makes a workload
        must make the same ones every time it is called.
    loss : callable
        ``loss(model(*batch[:-1]), batch[-1])`` is the scalar to minimise.
    optimizer : Optimizer
    batches : callable
        ``batches(rank, world_size)`` yields the batches of one rank for ever.
    """

    name: str
    model: torch.nn.Module
    loss: Callable[..., torch.Tensor]
    optimizer: Optimizer
    batches: Callable[[int, int], Iterator[Batch]]

    def example_batch(self) -> Batch:
        """The first batch of rank 0; every batch has its shapes and dtypes."""
        return tuple(np.asarray(part) for part in next(self.batches(0, 1)))

    def example_tensors(self) -> tuple[torch.Tensor, ...]:
        """:meth:`example_batch` as torch tensors, the form the PyTorch front door takes."""
        import torch

        return tuple(torch.from_numpy(part) for part in self.example_batch())


def load_workload(reference: str) -> Workload:
    """Call the function that ``reference`` names.

    Raises
    ------
    ValueError
        ``reference`` has another form, or names nothing, or its function returns no Workload.
    """
    workload = load_function(reference)()
    if not isinstance(workload, Workload):
        raise ValueError(f"{reference} returned {type(workload).__name__}, not a Workload")
    return workload


def load_function(reference: str) -> Callable[..., Any]:
    """The function that ``reference`` names; its module is imported.

    Raises
    ------
    ValueError
        ``reference`` has another form, or names nothing.
    """
    place, separator, name = reference.rpartition(":")
    if not separator or not place or not name:
        raise ValueError(
            f"{reference!r} names no function; allowed: 'package.module:function', "
            "'file.py:function'"
        )
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{place} has no function {name!r}")
    loaded: Callable[..., Any] = function
    return loaded


def _load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"no module {name!r}: {error}") from error


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(f"disco_fuse_workload_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the file look themselves up here
    spec.loader.exec_module(module)
    return module
