"""Cost models and the AllReduce curve through the Python interface."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from graphs import CLUSTER, DEVICE, fork, op, op_graphs
from hypothesis import given

from disco_fuse.config import AllReduceModel, DeviceSpec
from disco_fuse.cost_model import (
    CostModel,
    Group,
    RooflineCostModel,
    num_nests,
    predict_checked,
)
from disco_fuse.graph import Edge, ExternalRead, OpGraph, OpPattern
from disco_fuse.search import search
from disco_fuse.simulate import simulate
from disco_fuse.strategy import Strategy


class FixedModel(CostModel):
    """Answers with a function of the number of groups."""

    name = "fixed"
    digest = "0"

    def __init__(self, answer: Sequence[float] | None) -> None:
        self.answer = answer

    def predict(self, graph: OpGraph, groups: Sequence[Group]) -> np.ndarray:
        del graph
        if self.answer is not None:
            return np.array(self.answer)
        return np.array([1.0 + len(group.ops) for group in groups])


def singles(graph: OpGraph) -> list[Group]:
    return [Group(ops=(i,), outputs=(i,)) for i in range(graph.num_ops)]


def test_python_models_drive_simulator_and_search() -> None:
    graph = fork()
    model = FixedModel(None)
    assert predict_checked(model, graph, singles(graph)).tolist() == [2.0] * 5
    assert simulate(graph, Strategy.unfused(graph), model, CLUSTER).compute_us == 8.0
    assert search(graph, model, CLUSTER).makespan_us < 20


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0])
def test_bad_predictions_are_errors(bad: float) -> None:
    graph = fork()
    message = r"cost model 'fixed' predicts .* us for the group of op 2 \('g'\)"
    with pytest.raises(ValueError, match=message):
        simulate(graph, Strategy.unfused(graph), FixedModel([1, 1, bad, 1]), CLUSTER)
    with pytest.raises(ValueError, match=message):
        search(graph, FixedModel([1, 1, bad, 1]), CLUSTER)


def test_wrong_number_of_predictions_is_an_error() -> None:
    graph = fork()
    with pytest.raises(ValueError, match="'fixed' made 3 predictions for 4 groups"):
        simulate(graph, Strategy.unfused(graph), FixedModel([1, 1, 1]), CLUSTER)


def test_exceptions_of_a_model_pass_through() -> None:
    class Failing(FixedModel):
        def predict(self, graph: OpGraph, groups: Sequence[Group]) -> np.ndarray:
            raise RuntimeError(f"no profile of {groups[0]} of {graph}")

    with pytest.raises(RuntimeError, match=r"no profile of Group\(ops=\(0,\)"):
        search(fork(), Failing(None), CLUSTER)


def softmax(rows: int = 10) -> OpGraph:
    ops = [
        op("a"),
        op("sum", pattern=OpPattern.COMM_REDUCE, rows=rows),
        op("div", pattern=OpPattern.BROADCAST, num_inputs=2),
    ]
    pairs = [(0, 1), (0, 2), (1, 2)]
    edges = [Edge(producer=p, consumer=c, bytes=400) for p, c in pairs]
    return OpGraph.create(ops, edges, [ExternalRead(op=0, value=0, bytes=400)])


def test_roofline_of_one_and_two_nests() -> None:
    group = Group(ops=(0, 1, 2), outputs=(2,))
    one, two = softmax(), softmax(rows=0)
    assert num_nests(one, group) == 1
    assert num_nests(two, group) == 2
    model = RooflineCostModel(DEVICE)
    assert model.predict(one, [group]).tolist() == [12.2]
    assert model.predict(two, [group]).tolist() == [17.0]


def test_roofline_takes_measured_times() -> None:
    model = RooflineCostModel(DEVICE, np.array([3.0, 4.0, 5.0]))
    assert model.predict(softmax(), singles(softmax())).tolist() == [13.0, 14.0, 15.0]
    assert model.digest != RooflineCostModel(DEVICE).digest
    with pytest.raises(ValueError, match="one entry for each of the 3 ops, got 2"):
        RooflineCostModel(DEVICE, np.array([3.0, 4.0])).predict(softmax(), singles(softmax()))
    with pytest.raises(ValueError, match=r"op_times_us of op 1 \('sum'\)"):
        RooflineCostModel(DEVICE, np.array([3.0, np.nan, 1.0])).predict(softmax(), [])


@given(graph=op_graphs())
def test_an_op_alone_costs_its_roofline(graph: OpGraph) -> None:
    compute = [i for i, item in enumerate(graph.ops) if item.kind != 2]
    groups = [Group(ops=(i,), outputs=(i,)) for i in compute]
    expected = [
        10 + max(0.1, (graph.ops[i].bytes_read + graph.ops[i].bytes_written) / 400) for i in compute
    ]
    assert RooflineCostModel(DEVICE).predict(graph, groups).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("field", ["peak_gflops", "bandwidth_gbps", "launch_us", "nest_us"])
def test_device_is_checked(field: str) -> None:
    fields = {"peak_gflops": 1.0, "bandwidth_gbps": 1.0, "launch_us": 1.0, "nest_us": 1.0}
    with pytest.raises(ValueError, match=f"DeviceSpec.{field}"):
        DeviceSpec(name="d", **{**fields, field: -1.0})


SIZES = np.array([2.0**k for k in range(10, 27)] * 3)


def two_segments(sizes: np.ndarray) -> np.ndarray:
    # Constants of the authors' code: us and us per byte, small and large.
    small = 368 + 0.0434 / 1024 * sizes
    large = 212 + 0.2777 / 1024 * sizes
    return np.where(sizes < 2**19, small, large)


def test_fit_recovers_two_lines_despite_outliers() -> None:
    rng = np.random.default_rng(0)
    times = two_segments(SIZES) * rng.normal(1, 0.01, len(SIZES))
    times[rng.choice(len(SIZES), 8, replace=False)] *= 10
    model = AllReduceModel.fit(SIZES, times)
    for size in (2**12, 2**16, 2**18, 2**20, 2**23, 2**26):
        expected = float(two_segments(np.array([float(size)]))[0])
        assert model.time_us(size) == pytest.approx(expected, rel=0.05)


def test_fit_of_one_line_and_given_threshold() -> None:
    sizes = np.array([1e3, 2e3, 5e3, 9e3])
    model = AllReduceModel.fit(sizes, 7 + 0.5 * sizes)
    assert model.threshold_bytes == 0
    assert model.time_us(4000) == pytest.approx(2007)
    model = AllReduceModel.fit(SIZES, two_segments(SIZES), threshold_bytes=2**19)
    assert model.threshold_bytes == 2**19
    assert model.small_latency_us == pytest.approx(368)
    assert model.large_us_per_byte == pytest.approx(0.2777 / 1024)


@pytest.mark.parametrize(
    ("sizes", "times", "message"),
    [
        ([1.0], [1.0], "two different sizes"),
        ([1.0, 2.0], [1.0], "equally long"),
        ([1.0, 2.0], [1.0, -1.0], "times_us must be finite and > 0"),
        ([0.0, 2.0], [1.0, 1.0], "sizes_bytes must be finite and > 0"),
    ],
)
def test_fit_rejects(sizes: list[float], times: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AllReduceModel.fit(sizes, times)


def test_allreduce_model_is_checked() -> None:
    with pytest.raises(ValueError, match=r"AllReduceModel\.small_latency_us"):
        AllReduceModel.linear(latency_us=-1.0, us_per_byte=0.0)
    with pytest.raises(TypeError, match=r"AllReduceModel\.small_us_per_byte"):
        AllReduceModel.linear(latency_us=1.0, us_per_byte="fast")  # type: ignore[arg-type]
