"""A training graph with more layers than the model it was extracted from.

The ops of a model of equal layers repeat: forward once, backward once in reverse, updates once.

    ops       x [f0 f1 f2 f3] y [b3 b2 b1 b0] z [u0 u1 u2 u3]       layers, read off the repetition
    longer    x [f0 f1 f2 f2 f2 f3] y [b3 b2 b2 b2 b1 b0] z [...]   layer 2 stands for the new ones

An edge from one layer to another spans the same number of layers wherever it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from disco_fuse.graph import Edge, ExternalRead, Op, OpGraph

MIN_LAYERS = 4
_MAX_PERIOD = 400  # ops of one layer in one pass; GPT-2 has 87 in its backward pass

# What tells layers from each other in no way: the op without its name.
_Signature = tuple[object, ...]


@dataclass(frozen=True)
class _Section:
    """``num_layers`` times ``period`` ops from ``start`` on."""

    start: int
    period: int
    num_layers: int
    mirrored: bool = False

    @property
    def end(self) -> int:
        return self.start + self.period * self.num_layers

    def __contains__(self, op: int) -> bool:
        return self.start <= op < self.end

    def depth(self, op: int) -> int:
        layer = (op - self.start) // self.period
        return self.num_layers - 1 - layer if self.mirrored else layer


def num_layers(graph: OpGraph) -> int:
    """How often the layer of ``graph`` repeats.

    Raises
    ------
    ValueError
        If nothing repeats, or not everything equally often.
    """
    return _sections(graph)[0].num_layers


def add_layers(graph: OpGraph, extra: int) -> OpGraph:
    """``graph`` with ``extra`` more layers, all like the one in the middle.

    Raises
    ------
    ValueError
        As :func:`num_layers`, or if ``extra`` is negative.
    """
    if extra < 0:
        raise ValueError(f"extra must be >= 0, got {extra}")
    return _Longer(graph, _sections(graph), extra).build()


def repeat_to(graph: OpGraph, num_ops: int) -> OpGraph:
    """``graph`` with as many more layers as bring it nearest to ``num_ops`` ops."""
    per_layer = sum(section.period for section in _sections(graph))
    return add_layers(graph, max(0, round((num_ops - graph.num_ops) / per_layer)))


def _sections(graph: OpGraph) -> list[_Section]:
    signatures = [_signature(op) for op in graph.ops]
    runs = sorted(_runs(signatures), key=lambda run: (-(run[0] + run[2]), run[2]))
    chosen: list[_Section] = []
    for length, start, period in runs:
        section = _Section(start, period, (length + period) // period)
        apart = all(section.end <= s.start or s.end <= section.start for s in chosen)
        if apart and section.num_layers >= MIN_LAYERS:
            chosen.append(section)
    if not chosen:
        raise ValueError(f"no layer repeats at least {MIN_LAYERS} times")
    counts = Counter(section.num_layers for section in chosen)
    (layers, times), *_ = counts.most_common(1)
    if times < len(chosen):
        raise ValueError(f"its passes repeat {sorted(counts)} times, not equally often")
    chosen.sort(key=lambda section: section.start)
    return [replace(s, mirrored=_runs_back(graph, chosen[0], s, layers)) for s in chosen]


def _signature(op: Op) -> _Signature:
    return tuple(
        getattr(op, name)
        for name in ("kind", "pattern", "signature", "num_elements", "bytes_read", "bytes_written")
    )


def _runs(signatures: list[_Signature]) -> Iterator[tuple[int, int, int]]:
    """(length, start, period) of longest runs of ops equal to the one a period later."""
    for period in range(1, min(_MAX_PERIOD, len(signatures) // MIN_LAYERS) + 1):
        length = 0
        for i in range(len(signatures) - period + 1):
            same = i + period < len(signatures) and signatures[i] == signatures[i + period]
            if not same and length >= (MIN_LAYERS - 1) * period:
                yield length, i - length, period
            length = length + 1 if same else 0


def _runs_back(graph: OpGraph, first: _Section, section: _Section, layers: int) -> bool:
    """Whether a later pass goes through the layers of the first one in reverse."""
    forth = back = 0
    for edge in graph.edges:
        if (
            first.start <= edge.producer < first.end
            and section.start <= edge.consumer < section.end
        ):
            apart = section.depth(edge.consumer) - first.depth(edge.producer)
            forth += abs(apart) <= 1
            mirrored = layers - 1 - section.depth(edge.consumer)
            back += abs(mirrored - first.depth(edge.producer)) <= 1
    if forth or back:
        return back > forth
    # No data from the first pass: it follows whatever pass it does read, which is not needed here.
    return False


class _Longer:
    """The longer graph while it is made; places are (op of the old graph, depth of its layer)."""

    def __init__(self, graph: OpGraph, sections: list[_Section], extra: int) -> None:
        self.graph = graph
        self.extra = extra
        self.middle = sections[0].num_layers // 2
        self.section_of: dict[int, _Section] = {
            op: section for section in sections for op in range(section.start, section.end)
        }
        self.copies: dict[int, list[int]] = defaultdict(list)  # old op -> new ones
        self.at: dict[tuple[int, int, int], int] = {}  # (section, offset, depth) -> new op
        self.origin: list[tuple[int, int]] = []  # new op -> (old op, depth; -1 outside)

    def build(self) -> OpGraph:
        self._number()
        incoming = defaultdict(list)
        for edge in self.graph.edges:
            incoming[edge.consumer].append(edge)
        edges = [
            replace(edge, producer=producer, consumer=new)
            for new, (old, depth) in enumerate(self.origin)
            for edge in incoming[old]
            for producer in self._producers(edge, depth)
        ]
        ops = [self.graph.ops[old] for old, _ in self.origin]
        return OpGraph.create(ops, edges, self._reads())

    def _number(self) -> None:
        """Old ops in their order, the middle layer of each pass ``extra`` times more."""
        op = 0
        while op < self.graph.num_ops:
            section = self.section_of.get(op)
            if section is None:
                self._add(op, -1)
                op += 1
                continue
            layer = range(op, op + section.period)
            old = section.depth(op)
            depths = [old if old <= self.middle else old + self.extra]
            if old == self.middle:
                depths = list(range(self.middle, self.middle + self.extra + 1))
            for depth in reversed(depths) if section.mirrored else depths:
                for member in layer:
                    self._add(member, depth)
            op += section.period

    def _add(self, old: int, depth: int) -> None:
        self.copies[old].append(len(self.origin))
        section = self.section_of.get(old)
        if section is not None:
            self.at[section.start, (old - section.start) % section.period, depth] = len(self.origin)
        self.origin.append((old, depth))

    def _producers(self, edge: Edge, depth: int) -> list[int]:
        """Where the new consumer in the layer of ``depth`` reads; nowhere beyond either end."""
        section = self.section_of.get(edge.producer)
        if section is None or depth < 0:
            return self.copies[edge.producer]
        span = section.depth(edge.producer) - self.section_of[edge.consumer].depth(edge.consumer)
        offset = (edge.producer - section.start) % section.period
        found = self.at.get((section.start, offset, depth + span))
        return [] if found is None else [found]

    def _reads(self) -> list[ExternalRead]:
        """Every new layer has values of its own where the middle one has."""
        depths = defaultdict(set)
        for read in self.graph.external_reads:
            section = self.section_of.get(read.op)
            depths[read.value].add(-1 if section is None else section.depth(read.op))
        next_value = 1 + max((read.value for read in self.graph.external_reads), default=-1)
        own: dict[tuple[int, int], int] = {}
        reads = []
        for read in self.graph.external_reads:
            for new in self.copies[read.op]:
                depth, value = self.origin[new][1], read.value
                if depths[value] == {self.middle} and depth > self.middle:
                    if (value, depth) not in own:
                        own[value, depth] = next_value
                        next_value += 1
                    value = own[value, depth]
                reads.append(replace(read, op=new, value=value))
        return reads
