"""Small training modules written by hand, and ways to run them, for tests and examples."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from disco_fuse.graph import OpGraph, OpKind
from disco_fuse.strategy import Edit, Strategy, check, replay


def mlp_step(
    *,
    batch: int = 8,
    widths: Sequence[int] = (6, 16, 4),
    learning_rate: float = 0.1,
    momentum: float = 0.9,
    gradients: bool = True,
    donated: bool = True,
) -> tvm.IRModule:
    """One step of SGD with momentum for a multilayer perceptron with tanh and squared loss.

    Parameters
    ----------
    batch : int
    widths : sequence of int
        Width of the input and of every layer's output.
    gradients, donated : bool
        Whether main gets the attribute that names its gradients, or its donated buffers.

    Returns
    -------
    tvm.IRModule
        ``main(x, y, w0, w1, ..., v0, v1, ...) -> (loss, w0', ..., v0', ...)``, float32.
    """
    op = relax.op
    num_layers = len(widths) - 1
    shapes = [(widths[i], widths[i + 1]) for i in range(num_layers)]
    x = _var("x", (batch, widths[0]))
    y = _var("y", (batch, widths[-1]))
    weights = [_var(f"w{i}", shape) for i, shape in enumerate(shapes)]
    velocities = [_var(f"v{i}", shape) for i, shape in enumerate(shapes)]
    attrs: dict[str, Any] = {"num_input": 2}
    if gradients:
        attrs["disco_fuse.gradients"] = [f"g{i}" for i in range(num_layers)]
    if donated:
        pairs = [(2 + i, 1 + i) for i in range(2 * num_layers)]
        attrs["disco_fuse.donated"] = [index for pair in pairs for index in pair]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y, *weights, *velocities], attrs=attrs):
        with builder.dataflow():
            emit = builder.emit
            layers = [x]
            for weight in weights:
                layers.append(emit(op.tanh(emit(op.matmul(layers[-1], weight)))))
            error = emit(op.subtract(layers[-1], y))
            loss = builder.emit_output(op.mean(op.multiply(error, error)))
            scale = relax.const(2.0 / (batch * widths[-1]), "float32")
            delta = emit(op.multiply(error, scale))
            outputs: list[relax.Expr] = []
            new_velocities: list[relax.Expr] = []
            for i in reversed(range(num_layers)):
                out = layers[i + 1]
                one = relax.const(1.0, "float32")
                slope = emit(op.subtract(one, op.multiply(out, out)))
                delta = emit(op.multiply(delta, slope))
                gradient = emit(op.matmul(op.permute_dims(layers[i]), delta), f"g{i}")
                if i > 0:
                    delta = emit(op.matmul(delta, op.permute_dims(weights[i])))
                kept = op.multiply(velocities[i], relax.const(momentum, "float32"))
                velocity = builder.emit_output(op.add(kept, gradient))
                change = op.multiply(velocity, relax.const(learning_rate, "float32"))
                outputs.insert(0, builder.emit_output(op.subtract(weights[i], change)))
                new_velocities.insert(0, velocity)
        builder.emit_func_output(relax.Tuple([loss, *outputs, *new_velocities]))
    return builder.get()


def mlp_arguments(mod: tvm.IRModule, seed: int = 0) -> list[NDArray[np.float32]]:
    """Random arguments for the main of ``mod``, velocities included."""
    rng = np.random.default_rng(seed)
    shapes = [tuple(int(d) for d in p.ty.shape.values) for p in mod["main"].params]
    return [rng.standard_normal(shape).astype(np.float32) * 0.5 for shape in shapes]


def run_functional(mod: tvm.IRModule, arguments: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The outputs of a relax module as TVM's own pipeline compiles it, on a copy of the inputs."""
    executable = tvm.compile(mod, target="llvm")
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return [out.numpy() for out in main(*[tvm.runtime.tensor(a.copy()) for a in arguments])]


def _var(name: str, shape: tuple[int, ...]) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, "float32"))


def random_strategy(
    graph: OpGraph, seed: int, num_edits: int | None = None, start: Strategy | None = None
) -> Strategy:
    """A strategy that random legal edits of the paper's kinds lead to.

    Parameters
    ----------
    graph : OpGraph
    seed : int
        Same seed, same strategy.
    num_edits : int, optional
        Edits at most, by default one for every second op; ten times as many are tried.
    start : Strategy, optional
        What is edited; by default the unfused one.
    """
    generator = random.Random(seed)
    most = max(1, graph.num_ops // 2) if num_edits is None else num_edits
    pairs = [(edge.producer, edge.consumer) for edge in graph.edges if not edge.order_only]
    buckets = [i for i, op in enumerate(graph.ops) if op.kind == OpKind.ALLREDUCE]
    kinds = ["fuse", "fuse", "fuse-duplicate"] if pairs else []
    kinds += ["merge-buckets"] if len(buckets) > 1 else []
    strategy, done = start or Strategy.unfused(graph), 0
    for _ in range(10 * most if kinds else 0):
        kind = generator.choice(kinds)
        ends = generator.sample(buckets, 2) if kind == "merge-buckets" else generator.choice(pairs)
        edit = Edit(kind=kind, producer=min(ends), consumer=max(ends))
        if check(graph, strategy, edit) == "":
            strategy = replay(graph, [edit], strategy)
            done += 1
        if done == most:
            break
    return strategy


def group_module(build: Callable[..., Any], types: Sequence[relax.TensorType]) -> tvm.IRModule:
    """A module whose main calls one fusion group, neither legalised nor fused yet.

    Parameters
    ----------
    build : callable
        ``build(emit, *variables)`` emits Relax ops and returns the group's output, or a list.
    types : sequence of TensorType
        Of the variables.
    """
    builder = relax.BlockBuilder()
    inner = [relax.Var(f"p{k}", ty) for k, ty in enumerate(types)]
    with builder.function("group", inner, attrs={"Primitive": True}, private=True):
        with builder.dataflow():
            values = build(builder.emit, *inner)
            values = values if isinstance(values, list) else [values]
            outputs = [builder.emit_output(value) for value in values]
        name = builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    outer = [relax.Var(f"x{k}", ty) for k, ty in enumerate(types)]
    with builder.function("main", outer):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(name, outer))
        builder.emit_func_output(result)
    return builder.get()
