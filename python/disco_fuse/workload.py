"""What is to be trained, named as ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from disco_fuse.errors import WorkloadError
from disco_fuse.frontend.optimizer import Optimizer
from disco_fuse.user_code import user_code

if TYPE_CHECKING:
    import torch

Batch = tuple[NDArray[Any], ...]
_PARTS = ("model", "example_inputs", "loss", "optimizer")


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
        """The first batch of rank 0; every batch has its shapes and dtypes.

        Raises
        ------
        WorkloadError
            There is none, or the code of the batches raises.
        """
        with user_code(f"batches(0, 1) of workload {self.name!r}"):
            batch = next(self.batches(0, 1), None)
            if batch is not None:
                return tuple(np.asarray(part) for part in batch)
        raise WorkloadError(f"batches(0, 1) of workload {self.name!r} yields nothing")

    def example_tensors(self) -> tuple[torch.Tensor, ...]:
        """:meth:`example_batch` as torch tensors, the form the PyTorch front door takes."""
        import torch

        batch = self.example_batch()
        with user_code(f"taking the batch of workload {self.name!r} as tensors"):
            return tuple(torch.from_numpy(part) for part in batch)


def load_workload(reference: str) -> Workload:
    """Call the function that ``reference`` names.

    It returns a :class:`Workload`; or a tuple ``(model, example inputs, loss, optimizer)``, or a
    dict of ``model``, ``example_inputs``, ``loss`` and ``optimizer``: the example inputs (tensors
    or arrays) end with the target of the loss, and are then the batch of every step on every rank;
    the optimizer is one of ours, or one of torch's that has a counterpart here.

    Raises
    ------
    ValueError
        ``reference`` has another form, or names nothing, or its module or function raises, or the
        function returns something else.
    """
    returned = call_function(reference)
    if isinstance(returned, Workload):
        return returned
    if isinstance(returned, Mapping) and returned.keys() == set(_PARTS):
        return _from_parts(reference, *(returned[part] for part in _PARTS))
    if isinstance(returned, tuple | list) and len(returned) == len(_PARTS):
        return _from_parts(reference, *returned)
    size = f" of {len(returned)}" if isinstance(returned, tuple | list | Mapping) else ""
    raise WorkloadError(
        f"{reference} returned {type(returned).__name__}{size}, not a Workload; allowed: a "
        f"disco_fuse.workload.Workload, a tuple ({', '.join(_PARTS)}), or a dict of these"
    )


def _from_parts(
    reference: str, model: Any, example_inputs: Any, loss: Any, optimizer: Any
) -> Workload:
    """The workload whose every batch is ``example_inputs``."""
    if not isinstance(example_inputs, tuple | list) or len(example_inputs) < 2:
        raise WorkloadError(
            f"{reference}: example_inputs must be a tuple of the model's inputs and the target, "
            f"got {type(example_inputs).__name__}"
        )
    if not callable(loss):
        raise WorkloadError(
            f"{reference}: loss must be a function (output, target) -> scalar, got {loss!r}"
        )
    if hasattr(optimizer, "param_groups"):
        from disco_fuse.frontend.torch import from_torch_optimizer

        try:
            optimizer = from_torch_optimizer(optimizer)
        except TypeError as error:
            raise WorkloadError(f"{reference}: {error}") from error
    with user_code(f"taking the example inputs of {reference}"):
        parts = (x.detach().cpu() if hasattr(x, "detach") else x for x in example_inputs)
        batch = tuple(np.asarray(part) for part in parts)
    return Workload(
        name=reference.rpartition(":")[2],
        model=model,
        loss=loss,
        optimizer=optimizer,
        batches=lambda _rank, _world_size: repeat(batch),
    )


def call_function(reference: str, *arguments: Any) -> Any:
    """What the function that ``reference`` names returns for ``arguments``.

    Raises
    ------
    ValueError
        See :func:`load_function`; or the function raises, with where and what.
    """
    function = load_function(reference)
    with user_code(reference):
        return function(*arguments)


def load_function(reference: str) -> Callable[..., Any]:
    """The function that ``reference`` names; its module is imported, once in a process.

    A file may import its neighbours, and a module may be one in the current folder.

    Raises
    ------
    ValueError
        ``reference`` has another form, or names nothing, or its module raises, with where and what.
    """
    place, separator, name = reference.rpartition(":")
    if not separator or not place or not name:
        raise ValueError(
            f"{reference!r} names no function; allowed: 'package.module:function', "
            "'file.py:function'"
        )
    path = Path(place)
    folder = path.resolve().parent if place.endswith(".py") else Path.cwd()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that what is there hides no installed package
    module = _load_file(path) if place.endswith(".py") else _load_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{place} has no function {name!r}")
    loaded: Callable[..., Any] = function
    return loaded


def _load_module(name: str) -> Any:
    try:
        with user_code(f"the import of {name}"):
            return importlib.import_module(name)
    except ValueError as error:
        missing = error.__cause__
        # A module that is there may need one that is not, which is then what has to be said.
        if isinstance(missing, ModuleNotFoundError) and f"{name}.".startswith(f"{missing.name}."):
            raise ValueError(f"no module {name!r}: {missing}") from missing
        raise


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"no file {path}")
    name = f"disco_fuse_workload_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path.resolve()):
        return known
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses of the file look themselves up here
    try:
        with user_code(f"the import of {path}"):
            spec.loader.exec_module(module)
    except ValueError:
        del sys.modules[name]
        raise
    return module
