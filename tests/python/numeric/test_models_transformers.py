"""Unmodified models of the transformers library against eager PyTorch, weights at random.

Five steps of SGD with momentum: loss, buffers, weights and momentum of every parameter after each
(the momentum after the first step is the gradient itself). Models in float64 must agree to 1e-9;
those that compute part of their values in float32 whatever their dtype (their RMS norm, or their
loss) must agree better than torch agrees with itself between float32 and float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from eager_reference import relative_error, run_steps
from torch import nn

from disco_fuse.frontend import SGD
from disco_fuse.frontend.torch import to_torch_optimizer, training_step

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.models

STEPS = 5
SGD_STEP = SGD(lr=0.05, momentum=0.9)
Inputs = dict[str, torch.Tensor]
Case = tuple[nn.Module, Callable[[], Inputs]]


class Labelled(nn.Module):
    """Passes inputs by keyword, as these models want their labels, and returns loss and logits."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = self.model(**dict(zip(self.names, inputs, strict=True)))
        return result.loss, result.logits


def words(*shape: int) -> torch.Tensor:
    return torch.randint(3, 64, shape)


def text(**more: torch.Tensor) -> Inputs:
    """Two sentences, the second of them shorter; some labels do not count."""
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[1, 6:] = 0
    labels = words(2, 8).masked_fill(mask == 0, -100)
    return {"input_ids": words(2, 8), "attention_mask": mask, "labels": labels} | more


def image(size: int, batch: int = 2) -> Inputs:
    return {"pixel_values": torch.randn(batch, 3, size, size), "labels": torch.arange(batch) % 3}


SMALL = {"vocab_size": 64, "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert() -> Case:
    config = transformers.BertConfig(
        **SMALL, **NO_DROPOUT, num_attention_heads=2, max_position_embeddings=16
    )
    return transformers.BertForMaskedLM(config), text


def gpt2() -> Case:
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        use_cache=False,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), text


def llama() -> Case:
    config = transformers.LlamaConfig(**SMALL, **HEADS, use_cache=False)
    return transformers.LlamaForCausalLM(config), text


def mixtral() -> Case:
    config = transformers.MixtralConfig(
        **SMALL, **HEADS, num_local_experts=4, num_experts_per_tok=2, use_cache=False,
        experts_implementation="batched_mm",
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config), text


def distilbert() -> Case:
    config = transformers.DistilBertConfig(
        vocab_size=64, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=16,
        dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=3,
    )  # fmt: skip
    model = transformers.DistilBertForSequenceClassification(config)
    return model, lambda: text(labels=torch.tensor([0, 2]))


def t5() -> Case:
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, use_cache=False,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), lambda: text(labels=words(2, 6))


def bart() -> Case:
    config = transformers.BartConfig(
        vocab_size=64, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
        max_position_embeddings=16, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, use_cache=False,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config)
    return model, lambda: text(labels=words(2, 6))


def vit() -> Case:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=16, patch_size=4, num_labels=3, **NO_DROPOUT,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config), lambda: image(16)


def resnet() -> Case:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], num_labels=3
    )
    return transformers.ResNetForImageClassification(config), lambda: image(32, batch=4)


def convnext() -> Case:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[2, 2], num_stages=2, num_labels=3
    )
    return transformers.ConvNextForImageClassification(config), lambda: image(32)


def cast(inputs: Inputs, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs.values())


def eager_steps(
    model: nn.Module, batches: list[tuple[torch.Tensor, ...]]
) -> list[dict[str, torch.Tensor]]:
    """Loss, logits, parameters, buffers and momentum after each step of torch itself."""
    optimizer = to_torch_optimizer(SGD_STEP, [p for p in model.parameters() if p.requires_grad])
    history = []
    for batch in batches:
        optimizer.zero_grad()
        loss, logits = model(*batch)
        loss.backward()
        optimizer.step()
        values = {"loss": loss, "output_0": logits}
        values |= dict(model.named_parameters()) | dict(model.named_buffers())
        for name, parameter in model.named_parameters():
            if parameter in optimizer.state:
                state = optimizer.state[parameter]["momentum_buffer"]
                values[f"{name}.momentum_buffer"] = state
        history.append({name: value.detach().clone() for name, value in values.items()})
    return history


def worst_error(
    actual: list[Mapping[str, Any]], expected: list[dict[str, torch.Tensor]]
) -> tuple[float, str]:
    """The largest relative error of all tensors after all steps, and where it is.

    What is below a millionth of the loss is compared absolutely: in exact arithmetic, the gradient
    of an attention's key bias is zero.
    """
    errors = []
    for number, (results, wanted) in enumerate(zip(actual, expected, strict=True)):
        for name in results:
            if name.startswith(("optimizer.", "random", "rank")):  # learning rate and the like
                continue
            error = relative_error(results[name], wanted[name], name, floor=1e-6)
            errors.append((error, f"{name} after step {number}"))
    return max(errors)


def _like(values: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> Any:
    return {name: value.to(others[name].dtype) for name, value in values.items()}


def check(case: Callable[[], Case], *, float32_inside: bool) -> None:
    torch.manual_seed(0)
    model, make_inputs = case()
    inputs = [make_inputs() for _ in range(STEPS)]
    model = Labelled(model.double().train(), list(inputs[0]))
    batches = [cast(x, torch.float64) for x in inputs]
    step = training_step(model, batches[0], optimizer=SGD_STEP)
    trained = dict(model.named_parameters())
    assert set(step.gradient_names) | set(step.unused_parameters) == set(trained)
    assert step.unused_parameters == ()
    expected = eager_steps(copy.deepcopy(model), batches)
    error, where = worst_error(run_steps(step, batches), expected)
    tolerance = 1e-9
    if float32_inside:
        single = eager_steps(copy.deepcopy(model).float(), [cast(x, torch.float32) for x in inputs])
        tolerance = worst_error(
            [_like(*pair) for pair in zip(single, expected, strict=True)], expected
        )[0]
    assert np.isfinite(error)
    assert error <= tolerance, f"{where}: relative error {error}, allowed {tolerance}"


@pytest.mark.parametrize("case", [bert, distilbert, vit, resnet, convnext, bart])
def test_model_in_float64(case: Callable[[], Case]) -> None:
    check(case, float32_inside=False)


@pytest.mark.parametrize("case", [gpt2, llama, mixtral, t5])
def test_model_with_float32_inside(case: Callable[[], Case]) -> None:
    check(case, float32_inside=True)
