"""A search problem as one file: the graph, and what FuseOps makes of the module it was read from.

Importing a model takes longer and more memory than a search. With this file a search runs in a
process of its own, with neither the model nor its module, and still knows every baseline.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco_fuse.errors import MissingInputError
from disco_fuse.files import replacing
from disco_fuse.fuse_ops import Emission
from disco_fuse.graph import OpGraph

_FORMAT = "disco_fuse.problem/1"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a search and its baselines need to know of a training step.

    Attributes
    ----------
    name : str
        Of the model.
    graph : OpGraph
    emission : Emission
        The kernels of FuseOps and the order in which TVM emits them.
    library_convolutions : bool
        Whether convolutions count as library calls, see :func:`disco_fuse.lower.lower`.
    """

    name: str
    graph: OpGraph
    emission: Emission
    library_convolutions: bool = False

    def save(self, path: str | Path) -> None:
        """Write JSON, compressed if the name ends in ``.gz``."""
        data = {
            "format": _FORMAT,
            "name": self.name,
            "library_convolutions": self.library_convolutions,
            "graph": json.loads(self.graph.to_json()),
            "groups": self.emission.groups,
            "order": self.emission.order,
        }
        text = json.dumps(data).encode()
        if Path(path).suffix == ".gz":
            text = gzip.compress(text, mtime=0)  # equal problems make equal files
        with replacing(Path(path)) as temporary:
            temporary.write_bytes(text)

    @classmethod
    def load(cls, path: str | Path) -> Problem:
        """Inverse of :meth:`save`.

        Raises
        ------
        MissingInputError
            There is no such file.
        ValueError
            Naming the file, if it holds no problem.
        """
        if not Path(path).is_file():
            raise MissingInputError(f"no file {path}")
        content = Path(path).read_bytes()
        try:
            if Path(path).suffix == ".gz":
                content = gzip.decompress(content)
            return _from_data(json.loads(content))
        except (OSError, EOFError, zlib.error, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path}: cannot be read: {error}") from error
        except OverflowError as error:
            raise ValueError(f"{path}: a number does not fit into 64 bits: {error}") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _from_data(data: Any) -> Problem:
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"not a problem file: its format is {found!r}, allowed is {_FORMAT!r}")
    try:
        graph = OpGraph.from_json(json.dumps(data["graph"]))
        emission = Emission(
            groups=tuple(tuple(int(op) for op in group) for group in data["groups"]),
            order=tuple(int(op) for op in data["order"]),
        )
        problem = Problem(
            name=str(data["name"]),
            graph=graph,
            emission=emission,
            library_convolutions=bool(data["library_convolutions"]),
        )
    except KeyError as error:
        raise ValueError(f"not a problem file: {error} is missing") from error
    except TypeError as error:
        raise ValueError(f"not a problem file: {error}") from error
    _check(problem)
    return problem


def _check(problem: Problem) -> None:
    num_ops = problem.graph.num_ops
    if sorted(problem.emission.order) != list(range(num_ops)):
        raise ValueError(f"'order' must hold each of the ops 0 to {num_ops - 1} once")
    grouped = [op for group in problem.emission.groups for op in group]
    if len(set(grouped)) != len(grouped) or not all(0 <= op < num_ops for op in grouped):
        raise ValueError(f"'groups' must hold ops from 0 to {num_ops - 1}, each at most once")
