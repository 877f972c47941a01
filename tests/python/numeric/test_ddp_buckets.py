"""The DDP baseline against ``torch.nn.parallel.DistributedDataParallel``, bucket by bucket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from disco_fuse import zoo
from disco_fuse.bindings import allreduce_input
from disco_fuse.extract import Extraction, extract
from disco_fuse.frontend.torch import training_step
from disco_fuse.graph import OpKind
from disco_fuse.insert import InsertAllReduce
from disco_fuse.lower import lower
from disco_fuse.target import host_target
from disco_fuse.tensor_fusion import ddp_buckets, ddp_caps_bytes, gradients_in_production_order
from disco_fuse.workload import Workload
from disco_fuse.zoo.definition import define


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path_factory.mktemp("ddp") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _deep_mlp() -> Workload:
    """28 layers of 1 MiB: enough for the default caps."""
    layers = [layer for _ in range(28) for layer in (nn.Linear(512, 512), nn.ReLU())]

    def batches(_rank: int, _world_size: int) -> Iterator[tuple[object, ...]]:
        while True:
            yield torch.ones(2, 512).numpy(), torch.zeros(2, 512).numpy()

    return define(
        "deep_mlp", lambda: nn.Sequential(*layers), batches, lambda y, t: ((y - t) ** 2).mean()
    )


def _extract(workload: Workload) -> tuple[Extraction, dict[int, int]]:
    """The graph, and the place among the model's parameters of what each AllReduce averages."""
    example = workload.example_tensors()
    step = training_step(workload.model, example, loss=workload.loss, optimizer=workload.optimizer)
    mod = lower(InsertAllReduce()(step.mod), host_target(), library=True)
    extraction = extract(mod)
    parameter = {variable: name for name, variable in step.gradient_names.items()}
    place = {name: i for i, (name, _) in enumerate(workload.model.named_parameters())}
    return extraction, {
        op: place[parameter[allreduce_input(extraction.bindings[op].value).name]]
        for op, node in enumerate(extraction.graph.ops)
        if node.kind == OpKind.ALLREDUCE
    }


def _arrival(workload: Workload) -> list[int]:
    """Parameters in the order in which eager autograd finishes their gradients."""
    order: list[int] = []
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, i=i: order.append(i))
        for i, parameter in enumerate(workload.model.parameters())
    ]
    _backward(workload, workload.model)
    for handle in handles:
        handle.remove()
    return order


def _backward(workload: Workload, model: nn.Module) -> None:
    *inputs, target = workload.example_tensors()
    workload.loss(model(*inputs), target).backward()


def _rebuilt_buckets(workload: Workload, bucket_cap_mb: float | None) -> list[list[int]]:
    ddp = nn.parallel.DistributedDataParallel(workload.model, bucket_cap_mb=bucket_cap_mb)
    for _ in range(3):
        _backward(workload, ddp)
    data = ddp._get_ddp_logging_data()
    assert data["has_rebuilt_buckets"]
    text = data["rebuilt_per_bucket_param_indices"]
    return [[int(number) for number in bucket.split()] for bucket in text.split(",")]


@pytest.mark.parametrize(
    ("name", "caps"),
    [
        ("gpt2_small", [None, 0.005, 0.02, 0.05]),  # tied weights
        ("bert_small", [None, 0.005, 0.02, 0.05]),
        ("rnnlm_small", [None, 0.005, 0.02]),  # parameters read in every time step
        ("deep_mlp", [None, 1, 10, 25]),
    ],
)
def test_buckets_are_those_of_ddp(name: str, caps: list[float | None]) -> None:
    workload = _deep_mlp() if name == "deep_mlp" else zoo.workload(name)
    extraction, parameter_of = _extract(workload)
    arrival = _arrival(workload)
    op_of = {parameter: op for op, parameter in parameter_of.items()}
    num_buckets = []
    for cap in caps:
        buckets = ddp_buckets(
            extraction.graph, ddp_caps_bytes(cap), arrival=[op_of[i] for i in arrival]
        )
        ours = [[parameter_of[op] for op in bucket] for bucket in buckets]
        assert ours == _rebuilt_buckets(workload, cap), f"bucket_cap_mb={cap}"
        num_buckets.append(len(ours))
    assert max(num_buckets) > 2

    # Our program produces them in nearly that order: within a layer the weight comes first.
    produced = [parameter_of[op] for op in gradients_in_production_order(extraction.graph)]
    moved = [abs(produced.index(i) - place) for place, i in enumerate(arrival)]
    assert max(moved) <= 4, moved
