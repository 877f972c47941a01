"""What is to be trained, named as ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        ``reference`` has another form, or names nothing, or its module or function raises, or the
        function returns no Workload.
    """
    workload = call_function(reference)
    if not isinstance(workload, Workload):
        raise ValueError(f"{reference} returned {type(workload).__name__}, not a Workload")
    return workload


def call_function(reference: str, *arguments: Any) -> Any:
    """What the function that ``reference`` names returns for ``arguments``.

    Raises
    ------
    ValueError
        See :func:`load_function`; or the function raises, with where and what.
    """
    function = load_function(reference)
    with _told(reference):
        return function(*arguments)


def load_function(reference: str) -> Callable[..., Any]:
    """The function that ``reference`` names; its module is imported, once in a process.

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
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{place} has no function {name!r}")
    loaded: Callable[..., Any] = function
    return loaded


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Whatever the code of a user raises, also to end the program, as a ValueError in one line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        inner = [frame for frame in frames if not frame.filename.startswith("<")]
        where = f"{inner[-1].filename}, line {inner[-1].lineno}"
        # A syntax error says itself where it is; its frames are those of the import.
        at = "" if isinstance(error, SyntaxError) else f" at {where}"
        raise ValueError(f"{what} raised {type(error).__name__}{at}: {error}") from error


def _load_module(name: str) -> Any:
    try:
        with _told(f"the import of {name}"):
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
        with _told(f"the import of {path}"):
            spec.loader.exec_module(module)
    except ValueError:
        del sys.modules[name]
        raise
    return module
