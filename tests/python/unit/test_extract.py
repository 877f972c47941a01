"""Reading a lowered module into an OpGraph."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

from disco_fuse.extract import extract
from disco_fuse.graph import OpKind
from disco_fuse.insert import InsertAllReduce
from disco_fuse.lower import lower
from disco_fuse.testing import mlp_step

TARGET = tvm.target.Target("llvm")


def _extract(mod: tvm.IRModule):
    return extract(lower(InsertAllReduce()(mod), TARGET, library=False))


def _named(graph, suffix: str) -> list[int]:
    return [i for i, op in enumerate(graph.ops) if op.name.endswith(":" + suffix)]


def test_mlp_step() -> None:
    extraction = _extract(mlp_step(widths=(6, 16, 4)))
    graph = extraction.graph
    allreduces = [op for op in graph.ops if op.kind == OpKind.ALLREDUCE]
    assert [op.bytes_written for op in allreduces] == [16 * 4 * 4, 6 * 16 * 4]
    assert {op.merge_class for op in allreduces} == {"avg/float32/world"}
    assert len(extraction.bindings) == graph.num_ops
    assert sum(op.is_output for op in graph.ops) == 5
    # equal kernels have equal signatures, others differ
    tanh = [graph.ops[i].signature for i in _named(graph, "tir_tanh")]
    assert len(tanh) == 1
    assert len({op.signature for op in graph.ops}) > 10


def test_readers_of_a_donated_parameter_come_before_its_update() -> None:
    graph = _extract(mlp_step(widths=(6, 16, 4))).graph
    order_only = {(e.producer, e.consumer) for e in graph.edges if e.order_only}
    writers = {c for _, c in order_only}
    assert all(graph.ops[w].is_output for w in writers)
    # w1 is read by the forward matmul and by the transpose for the input gradient
    readers = [p for p, c in order_only if "subtract" in graph.ops[c].name]
    assert any("matmul1" in graph.ops[p].name for p in readers)
    assert any("transpose" in graph.ops[p].name for p in readers)


def test_updates_of_donated_parameters_take_no_memory() -> None:
    graph = _extract(mlp_step(widths=(6, 16, 4))).graph
    donated = [op for op in graph.ops if op.is_donated]
    assert [op.is_output for op in donated] == [True] * 4
    # velocity, parameter, velocity, parameter
    assert [op.name.split(":")[1].strip("0123456789") for op in donated] == ["add", "subtract"] * 2


def test_without_donation_nothing_is_ordered() -> None:
    graph = _extract(mlp_step(donated=False)).graph
    assert not any(edge.order_only for edge in graph.edges)
    assert not any(op.is_donated for op in graph.ops)


def test_a_view_is_no_op() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 8), "float32")):
            with R.dataflow():
                a = R.exp(x)
                b = R.reshape(a, R.shape([32]))
                c = R.add(b, b)
                R.output(c)
            return c

    extraction = _extract(Module)
    assert extraction.graph.num_ops == 2
    (edge,) = extraction.graph.edges
    assert (edge.producer, edge.consumer, edge.bytes) == (0, 1, 4 * 8 * 4)
    assert not edge.keeps_rows  # four rows become one


def test_two_views_of_one_value_are_read_once() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 8), "float32")):
            with R.dataflow():
                a = R.reshape(x, R.shape([32]))
                b = R.reshape(x, R.shape([32]))
                c = R.add(a, b)
                R.output(c)
            return c

    graph = _extract(Module).graph
    assert [(r.op, r.value, r.bytes) for r in graph.external_reads] == [(0, 0, 128)]


def test_legalised_allreduce_is_recognised() -> None:
    mod = relax.transform.LegalizeOps()(InsertAllReduce()(mlp_step()))
    graph = extract(lower(mod, TARGET, library=False)).graph
    assert [op.merge_class for op in graph.ops if op.kind == OpKind.ALLREDUCE] == [
        "avg/float32/world"
    ] * 2


def _two_blocks() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            with R.dataflow():
                a = R.exp(x)
                R.output(a)
            b = R.exp(a)
            return b  # noqa: RET504

    return Module


def _no_dataflow() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            a = R.exp(x)
            return a  # noqa: RET504

    return Module


def _no_main() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function
        def step(x: R.Tensor((4,), "float32")):
            with R.dataflow():
                a = R.exp(x)
                R.output(a)
            return a

    return Module


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (_two_blocks, r"exactly one dataflow block, but it consists of \['DataflowBlock', 'Bind"),
        (_no_dataflow, r"exactly one dataflow block, but it consists of \['BindingBlock'\]"),
        (_no_main, r"no relax function 'main'; it has \['step'\]"),
    ],
)
def test_other_shapes_of_main_are_refused(module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lower(module(), TARGET, library=False)


def test_dynamic_shape_is_refused() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n",), "float32")):
            with R.dataflow():
                a = R.exp(x)
                R.output(a)
            return a

    with pytest.raises(ValueError, match="dynamic; DisCoFuse needs static shapes"):
        _extract(Module)


def test_gradient_reduced_twice_gets_copies() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            with R.dataflow():
                g = R.exp(x)
                a = R.ccl.allreduce(g, "avg", False)
                b = R.ccl.allreduce(g, "sum", False)
                c = R.add(a, b)
                R.output(c)
            return c

    graph = _extract(Module).graph
    assert [op.name.split(":")[1] for op in graph.ops if op.name.split(":")[1] == "multiply"]
    with pytest.raises(ValueError, match="reduced more than once"):
        extract(relax.transform.LegalizeOps(skip_ops=["relax.ccl.allreduce"])(Module))


def test_reading_a_parameter_after_its_update_is_refused() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(w: R.Tensor((4,), "float32")):
            R.func_attr({"disco_fuse.donated": [0, 0]})
            with R.dataflow():
                new = R.exp(w)
                both = R.add(new, w)
                R.output(new, both)
            return (new, both)

    with pytest.raises(ValueError, match="read after its new value was computed"):
        _extract(Module)


def test_an_update_that_mixes_elements_is_refused() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(w: R.Tensor((4, 4), "float32")):
            R.func_attr({"disco_fuse.donated": [0, 0]})
            with R.dataflow():
                new = R.permute_dims(w)
                R.output(new)
            return new

    with pytest.raises(ValueError, match="not element by element, so it cannot be written in plac"):
        _extract(Module)


@pytest.mark.parametrize("reduction", ["prod", "min", "max"])
def test_reductions_that_the_runtime_lacks_are_refused(reduction: str) -> None:
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            gradient = builder.emit(relax.op.exp(x))
            out = builder.emit_output(relax.op.ccl.allreduce(gradient, reduction, False))
        builder.emit_func_output(out)
    with pytest.raises(ValueError, match=f"asks for '{reduction}'; allowed: avg, sum"):
        _extract(builder.get())


def test_a_slice_of_leading_rows_is_no_view() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((8, 4), "float32"), y: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                a = R.strided_slice(x, [0], [0], [4])
                b = R.add(a, y)
                R.output(b)
            return b

    assert _extract(Module).graph.num_ops == 2
