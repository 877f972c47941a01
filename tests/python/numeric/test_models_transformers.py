"""Unmodified models of the transformers library against eager PyTorch, weights at random."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers_check import HEADS, NO_DROPOUT, SMALL, Case, check, image, text, words

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.models


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


@pytest.mark.parametrize("case", [bert, distilbert, vit, resnet, convnext, bart])
def test_model_in_float64(case: Callable[[], Case]) -> None:
    check(case, float32_inside=False)


@pytest.mark.parametrize("case", [gpt2, llama, mixtral, t5])
def test_model_with_float32_inside(case: Callable[[], Case]) -> None:
    check(case, float32_inside=True)
