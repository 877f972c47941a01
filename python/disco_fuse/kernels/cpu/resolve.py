"""Root stages of a nest with everything inlined, in the axes of that nest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tvm import tirx

from ..stages import Stage, shape_of
from .affine import Affine, Axis
from .scalar import Node, ScalarGraph


class NotPointwiseError(Exception):
    """A stage reads a row of its own nest at another position: it cannot share the loop."""


@dataclass(kw_only=True, eq=False)
class Root:
    """One stage that gets loops.

    Attributes
    ----------
    stage
        Where it comes from.
    node
        Its element (or the term to be combined), everything inlined.
    offset
        Flat position written in the output buffer.
    axes, reduce_axes
        Loop axes of extent > 1, outermost first.
    result
        The node that other roots of the nest see.
    """

    stage: Stage
    node: Node
    offset: Affine
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    result: Node

    @property
    def buffer(self) -> tirx.Buffer:
        """The output buffer."""
        assert self.stage.output is not None
        return self.stage.output

    @property
    def identity(self) -> tirx.Expr:
        """What a reduction starts from."""
        assert self.stage.identity is not None
        return self.stage.identity

    @property
    def dtype(self) -> str:
        """Scalar type of the output."""
        return str(self.buffer.ty.dtype)


@dataclass(kw_only=True, eq=False)
class Resolver:
    """Turns stages into roots.

    Attributes
    ----------
    graph
        Holds the nodes.
    inlined
        Stage that computes each buffer that is never stored.
    results
        Roots of the nest being built, by output buffer.
    """

    graph: ScalarGraph
    inlined: Mapping[tirx.Buffer, Stage]
    results: dict[tirx.Buffer, Root] = field(default_factory=dict)
    _memo: dict[object, Node] = field(default_factory=dict)

    def root(
        self, stage: Stage, axes: Sequence[Axis | None], reduce: Sequence[Axis | None]
    ) -> Root:
        """Resolve `stage` with its variables on the given axes (None: always 0).

        Raises
        ------
        NotPointwiseError
            When it reads a root of this nest at another position than the current one.
        """
        assert stage.output is not None
        env: dict[tirx.Var, Node] = {}
        names = (*stage.axes, *stage.reduce_axes)
        for (var, _), axis in zip(names, (*axes, *reduce), strict=True):
            value = Affine(0) if axis is None else Affine(0, ((axis, 1),))
            env[var] = self.graph.index(value, str(var.ty.dtype))
        node = self.graph.convert(stage.value, env, self._read, {})
        offset = Affine(0)
        stride = 1
        if shape_of(stage.output):
            for axis, extent in zip(reversed(axes), reversed(shape_of(stage.output)), strict=True):
                if axis is not None:
                    offset = offset + Affine(0, ((axis, stride),))
                stride *= extent
        dtype = str(stage.output.ty.dtype)
        return Root(
            stage=stage,
            node=node,
            offset=offset,
            axes=tuple(a for a in axes if a is not None),
            reduce_axes=tuple(a for a in reduce if a is not None),
            result=Node("result", dtype, (), stage.output, offset.axes, False),
        )

    def add(self, root: Root) -> None:
        """Let later roots of the nest read this one without going through memory."""
        self.results[root.buffer] = root
        self._memo = {}

    def _read(self, buffer: tirx.Buffer, indices: tuple[Node, ...]) -> Node:
        stage = self.inlined.get(buffer)
        if stage is not None:
            key = (buffer, tuple(id(i) for i in indices))
            if key not in self._memo:
                zero = self.graph.index(Affine(0))
                own = indices if shape_of(buffer) else (zero,) * len(stage.axes)
                env = {var: index for (var, _), index in zip(stage.axes, own, strict=True)}
                self._memo[key] = self.graph.convert(stage.value, env, self._read, {})
            return self._memo[key]
        load = self.graph.load(buffer, indices)
        root = self.results.get(buffer)
        if root is None:
            return load
        if load.args or load.payload[1].key != root.offset.key:
            raise NotPointwiseError(f"{buffer.name} is read at another position than it is written")
        return root.result


def split_axes(shape: Sequence[int], names: str) -> tuple[Axis | None, ...]:
    """One axis per extent > 1, None for the others."""
    return tuple(
        Axis(f"{names}{position}", extent) if extent > 1 else None
        for position, extent in enumerate(shape)
    )


def same_axes(stage: Stage, root: Root) -> list[Axis | None]:
    """The axes of `root` for the variables of a stage that follows it."""
    remaining = list(root.axes)
    return [remaining.pop(0) if extent > 1 else None for _, extent in stage.axes]
