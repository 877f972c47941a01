"""Strided views against numpy, which computes the same chains of layout ops on real elements."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_fuse.kernels.library.views import (
    CommonFactor,
    Factor,
    StridedView,
    broadcast_to,
    common_factors,
    contiguous,
    joined,
    narrow,
    permute,
    reshape,
)


def elements(view: StridedView) -> np.ndarray:
    """Which element of the tensor each element of the view is."""
    factors = [factor for axis in view.axes for factor in axis]
    index = np.full([factor.size for factor in factors], view.offset)
    for dim, factor in enumerate(factors):
        steps = np.arange(factor.size) * factor.stride
        index = index + steps.reshape([-1 if i == dim else 1 for i in range(len(factors))])
    return index.reshape(view.shape)


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(math.prod(shape)).reshape(shape)


def test_attention_heads_merge_without_a_copy() -> None:
    heads = permute(contiguous((2, 12, 4, 8)), (0, 2, 1, 3))
    merged = reshape(heads, (8, 12, 8))
    assert merged == StridedView(
        axes=((Factor(2, 384), Factor(4, 8)), (Factor(12, 32),), (Factor(8, 1),))
    )
    expected = numbered((2, 12, 4, 8)).transpose(0, 2, 1, 3).reshape(8, 12, 8)
    np.testing.assert_array_equal(elements(merged), expected)


def test_contiguous_dimensions_merge_to_one_factor() -> None:
    assert reshape(contiguous((2, 3, 4)), (6, 4)) == contiguous((6, 4))
    assert reshape(contiguous((24,)), (2, 12)) == contiguous((2, 12))


def test_reshape_across_a_cut_needs_a_copy() -> None:
    transposed = permute(contiguous((3, 2)), (1, 0))
    assert reshape(transposed, (3, 2)) is None


def test_reshape_through_singletons() -> None:
    view = reshape(contiguous((3, 4)), (1, 3, 1, 4))
    assert view is not None
    assert view.shape == (1, 3, 1, 4)
    assert reshape(view, (3, 4)) == contiguous((3, 4))


def test_empty_tensors_are_not_reshaped() -> None:
    assert contiguous((3, 0)).shape == (3, 0)
    assert reshape(contiguous((3, 0)), (0, 3)) is None


def test_narrow_moves_the_offset() -> None:
    view = narrow(contiguous((4, 6)), 1, 1, 2, 3)
    assert view is not None
    np.testing.assert_array_equal(elements(view), numbered((4, 6))[:, 1:6:3])


def test_narrow_of_a_torn_dimension_needs_a_copy() -> None:
    torn = reshape(permute(contiguous((2, 3, 4)), (1, 0, 2)), (6, 4))
    assert torn is not None
    assert narrow(torn, 0, 1, 2, 1) is None


def test_joined_drops_single_steps_and_keeps_gaps() -> None:
    assert joined([Factor(1, 99), Factor(2, 3), Factor(3, 1)]) == (Factor(6, 1),)
    assert joined([Factor(2, 4), Factor(3, 1)]) == (Factor(2, 4), Factor(3, 1))


def test_common_factors_cut_to_fit_both() -> None:
    assert common_factors([(Factor(8, 5),), (Factor(2, 100), Factor(4, 1))]) == [
        CommonFactor(2, (20, 100)),
        CommonFactor(4, (5, 1)),
    ]
    assert common_factors([(Factor(6, 1),), (Factor(2, 3), Factor(3, 1))]) == [
        CommonFactor(6, (1, 1))
    ]
    assert common_factors([(Factor(2, 9), Factor(3, 1)), (Factor(3, 9), Factor(2, 1))]) is None
    assert common_factors([(), ()]) == []


@pytest.mark.parametrize(
    ("function", "shape"), [(broadcast_to, (4, 2)), (broadcast_to, (3,)), (reshape, (5,))]
)
def test_impossible_shapes_are_named(function: object, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"cannot .*\(3, 2\) to "):
        function(contiguous((3, 2)), shape)  # type: ignore[operator]


@given(st.data())
def test_random_chains_equal_numpy(data: st.DataObject) -> None:
    sizes = st.sampled_from([1, 2, 3, 4, 6])
    shape = tuple(data.draw(st.lists(sizes, min_size=1, max_size=4)))
    view, array = contiguous(shape), numbered(shape)
    for _ in range(data.draw(st.integers(0, 6))):
        kind = data.draw(st.sampled_from(["permute", "reshape", "broadcast", "narrow"]))
        changed: StridedView | None = None
        if kind == "permute":
            order = data.draw(st.permutations(range(array.ndim)))
            changed, expected = permute(view, order), array.transpose(order)
        elif kind == "reshape":
            new_shape = data.draw(st.sampled_from(factorizations(array.size)))
            changed, expected = reshape(view, new_shape), array.reshape(new_shape)
        elif kind == "broadcast" and array.size < 200:
            target = tuple(3 if size == 1 else size for size in array.shape)
            target = (2, *target) if array.ndim < 4 else target
            changed, expected = broadcast_to(view, target), np.broadcast_to(array, target)
        elif kind == "narrow":
            dim = data.draw(st.integers(0, array.ndim - 1))
            begin = data.draw(st.integers(0, array.shape[dim] - 1))
            step = data.draw(st.integers(1, 2))
            expected = np.moveaxis(np.moveaxis(array, dim, 0)[begin::step], 0, dim)
            changed = narrow(view, dim, begin, expected.shape[dim], step)
        if changed is not None:
            view, array = changed, expected
            np.testing.assert_array_equal(elements(view), array)


def factorizations(number: int) -> list[tuple[int, ...]]:
    """Shapes of one to three dimensions with that many elements."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return [
        shape
        for length in (1, 2, 3)
        for shape in itertools.product(divisors, repeat=length)
        if math.prod(shape) == number
    ][:60]
