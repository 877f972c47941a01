"""The zoo: names, sizes, and weights and batches that are the same on every call."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("torch", reason="the zoo's models are torch models")

import torch
import torch.nn.functional as F  # noqa: N812 - the name used everywhere

from disco_fuse import zoo
from disco_fuse.zoo.attention import merge_heads, split_heads
from disco_fuse.zoo.bert import Bert
from disco_fuse.zoo.gpt2 import GPT2
from disco_fuse.zoo.reformer import LSHAttention, Reformer
from disco_fuse.zoo.resnet import ResNet
from disco_fuse.zoo.rnnlm import RNNLM
from disco_fuse.zoo.transformer import Transformer, sinusoids
from disco_fuse.zoo.vgg import VGG, WideVGG
from disco_fuse.zoo.vit import ViT


def test_names() -> None:
    full = ("vgg19", "resnet50", "transformer", "rnnlm", "bert", "reformer", "gpt2", "vit")
    assert zoo.models() == full + tuple(f"{name}_small" for name in full)


# Numbers of parameters as published (ViT-S, GPT-2, ResNet50, VGG19) or counted by hand.
@pytest.mark.parametrize(
    ("model", "count"),
    [
        (VGG, 143_667_240),
        (WideVGG, 330_836_008),
        (ResNet, 25_557_032),
        (Transformer, 50_000 * 512 + 6 * (3_152_384 + 4_204_032)),
        (RNNLM, 2 * 32_000 * 512 + 32_000 + 2 * (8 * 512 * 512 + 4 * 512)),
        (Bert, 109_514_298),
        (Reformer, 32_000 * 768 + 32_000 + 64 * 256 + 1024 + 3 * 460_800),
        (GPT2, 124_439_808),
        (ViT, 22_050_664),
    ],
)
def test_full_size(model: type[torch.nn.Module], count: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in model().parameters()) == count


@pytest.mark.parametrize("name", [name for name in zoo.models() if name.endswith("_small")])
def test_same_weights_and_batches_on_every_call(name: str) -> None:
    state = torch.get_rng_state()
    first, second = zoo.workload(name), zoo.workload(name)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.name == name
    assert first.model.training
    weights = second.model.state_dict()
    for key, value in first.model.state_dict().items():
        assert torch.equal(value, weights[key])
    batches = [
        [*itertools.islice(workload.batches(rank, 2), 2)]
        for workload, rank in ((first, 0), (second, 0), (first, 1))
    ]
    for a, b in zip(*batches[:2], strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    for other in (batches[0][1], batches[2][0]):  # another step, another rank
        assert not np.array_equal(batches[0][0][-1], other[-1])
    loss = first.loss(first.model(*first.example_tensors()[:-1]), first.example_tensors()[-1])
    assert 1.0 < float(loss.detach()) < 8.0  # about log(number of classes)


def test_batches_of_full_size() -> None:
    shapes = {
        name: tuple(part.shape for part in zoo.workload(name).example_batch())
        for name in ("resnet50", "rnnlm", "reformer", "vit")
    }
    assert shapes == {
        "resnet50": ((32, 3, 224, 224), (32,)),
        "rnnlm": ((128, 128), (128, 128)),
        "reformer": ((128, 64), (128, 64)),
        "vit": ((32, 3, 224, 224), (32,)),
    }


def test_sinusoids() -> None:
    table = sinusoids(5, 4).double().numpy()
    expected = [
        [f(t / 10_000 ** (i / 4)) for i in (0, 2) for f in (np.sin, np.cos)] for t in range(5)
    ]
    np.testing.assert_allclose(table, expected, atol=1e-6)


def test_hash_attention_sorts_by_bucket_and_position() -> None:
    attention = LSHAttention(8, 2, chunk=4, num_hashes=3, num_buckets=6).double()
    q = torch.randn(2, 2, 16, 4, dtype=torch.float64)
    rotated = torch.einsum("bhte,rek->bhrtk", q, attention.rotations)
    buckets = attention._buckets(q)
    assert torch.equal(buckets, torch.cat([rotated, -rotated], -1).argmax(-1))
    order, rank = attention._sort(buckets)
    assert torch.equal(order, torch.argsort(buckets, stable=True))
    assert torch.equal(rank, order.argsort(-1))


def test_hash_attention_of_two_chunks_sees_everything_before() -> None:
    attention = LSHAttention(8, 2, chunk=8, num_hashes=3, num_buckets=4).double()
    x = torch.randn(2, 16, 8, dtype=torch.float64)
    q, v = (split_heads(part(x), 2) for part in (attention.query, attention.value))
    scores = q @ F.normalize(q, dim=-1).transpose(-1, -2) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.eye(16, dtype=torch.bool), -1e5)
    scores = scores.masked_fill(torch.ones(16, 16, dtype=torch.bool).triu(1), -1e9)
    expected = attention.out(merge_heads(scores.softmax(-1) @ v))
    torch.testing.assert_close(attention(x), expected, rtol=1e-5, atol=1e-5)


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match="no model 'vgg' in the zoo; allowed: vgg19, resnet50"):
        zoo.workload("vgg")
