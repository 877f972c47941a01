"""Random numbers of a step: the generator, its statistics, and one mask for both passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import tvm
from eager_reference import assert_close, check_against_eager, compile_main, run_steps
from torch import nn
from tvm import relax, te

from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.frontend import SGD
from disco_fuse.frontend.random import RandomSource, key_of_seed, philox2x32
from disco_fuse.frontend.torch import export, training_step

# Counters, key and words of Random123's known-answer tests (kat_vectors, "philox2x32 10").
KNOWN_ANSWERS = [
    ((0, 0), 0, (0xFF1DAE59, 0x6CD10DF2)),
    ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
    ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
]
STATE = ("step", "rank", "key")


def words(shape: Sequence[int], step: int, rank: int, key: int, site: int) -> npt.NDArray[Any]:
    """The definition of the generator once more, in numpy: first words for every element."""
    low = np.arange(math.prod(shape), dtype=np.uint64)
    second = np.full_like(low, step)
    stream = np.uint64(key ^ (rank << 16 | site))
    for number in range(10):
        product = low * np.uint64(0xD256D193)
        bumped = (int(stream) + number * 0x9E3779B9) & 0xFFFFFFFF
        low, second = (product >> np.uint64(32)) ^ np.uint64(bumped) ^ second, product
        second = second & np.uint64(0xFFFFFFFF)
    return low.reshape(tuple(shape))


def mask(shape: Sequence[int], p: float, step: int, rank: int, key: int, site: int) -> Any:
    return words(shape, step, rank, key, site) >= np.uint64(round(p * 2**32))


def draws_of(draw: Callable[[RandomSource], list[relax.Expr]]) -> Callable[..., Any]:
    """``(step, rank, key) -> arrays`` of what `draw` draws, each from its own site."""
    builder = relax.BlockBuilder()
    state = [relax.Var(name, relax.TensorType([], "uint32")) for name in STATE]
    with builder.function("main", state):
        with builder.dataflow():
            results = draw(RandomSource(builder, *state))
            result = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(result)
    main = compile_main(builder.get())
    return lambda *values: main(*(np.array(value, "uint32") for value in values))


@pytest.mark.parametrize(("counters", "key", "expected"), KNOWN_ANSWERS)
def test_philox_known_answers(counters: Any, key: int, expected: Any) -> None:
    given = te.placeholder((3,), "uint32", name="given")
    pair = philox2x32(*(given[i] for i in range(3)))
    results = [te.compute((1,), lambda _: pair[0]), te.compute((1,), lambda _: pair[1])]
    function = te.create_prim_func([given, *results]).with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": function}), target="llvm")
    arrays = [np.array([*counters, key], "uint32"), np.zeros(1, "uint32"), np.zeros(1, "uint32")]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    built["main"](*tensors)
    assert tuple(int(tensor.numpy()[0]) for tensor in tensors[1:]) == expected


def test_masks_follow_the_definition() -> None:
    shape = (3, 5, 7)
    run = draws_of(lambda random: [random.keep_mask(shape, p) for p in (0.1, 0.5, 0.9)])
    for step, rank, key in ((0, 0, 0), (5, 3, 0xDEADBEEF), (2**32 - 1, 2**16 - 1, 2**32 - 1)):
        for site, (p, actual) in enumerate(zip((0.1, 0.5, 0.9), run(step, rank, key), strict=True)):
            assert actual.dtype == bool
            np.testing.assert_array_equal(actual, mask(shape, p, step, rank, key, site))


def test_probabilities_of_zero_and_one() -> None:
    run = draws_of(lambda random: [random.keep_mask((9,), p) for p in (0.0, 1.0)])
    kept, dropped = run(0, 0, 0)
    assert kept.all()
    assert not dropped.any()


SIDE = 1000
FOUR_SIGMA = 4.0 / SIDE  # of the mean of SIDE**2 independent numbers of variance 1


def standardised(kept: npt.NDArray[Any], p: float) -> npt.NDArray[Any]:
    return (kept - (1.0 - p)) / math.sqrt(p * (1.0 - p))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_keep_rate_and_independence(p: float) -> None:
    """Correlations between all that must be independent, each within four standard errors."""
    shape = (SIDE, SIDE)
    run = draws_of(lambda random: [random.keep_mask(shape, p) for _ in range(2)])
    key = key_of_seed(1)
    base, other_site = (standardised(x, p) for x in run(0, 0, key))
    others = {
        "site": other_site,
        "step": standardised(run(1, 0, key)[0], p),
        "rank": standardised(run(0, 1, key)[0], p),
        "seed": standardised(run(0, 0, key_of_seed(2))[0], p),
        "next rank's other site": standardised(run(0, 1, key)[1], p),
        "next element": np.roll(base, 1),
        "next row": np.roll(base, 1, axis=0),
        "shifted next step": np.roll(standardised(run(1, 0, key)[0], p), 1),
    }
    assert abs(base.mean()) < FOUR_SIGMA
    assert np.abs(base.mean(axis=0)).max() < 5.0 / math.sqrt(SIDE)
    assert np.abs(base.mean(axis=1)).max() < 5.0 / math.sqrt(SIDE)
    for name, other in others.items():
        assert abs((base * other).mean()) < FOUR_SIGMA, name


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("float32", 24), ("float64", 53)])
def test_uniform_numbers(dtype: str, bits: int) -> None:
    (values,) = draws_of(lambda random: [random.uniform((SIDE, SIDE), dtype)])(3, 1, 99)
    assert values.dtype == dtype
    exact = values.astype("float64")
    assert exact.min() >= 0.0
    assert exact.max() < 1.0
    np.testing.assert_array_equal(exact * 2.0**bits, np.floor(exact * 2.0**bits))
    assert np.unique(exact).size > min(0.9 * SIDE**2, 0.9 * 2**bits)
    assert abs((exact + 2.0 ** -(bits + 1) - 0.5).mean()) < FOUR_SIGMA * math.sqrt(1 / 12)
    counts = np.bincount((exact * 100).astype(int).ravel(), minlength=100)
    if bits > 20:  # chi squared of 99 degrees of freedom: mean 99, standard deviation 14
        assert ((counts - SIDE**2 / 100) ** 2 / (SIDE**2 / 100)).sum() < 99 + 4 * 14


def test_seeds() -> None:
    keys = {key_of_seed(seed) for seed in range(1000)}
    assert len(keys) == 1000
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match=f"seed is {seed}; allowed: 0 to 4294967295"):
            key_of_seed(seed)


class Net(nn.Module):
    """Dropout after a layer and inside attention; `drop` and `attend` are exchanged by tests."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.drop: Any = lambda x, p: F.dropout(x, p)
        self.attend: Any = lambda x, p: F.scaled_dot_product_attention(x, x, x, dropout_p=p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(torch.tanh(self.first(x)), 0.3)
        x = x + self.drop(x, 0.3)
        return self.last(self.attend(x, 0.2))


def batches(count: int) -> list[Any]:
    torch.manual_seed(2)
    return [(torch.randn(4, 6).double(), torch.randn(4, 6).double()) for _ in range(count)]


def test_training_with_the_same_masks_in_eager_torch() -> None:
    """Forward and backward see one mask, every site and every step its own."""
    torch.manual_seed(0)
    model, data = Net().double(), batches(4)
    optimizer = SGD(lr=0.1, momentum=0.9)
    step = training_step(model, data[0], loss=F.mse_loss, optimizer=optimizer, seed=11)
    assert step.state_names[-3:] == ("rank", "random.step", "random.key")
    history = run_steps(step, data)
    theirs = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number, ((x, y), results) in enumerate(zip(data, history, strict=True)):
        site = iter(range(3))

        def drop(x: torch.Tensor, p: float, number: int = number, site: Any = site) -> torch.Tensor:
            kept = mask(x.shape, p, number, 0, key_of_seed(11), next(site))
            return x * torch.from_numpy(kept) / (1.0 - p)

        def attend(x: torch.Tensor, p: float, drop: Any = drop) -> torch.Tensor:
            return drop(torch.softmax(x @ x.T / math.sqrt(6), -1), p) @ x

        model.drop, model.attend = drop, attend
        theirs.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        theirs.step()
        assert_close(results["loss"], loss.detach(), f"loss of step {number}")
        for name, value in model.named_parameters():
            assert_close(results[name], value.detach(), f"{name} after step {number}")
        assert results["random.step"] == number + 1


class Drawn(nn.Module):
    """Returns what was drawn beside the loss, and takes the gradient through it."""

    def __init__(self, function: Any, shape: Sequence[int]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(*shape))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = self.function(self.weight * x)
        return (result * x).sum(), result


SHAPE = (64, 32)


@pytest.mark.parametrize(
    ("function", "values", "uniform_over"),
    [
        (lambda x: nn.Dropout(0.25)(x), {0.0, 4 / 3}, ()),
        (lambda x: F.dropout(x * 1, 0.25, inplace=True), {0.0, 4 / 3}, ()),
        (lambda x: nn.Dropout1d(0.25)(x), {0.0, 4 / 3}, (1,)),
        (lambda x: x * torch.bernoulli(torch.full_like(x, 0.75)), {0.0, 1.0}, ()),
        (lambda x: x * x.new_empty((64, 1)).bernoulli_(0.75), {0.0, 1.0}, (1,)),
        (lambda x: x * (torch.rand((64, 1)) < 0.75), {0.0, 1.0}, (1,)),
        (lambda x: x * (torch.rand_like(x) < 0.75), {0.0, 1.0}, ()),
        (lambda x: x.div(0.75) * (0.75 + torch.rand((64, 1))).floor_(), {0.0, 4 / 3}, (1,)),
    ],
)
def test_operators_that_draw(
    function: Any, values: set[float], uniform_over: tuple[int, ...]
) -> None:
    """Keep rate, the values kept and dropped, and the gradient through the same draw."""
    model = Drawn(function, SHAPE)
    data = [(torch.ones(SHAPE),)] * 2
    step = training_step(model, data[0], optimizer=SGD(lr=1.0))
    first, second = run_steps(step, data)
    result = first["output_0"]
    np.testing.assert_allclose(sorted(set(result.ravel().tolist())), sorted(values), rtol=1e-6)
    count = 64 if uniform_over else 64 * 32
    assert abs((result != 0).mean() - 0.75) < 4 * math.sqrt(0.75 * 0.25 / count)
    for axis in uniform_over:
        assert (result == result.take([0], axis=axis)).all()
    np.testing.assert_allclose(1.0 - first["weight"], result, rtol=1e-6)
    assert ((second["output_0"] != 0) != (result != 0)).any()


def test_evaluation_mode_is_the_identity() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6)).double().eval()
    step = check_against_eager(model, batches(2), loss=F.mse_loss)
    assert not any(name.startswith("random.") for name in step.state_names)


def test_everything_dropped() -> None:
    step = training_step(Drawn(nn.Dropout(1.0), SHAPE), [torch.ones(SHAPE)], optimizer=SGD(lr=1.0))
    (results,) = run_steps(step, [(torch.ones(SHAPE),)])
    assert not results["output_0"].any()
    assert (results["weight"] == 1.0).all()


def test_a_lost_draw_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were an LSTM's dropout not refused by name, the count of draws would find it missing."""
    monkeypatch.setattr(export, "check_draws", lambda _program: 1)
    model = nn.Linear(6, 6).double()
    with pytest.raises(UnsupportedOperatorError, match="in 1 places, but torch's joint graph in 0"):
        training_step(model, batches(1)[0], loss=F.mse_loss, optimizer=SGD(lr=0.1))
