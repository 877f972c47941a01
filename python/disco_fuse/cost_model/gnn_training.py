"""Trains the graph attention network with DGL; the one file that imports it.

    node rows -> dense -> [GATConv + residual] x layers -> sum / 10, maximum --+
    global features ------------------------------------------------------- dense x 3 -> y

The paper's network (section 5.2: time, sizes and type per op, multi-head attention, six layers,
then three dense ones, error of logarithms, Adam), with the features of the whole group added
(without them it did worse than boosted trees), and large errors counted linearly.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

# Before dgl is imported, which would else write a configuration into the home directory.
os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import torch
from dgl.nn.pytorch import GATConv
from torch import nn

from disco_fuse.cost_model.features import GLOBAL_FEATURES, NODE_FEATURES, GroupFeatures
from disco_fuse.cost_model.gnn import KIND
from disco_fuse.cost_model.learned import (
    HUBER_DELTA,
    TrainingGroup,
    file_of,
    log_ratios,
    weights,
)
from disco_fuse.cost_model.model_file import ModelFile
from disco_fuse.device import DeviceSpec

_SUM_SCALE = 0.1  # as kSumScale of src/cost/gnn_inference.cc


@dataclass(frozen=True, kw_only=True)
class GnnConfig:
    """Shape of the network and how it is trained.

    Attributes
    ----------
    num_networks : int
        Trained apart, with seeds that follow each other; the model is the mean of their outputs.
    num_layers, hidden, num_heads, dense : int
        Attention layers, width of a node over all heads, heads, width of the dense layers.
    num_epochs, batch : int
    learning_rate, weight_decay : float
        Of Adam with decoupled decay; the rate falls to zero along a cosine.
    dropout : float
        In front of the dense layers, while training.
    seed : int
    """

    num_networks: int = 3
    num_layers: int = 4
    hidden: int = 32
    num_heads: int = 4
    dense: int = 64
    num_epochs: int = 60
    batch: int = 64
    learning_rate: float = 3e-3
    weight_decay: float = 1e-3
    dropout: float = 0.1
    seed: int = 0


class GroupNetwork(nn.Module):  # type: ignore[misc]
    """The network; features come in as they are and are standardised inside.

    Parameters
    ----------
    nodes, globals_ : float32[n, num_features]
        Rows whose mean and spread standardise the features.
    """

    def __init__(
        self, config: GnnConfig, nodes: npt.NDArray[Any], globals_: npt.NDArray[Any]
    ) -> None:
        super().__init__()
        hidden, heads, dense = config.hidden, config.num_heads, config.dense
        for name, rows in (("node", nodes), ("global", globals_)):
            scale = rows.std(0)
            scale = np.where(scale > 0, scale, 1.0)
            self.register_buffer(f"{name}_mean", torch.tensor(rows.mean(0), dtype=torch.float32))
            self.register_buffer(f"{name}_scale", torch.tensor(scale, dtype=torch.float32))
        self.input = nn.Linear(len(NODE_FEATURES), hidden)
        self.layers = nn.ModuleList(
            GATConv(hidden, hidden // heads, heads, residual=True, activation=torch.relu)
            for _ in range(config.num_layers)
        )
        self.head = nn.ModuleList(
            [
                nn.Linear(2 * hidden + len(GLOBAL_FEATURES), dense),
                nn.Linear(dense, dense),
                nn.Linear(dense, 1),
            ]
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, graph: Any, nodes: torch.Tensor, globals_: torch.Tensor) -> torch.Tensor:
        """Outputs y, float32[num_groups], of a batch that :func:`batch_graph` made."""
        values = torch.relu(self.input((nodes - self.node_mean) / self.node_scale))
        for layer in self.layers:
            values = layer(graph, values).flatten(1)
        with graph.local_scope():
            graph.ndata["h"] = values
            read = [_SUM_SCALE * dgl.sum_nodes(graph, "h"), dgl.max_nodes(graph, "h")]
        whole = (globals_ - self.global_mean) / self.global_scale
        values = self.dropout(torch.cat([*read, whole], 1))
        values = torch.relu(self.head[0](values))
        values = torch.relu(self.head[1](self.dropout(values)))
        return self.head[2](values).squeeze(-1)

    def flat_weights(self) -> npt.NDArray[np.float32]:
        """All numbers in the order that ``GnnNetwork`` of src/cost/gnn_inference.h states."""
        parts = [self.node_mean, self.node_scale, self.global_mean, self.global_scale]
        parts += [self.input.weight, self.input.bias]
        for layer in self.layers:
            parts += [layer.fc.weight, layer.attn_l, layer.attn_r, layer.bias]
        for layer in self.head:
            parts += [layer.weight, layer.bias]
        return np.concatenate([part.detach().numpy().reshape(-1) for part in parts])


def batch_graph(features: Sequence[GroupFeatures]) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """(graph, node rows, global rows) of many groups at once.

    One graph with batch sizes set by hand: ``dgl.batch`` of many small graphs takes as long as the
    network itself. Data edges go both ways, and every node has one to itself.
    """
    sizes = [len(item.nodes) for item in features]
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    producer = np.concatenate(
        [item.producer + at for item, at in zip(features, first, strict=True)]
    )
    consumer = np.concatenate(
        [item.consumer + at for item, at in zip(features, first, strict=True)]
    )
    loops = np.arange(sum(sizes))
    source = np.concatenate([producer, consumer, loops])
    target = np.concatenate([consumer, producer, loops])
    graph = dgl.graph((torch.from_numpy(source), torch.from_numpy(target)), num_nodes=sum(sizes))
    graph.set_batch_num_nodes(torch.tensor(sizes))
    num_edges = [2 * len(item.producer) + len(item.nodes) for item in features]
    graph.set_batch_num_edges(torch.tensor(num_edges))
    nodes = torch.from_numpy(np.concatenate([item.nodes for item in features]))
    return graph, nodes, torch.from_numpy(np.stack([item.globals for item in features]))


def train_gnn(
    groups: Sequence[TrainingGroup],
    *,
    device: DeviceSpec,
    environment: str,
    config: GnnConfig | None = None,
) -> ModelFile:
    """Fit the network to the logarithm of measured time over roofline.

    Parameters
    ----------
    groups : sequence of TrainingGroup
        All are used for training.
    device : DeviceSpec
        Of the roofline in ``groups``.

    Raises
    ------
    ValueError
        See :func:`disco_fuse.cost_model.learned.log_ratios`.
    """
    config = GnnConfig() if config is None else config
    networks = [
        fit_network(groups, replace(config, seed=config.seed + k), device.launch_us)
        for k in range(config.num_networks)
    ]
    flat = np.concatenate([network.flat_weights() for network in networks])
    shape = [config.num_layers, config.hidden, config.num_heads, config.dense]
    return file_of(
        KIND,
        groups,
        {"shape": np.array(shape, np.int32), "weights": flat},
        device=device,
        environment=environment,
        training={"seed": config.seed},
    )


def fit_network(
    groups: Sequence[TrainingGroup], config: GnnConfig, launch_us: float
) -> GroupNetwork:
    """The trained network, in evaluation mode; torch's own generator is left as it was."""
    targets = torch.tensor(log_ratios(groups), dtype=torch.float32)
    counts = torch.tensor(weights(groups, launch_us), dtype=torch.float32)
    features = [item.features for item in groups]
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two threads on a busy machine take hundreds of times as long
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            network = GroupNetwork(
                config,
                np.concatenate([item.nodes for item in features]),
                np.stack([item.globals for item in features]),
            )
            _optimize(network, features, targets, counts, config)
    finally:
        torch.set_num_threads(num_threads)
    network.eval()
    return network


def _optimize(
    network: GroupNetwork,
    features: list[GroupFeatures],
    targets: torch.Tensor,
    counts: torch.Tensor,
    config: GnnConfig,
) -> None:
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    num_batches = -(-len(features) // config.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, config.num_epochs * num_batches
    )
    network.train()
    for _ in range(config.num_epochs):
        order = torch.randperm(len(features)).tolist()
        for begin in range(0, len(order), config.batch):
            chosen = order[begin : begin + config.batch]
            outputs = network(*batch_graph([features[i] for i in chosen]))
            errors = torch.nn.functional.huber_loss(
                outputs, targets[chosen], reduction="none", delta=HUBER_DELTA
            )
            loss = (counts[chosen] * errors).mean() / HUBER_DELTA
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
