"""Facts of legalised operators."""

import pytest
from tvm import relax, tirx
from tvm.target import Target

from disco_fuse.kernels.analysis import SMALL_ROW, KernelFacts, analyze, num_nests

op = relax.op


def legalised(build, *specs):
    """The PrimFunc of a single Relax op."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"p{k}", relax.TensorType(shape, dtype)) for k, (shape, dtype) in enumerate(specs)
    ]
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(build(*params)))
    with Target("llvm"):
        module = relax.transform.LegalizeOps()(builder.get())
    (func,) = (f for f in module.functions.values() if isinstance(f, tirx.PrimFunc))
    return func


def f32(*shape):
    return shape, "float32"


def test_add():
    func = legalised(op.add, f32(4, 8), f32(8))
    assert analyze(func) == KernelFacts(
        flops=32.0, num_elements=32, bytes_read=160, bytes_written=128, rows=4
    )


@pytest.mark.parametrize(
    ("build", "weight"),
    [(op.exp, 16), (op.tanh, 16), (op.erf, 16), (op.log, 16), (op.sqrt, 4), (op.negative, 1)],
)
def test_weights_of_functions(build, weight):
    assert analyze(legalised(build, f32(3, 5))).flops == 15 * weight


def test_division_counts_four():
    assert analyze(legalised(op.divide, f32(3, 5), f32(3, 5))).flops == 60


def test_bool_is_one_byte_and_index_arithmetic_is_free():
    facts = analyze(legalised(op.less, f32(3, 5), f32(3, 5)))
    assert facts.bytes_written == 15
    moved = analyze(legalised(lambda x: op.reshape(x, [5, 3]), f32(3, 5)))
    assert moved.flops == 0
    assert moved.rows == 0


def test_outputs_of_a_split_are_added():
    facts = analyze(legalised(lambda x: op.split(x, 3, axis=-1), f32(4, 12)))
    assert (facts.num_elements, facts.bytes_written) == (48, 192)


@pytest.mark.parametrize(
    ("axes", "keep", "rows"),
    [([-1], True, 20), ([-1], False, 20), ([0], True, 0), ([1], False, 0), ([1, 2], True, 0)],
)
@pytest.mark.parametrize("build", [op.sum, op.mean, op.max])
def test_rows_of_reductions(build, axes, keep, rows):
    assert analyze(legalised(lambda x: build(x, axes, keepdims=keep), f32(4, 5, 6))).rows == rows


@pytest.mark.parametrize(
    ("build", "shape", "rows"),
    [
        (lambda x: op.nn.softmax(x, -1), (4, 5, 6), 20),
        (lambda x: op.nn.softmax(x, 0), (4, 5, 6), 0),
        (lambda x: op.permute_dims(x, [0, 2, 1]), (4, 5, 6), 0),
        (lambda x: op.strided_slice(x, [2], [1], [4]), (4, 5, 6), 0),
        (lambda x: op.strided_slice(x, [2], [0], [3]), (4, 5, 6), 0),
        (lambda x: op.strided_slice(x, [2], [0], [6]), (4, 5, 6), 20),
        (op.exp, (4, 5, 6), 20),
        (op.nn.gelu, (4, 5, 6), 20),
        (op.exp, (SMALL_ROW,), 1),
        (op.exp, (SMALL_ROW + 1,), 0),
        (op.exp, (7, 1), 7),
    ],
)
def test_rows_of_others(build, shape, rows):
    assert analyze(legalised(build, f32(*shape))).rows == rows


def test_matmul():
    facts = analyze(legalised(op.matmul, f32(3, 4), f32(4, 5)))
    assert facts == KernelFacts(
        flops=120.0, num_elements=15, bytes_read=128, bytes_written=60, rows=0
    )


def test_gather_and_scatter():
    indices = ((6,), "int64")
    take = legalised(lambda x, i: op.take(x, i, axis=0, mode="clip"), f32(11, 8), indices)
    assert analyze(take).rows == 0
    spec = [f32(11, 8), ((6, 1), "int64"), f32(6, 8)]
    scatter = analyze(legalised(lambda x, i, v: op.scatter_nd(x, i, v, "add"), *spec))
    assert scatter.rows == 0
    assert scatter.num_elements == 88
    assert scatter.flops == 48


def test_unscheduled_function_has_a_nest_per_block():
    assert num_nests(legalised(lambda x: op.nn.softmax(x, -1), f32(4, 8))) == 4


def test_symbolic_shape_is_refused():
    func = legalised(op.exp, ((tirx.Var("n", "int64"), 4), "float32"))
    with pytest.raises(ValueError, match="must be constant"):
        analyze(func)
