"""The picture of an evaluation; the one file that imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")  # writes files, needs no display

from matplotlib.figure import Figure

from disco_fuse.dataset.learning import Evaluation
from disco_fuse.files import replacing

_ERROR_BINS = np.linspace(-0.5, 0.5, 51)


def plot_evaluations(evaluations: Mapping[str, Evaluation], path: Path, title: str) -> None:
    """Predicted against measured times, and the distribution of relative errors, per model.

    Parameters
    ----------
    evaluations : mapping of str to Evaluation
        By name of the model.
    path : Path
        The image; its ending tells the format.
    """
    figure = Figure(figsize=(4.2 * len(evaluations), 7.5), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, len(evaluations), squeeze=False)
    for column, (name, result) in enumerate(evaluations.items()):
        above, below = axes[0][column], axes[1][column]
        limits = (
            0.8 * float(min(result.measured_us.min(), result.predicted_us.min())),
            1.25 * float(max(result.measured_us.max(), result.predicted_us.max())),
        )
        above.loglog(limits, limits, color="black", linewidth=0.8)
        above.loglog(result.measured_us, result.predicted_us, ".", markersize=3, alpha=0.5)
        above.set(title=name, xlabel="measured us", ylabel="predicted us")
        errors = result.predicted_us / result.measured_us - 1
        below.hist(np.clip(errors, _ERROR_BINS[0], _ERROR_BINS[-1]), bins=_ERROR_BINS)
        below.axvspan(-0.14, 0.14, alpha=0.15)
        below.set(xlabel="relative error (band: 14%)", ylabel="groups")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120)
