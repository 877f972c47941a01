"""What the paper reports for cluster A (Yi et al., IEEE TPDS 2022, Table 1)."""

from __future__ import annotations

# Model -> gain of DisCo over its best baseline, and of full overlap, percent.
GAINS_PERCENT: dict[str, tuple[float, float]] = {
    "vgg19": (8.6, 18.9),
    "resnet50": (12.5, 28.5),
    "transformer": (26.7, 34.7),
    "rnnlm": (5.1, 10.9),
    "bert": (18.5, 27.6),
    "reformer": (13.4, 25.4),
}

MODELS = tuple(GAINS_PERCENT)
