"""More architectures of the transformers library: each has something that the others have not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers_check import HEADS, NO_DROPOUT, SMALL, Case, Inputs, check, image, text, words

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.models


def deberta_v2() -> Case:
    """Attention to relative positions in both directions, by gather along an axis."""
    config = transformers.DebertaV2Config(
        **SMALL, **NO_DROPOUT, num_attention_heads=2, max_position_embeddings=16,
        relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
    )  # fmt: skip
    return transformers.DebertaV2ForMaskedLM(config), text


def albert() -> Case:
    """The same layer several times: one gradient per shared parameter."""
    config = transformers.AlbertConfig(
        **SMALL, **NO_DROPOUT, embedding_size=8, num_attention_heads=2, max_position_embeddings=16,
        classifier_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.AlbertForMaskedLM(config), text


def convbert() -> Case:
    """Convolution over words with kernels made from the words."""
    config = transformers.ConvBertConfig(
        **SMALL, **NO_DROPOUT, embedding_size=16, num_attention_heads=2, max_position_embeddings=16
    )
    return transformers.ConvBertForMaskedLM(config), text


def whisper() -> Case:
    """Strided convolution over sound in front of an encoder and decoder."""
    config = transformers.WhisperConfig(
        vocab_size=64, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, max_source_positions=12, max_target_positions=16, dropout=0.0,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, use_cache=False,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    return model, lambda: {"input_features": torch.randn(2, 8, 24), "labels": words(2, 6)}


def wav2vec2() -> Case:
    """Weight norm on a grouped convolution, group norm, sound as it is."""
    config = transformers.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        conv_dim=[8, 8], conv_stride=[5, 4], conv_kernel=[10, 4], num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, classifier_proj_size=8,
        num_labels=3, hidden_dropout=0.0, activation_dropout=0.0, attention_dropout=0.0,
        feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, apply_spec_augment=False,
    )  # fmt: skip
    model = transformers.Wav2Vec2ForSequenceClassification(config)
    return model, lambda: {"input_values": torch.randn(2, 400), "labels": torch.tensor([0, 2])}


def swin() -> Case:
    """Windows that are cut, rolled and masked; a table of relative positions."""
    config = transformers.SwinConfig(
        image_size=32, patch_size=2, embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=4,
        num_labels=3, drop_path_rate=0.0, **NO_DROPOUT,
    )  # fmt: skip
    return transformers.SwinForImageClassification(config), lambda: image(32)


def segformer() -> Case:
    """Attention to a shrunk image, and interpolation back to a label per pixel."""
    config = transformers.SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16], decoder_hidden_size=16,
        num_attention_heads=[1, 1, 2, 2], num_labels=3, drop_path_rate=0.0,
        classifier_dropout_prob=0.0, **NO_DROPOUT,
    )  # fmt: skip

    def inputs() -> Inputs:
        return image(64) | {"labels": torch.randint(0, 3, (2, 64, 64))}

    return transformers.SegformerForSemanticSegmentation(config), inputs


def regnet() -> Case:
    """Grouped convolutions with a gate per channel."""
    config = transformers.RegNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4, layer_type="y",
        num_labels=3,
    )  # fmt: skip
    return transformers.RegNetForImageClassification(config), lambda: image(32, batch=4)


def clip() -> Case:
    """Two towers, the features of which are compared pair by pair."""
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    tower["num_attention_heads"] = 2
    words_of = {"vocab_size": 64, "max_position_embeddings": 16, "eos_token_id": 2}
    config = transformers.CLIPConfig(
        text_config=tower | words_of | {"bos_token_id": 1, "pad_token_id": 0},
        vision_config=tower | {"image_size": 16, "patch_size": 4}, projection_dim=8,
    )  # fmt: skip

    def inputs() -> Inputs:
        both = text() | image(16)
        return {name: value for name, value in both.items() if name != "labels"}

    return transformers.CLIPModel(config), inputs


def qwen3() -> Case:
    """RMS norm of every head's queries and keys."""
    config = transformers.Qwen3Config(**SMALL, **HEADS, head_dim=8, use_cache=False)
    return transformers.Qwen3ForCausalLM(config), text


def gemma2() -> Case:
    """Soft caps on scores, attention to a window in every other layer."""
    config = transformers.Gemma2Config(
        **SMALL, **HEADS, head_dim=8, sliding_window=4, use_cache=False, pad_token_id=0
    )
    return transformers.Gemma2ForCausalLM(config), text


def mamba() -> Case:
    """A selective scan, step by step, behind a causal convolution."""
    config = transformers.MambaConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4, use_cache=False,
        pad_token_id=0,
    )  # fmt: skip
    return transformers.MambaForCausalLM(config), text


@pytest.mark.parametrize(
    "case", [deberta_v2, albert, convbert, whisper, wav2vec2, swin, segformer, regnet]
)
def test_model_in_float64(case: Callable[[], Case]) -> None:
    unused = ("wav2vec2.masked_spec_embed",) if case is wav2vec2 else ()
    check(case, float32_inside=False, steps=3, unused=unused)


@pytest.mark.parametrize("case", [qwen3, gemma2, mamba])
def test_model_with_float32_inside(case: Callable[[], Case]) -> None:
    check(case, float32_inside=True, steps=3)


def test_model_of_text_and_images() -> None:
    check(clip, float32_inside=False, steps=3, return_loss=True)
