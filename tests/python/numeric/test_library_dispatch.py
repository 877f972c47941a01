"""DispatchMatmul: what it rewrites, what it must leave, and that results stay the same."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from library_run import calls, count_ops, dispatch, run
from tvm import relax
from tvm.relax import op

from disco_fuse import _ffi
from disco_fuse.kernels.library import (
    is_library_matmul,
    library_available,
    load_library,
    matmul_signature,
    op_facts,
    plan_of,
    random_arguments,
)

pytestmark = pytest.mark.skipif(not library_available(), reason="needs the library inside torch")
Body = Callable[..., Any]


@pytest.fixture(autouse=True, scope="module")
def _library() -> None:
    load_library()


def build(
    body: Body, *shapes: Sequence[Any], dtype: str = "float32", attrs: dict[str, Any] | None = None
) -> Any:
    """A module whose main computes ``body(emit, *parameters)``: a tensor, or a list of them."""
    builder = relax.BlockBuilder()
    parameters = [
        relax.Var(f"p{i}", relax.TensorType(list(shape), dtype)) for i, shape in enumerate(shapes)
    ]
    with builder.function("main", parameters, attrs=attrs):
        with builder.dataflow():
            result = body(builder.emit, *parameters)
            if isinstance(result, list):
                result = relax.Tuple(result)
            output = builder.emit_output(result)
        builder.emit_func_output(output)
    return builder.get()


def arguments_of(module: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal([int(size) for size in parameter.ty.shape]).astype(
            str(parameter.ty.dtype)
        )
        for parameter in module["main"].params
    ]


def assert_same_results(before: Any, after: Any, dtype: str = "float32") -> None:
    tolerance = 1e-4 if dtype == "float32" else 1e-11
    arguments = arguments_of(before)
    for expected, actual in zip(run(before, arguments), run(after, arguments), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def check(module: Any, *, num_matmul: int = 1, dtype: str = "float32", **left: int) -> Any:
    """Dispatch, count what is left, and compare results."""
    after = dispatch(module)
    ops = count_ops(after)
    assert ops.pop("call_dps_packed", 0) == num_matmul
    assert dict(ops) == left
    assert_same_results(module, after, dtype)
    return after


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transpose", [(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)])
def test_transposes_vanish(dtype: str, transpose: tuple[int, ...]) -> None:
    def body(emit: Any, a: Any, b: Any) -> Any:
        a = emit(op.permute_dims(a, [1, 0])) if transpose[0] else a
        b = emit(op.permute_dims(b)) if transpose[1] else b
        c = emit(op.matmul(a, b))
        return emit(op.permute_dims(c, [1, 0])) if transpose[2] else c

    shapes = [(7, 5) if transpose[0] else (5, 7), (4, 7) if transpose[1] else (7, 4)]
    check(build(body, *shapes, dtype=dtype), dtype=dtype)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, 3, 5, 7), (2, 3, 7, 4)),
        ((2, 3, 5, 7), (7, 4)),
        ((5, 7), (2, 3, 7, 4)),
        ((2, 1, 5, 7), (3, 7, 4)),
        ((1, 5, 7), (2, 3, 7, 4)),
        ((3, 1, 7), (7, 1)),
        ((7,), (7, 4)),
        ((5, 7), (7,)),
        ((7,), (7,)),
        ((7,), (3, 7, 4)),
        ((3, 5, 7), (7,)),
        ((0, 7), (7, 4)),
        ((5, 0), (0, 4)),
        ((2, 5, 7), (2, 7, 0)),
        ((1, 1), (1, 1)),
    ],
)
def test_shapes_and_broadcasting(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(build(lambda emit, x, y: emit(op.matmul(x, y)), a, b))


def test_heads_are_split_and_merged_in_place() -> None:
    def body(emit: Any, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (
            emit(op.permute_dims(emit(op.reshape(x, (2, 12, 4, 8))), [0, 2, 1, 3]))
            for x in (q, k, v)
        )
        q, v = (emit(op.reshape(x, (8, 12, 8))) for x in (q, v))
        k = emit(op.reshape(emit(op.permute_dims(k, [0, 1, 3, 2])), (8, 8, 12)))
        scores = emit(op.nn.softmax(emit(op.matmul(q, k))))
        heads = emit(op.reshape(emit(op.matmul(scores, v)), (2, 4, 12, 8)))
        return emit(op.reshape(emit(op.permute_dims(heads, [0, 2, 1, 3])), (24, 32)))

    check(build(body, (24, 32), (24, 32), (2, 12, 32)), num_matmul=2, **{"nn.softmax": 1})


def test_broadcast_batch_reads_the_matrix_once() -> None:
    def body(emit: Any, a: Any, b: Any) -> Any:
        b = emit(op.broadcast_to(emit(op.expand_dims(b, 0)), (6, 7, 4)))
        return emit(op.matmul(a, b))

    after = check(build(body, (6, 5, 7), (7, 4)))
    (call,) = calls(after)
    assert plan_of(call).batch_shape == (), "B repeats, so the batch is part of M"
    assert op_facts(call) == (2 * 30 * 4 * 7, 4 * (210 + 28), 4 * 120)


def test_a_matrix_that_repeats_over_a_batch_is_read_once() -> None:
    after = check(build(lambda emit, a, b: emit(op.matmul(a, b)), (5, 7), (6, 7, 4)))
    (call,) = calls(after)
    assert plan_of(call).batch_shape == (6,)
    assert op_facts(call) == (2 * 6 * 5 * 4 * 7, 4 * (35 + 6 * 28), 4 * 120)


def test_slices_and_splits_are_read_in_place() -> None:
    def body(emit: Any, qkv: Any, w: Any) -> Any:
        parts = emit(op.split(qkv, 3, axis=1))
        q, k = emit(relax.TupleGetItem(parts, 0)), emit(relax.TupleGetItem(parts, 1))
        last = emit(op.strided_slice(w, [0], [-4], [6], [1]))
        return [emit(op.matmul(q, emit(op.permute_dims(k)))), emit(op.matmul(q, last))]

    check(build(body, (5, 12), (6, 3)), num_matmul=2)


def test_slices_that_need_a_copy_stay() -> None:
    def body(emit: Any, a: Any, b: Any) -> Any:
        return emit(op.matmul(emit(op.strided_slice(a, [1], [0], [6], [2])), b))

    check(build(body, (5, 6), (3, 4)), strided_slice=1)


def test_a_layout_op_with_other_readers_stays_for_them() -> None:
    def body(emit: Any, a: Any, b: Any) -> Any:
        t = emit(op.permute_dims(a))
        return [emit(op.matmul(t, b)), emit(op.exp(t))]

    after = check(build(body, (7, 5), (7, 4)), permute_dims=1, exp=1)
    call = next(call for call in calls(after) if is_library_matmul(call))
    assert call.args[1].fields[0].same_as(after["main"].params[0])


def test_a_result_with_other_readers_is_written_as_it_is() -> None:
    def body(emit: Any, a: Any, b: Any) -> Any:
        c = emit(op.matmul(a, b))
        return [emit(op.exp(c)), emit(op.permute_dims(c))]

    check(build(body, (5, 7), (7, 4)), permute_dims=1, exp=1)


def test_torn_m_or_n_needs_the_copy() -> None:
    def body(emit: Any, a: Any, b: Any) -> Any:
        c = emit(op.reshape(emit(op.matmul(a, b)), (2, 3, 4, 2)))
        return emit(op.permute_dims(c, [0, 2, 1, 3]))

    # The reshape is free, the transposed heads are not one matrix.
    check(build(body, (6, 5), (5, 8)), permute_dims=1)


def test_a_chain_of_products_reads_what_the_first_wrote() -> None:
    def body(emit: Any, a: Any, b: Any) -> Any:
        c = emit(op.permute_dims(emit(op.matmul(a, b))))
        return emit(op.matmul(emit(op.permute_dims(c)), emit(op.reshape(c, (4, 5)))))

    check(build(body, (5, 7), (7, 4)), num_matmul=2)


def test_gradients_keep_their_variables() -> None:
    def body(emit: Any, a: Any, b: Any) -> Any:
        end_of_chain = emit(op.permute_dims(emit(op.matmul(a, b))))
        inside = emit(op.matmul(emit(op.permute_dims(b)), emit(op.permute_dims(a))))
        assert (end_of_chain.name, inside.name) == ("lv1", "lv4")
        return [end_of_chain, emit(op.permute_dims(inside))]

    module = build(body, (5, 7), (7, 4), attrs={"disco_fuse.gradients": ["lv1", "lv4"]})
    after = check(module, num_matmul=2, permute_dims=1)
    names = [binding.var.name for block in after["main"].body.blocks for binding in block.bindings]
    assert {"lv1", "lv4"} <= set(names)


def test_a_gradient_that_only_a_product_reads_is_not_dropped() -> None:
    def body(emit: Any, a: Any, b: Any) -> Any:
        return emit(op.matmul(emit(op.permute_dims(a)), b))

    check(build(body, (7, 5), (7, 4), attrs={"disco_fuse.gradients": ["lv"]}), permute_dims=1)


def test_a_tensor_overwritten_in_place_is_not_read_late() -> None:
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((4, 4), "float32")) for name in "xw")
    with builder.function("main", [x, w]):
        with builder.dataflow():
            t = builder.emit(op.permute_dims(x))
            z = builder.emit(
                relax.Call(
                    tvm.ir.Op.get("relax.call_inplace_packed"),
                    [relax.ExternFunc("some.function"), x],
                    tvm.ir.make_node("relax.attrs.CallInplacePackedAttrs", inplace_indices=[0]),
                    ty_args=[x.ty],
                )
            )
            output = builder.emit_output(relax.Tuple([z, builder.emit(op.matmul(t, w))]))
        builder.emit_func_output(output)
    after = dispatch(builder.get())
    assert count_ops(after)["permute_dims"] == 1
    assert count_ops(after)["call_dps_packed"] == 1


def stays(module: Any, caplog: pytest.LogCaptureFixture) -> str:
    """The reason that the log gives for the one matmul that is not dispatched."""
    with caplog.at_level(logging.DEBUG, logger="disco_fuse.kernels.library"):
        after = dispatch(module)
    tvm.ir.assert_structural_equal(after, module)
    (record,) = caplog.records
    return record.getMessage()


def test_other_dtypes_stay(caplog: pytest.LogCaptureFixture) -> None:
    module = build(lambda emit, a, b: emit(op.matmul(a, b)), (5, 7), (7, 4), dtype="float16")
    assert "dtypes are float16, float16, float16" in stays(module, caplog)


def test_accumulation_in_another_dtype_stays(caplog: pytest.LogCaptureFixture) -> None:
    module = build(lambda emit, a, b: emit(op.matmul(a, b, out_dtype="float64")), (5, 7), (7, 4))
    assert "matmul lv is not dispatched: dtypes are float32, float32, float64" in (
        stays(module, caplog)
    )


def test_symbolic_shapes_stay(caplog: pytest.LogCaptureFixture) -> None:
    n = tvm.tirx.Var("n", "int64")
    module = build(lambda emit, a, b: emit(op.matmul(a, b)), (n, 7), (7, 4))
    assert "a shape is not static" in stays(module, caplog)


def test_claimed_functions_stay() -> None:
    module = build(
        lambda emit, a, b: emit(op.matmul(a, b)), (5, 7), (7, 4), attrs={"Primitive": True}
    )
    tvm.ir.assert_structural_equal(dispatch(module), module)


def test_a_dispatched_call_can_be_timed_and_told_apart() -> None:
    def body(emit: Any, a: Any, b: Any) -> Any:
        return [emit(op.matmul(a, b)), emit(op.matmul(a, b)), emit(op.matmul(b, a))]

    first, again, other = calls(dispatch(build(body, (2, 5, 5), (5, 5))))
    assert matmul_signature(first) == matmul_signature(again)
    assert matmul_signature(first) != matmul_signature(other)
    assert matmul_signature(first) == ("matmul/float32/2x5x5/5x5/2x5x5/0,10,5,5,0,5,1,0,5,1,0,5,1")
    a, b, ints, out = random_arguments(first, seed=3)
    _ffi.function("kernels.matmul")(a, b, ints, out)
    np.testing.assert_allclose(out.numpy(), a.numpy() @ b.numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"expected a call of disco_fuse\.kernels\.matmul, got "):
        op_facts(relax.op.matmul(*(relax.Var("x", first.ty) for _ in range(2))))


def random_layout(data: st.DataObject, emit: Any, tensor: Any) -> Any:
    """A few random layout ops behind a tensor."""
    for _ in range(data.draw(st.integers(0, 3))):
        shape = [int(size) for size in tensor.ty.shape]
        kind = data.draw(st.sampled_from(["permute", "merge", "cut", "squeeze", "broadcast"]))
        dim = data.draw(st.integers(0, max(len(shape) - 2, 0)))
        if kind == "permute":
            tensor = emit(op.permute_dims(tensor, data.draw(st.permutations(range(len(shape))))))
        elif kind == "merge" and len(shape) > 2:
            merged = [*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :]]
            tensor = emit(op.reshape(tensor, merged))
        elif kind == "cut" and len(shape) < 5 and shape[dim] % 2 == 0:
            tensor = emit(op.reshape(tensor, [*shape[:dim], 2, shape[dim] // 2, *shape[dim + 1 :]]))
        elif kind == "squeeze" and 1 in shape[:-2]:
            tensor = emit(op.squeeze(tensor, [shape.index(1)]))
        elif kind == "broadcast" and len(shape) < 4:
            target = [3 if size == 1 else size for size in shape]
            tensor = emit(op.broadcast_to(tensor, [2, *target]))
    return tensor


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_layouts_around_a_product(data: st.DataObject) -> None:
    sizes = st.sampled_from([1, 2, 4, 6])

    def body(emit: Any, a: Any) -> Any:
        a = random_layout(data, emit, a)
        shape = [int(size) for size in a.ty.shape]
        n = data.draw(sizes)
        b_shape = [*data.draw(st.sampled_from([[], shape[:-2]])), shape[-1], n]
        b = emit(op.add(emit(op.ones(b_shape[::-1], "float32")), relax.const(0.5, "float32")))
        b = emit(op.permute_dims(emit(op.cumsum(b, axis=-1))))
        c = emit(op.matmul(a, b))
        return random_layout(data, emit, c)

    shape = data.draw(st.lists(sizes, min_size=2, max_size=4))
    module = build(body, shape)
    after = dispatch(module)
    assert count_ops(after)["matmul"] == 0, "plain operands can always be dispatched"
    assert_same_results(module, after)
