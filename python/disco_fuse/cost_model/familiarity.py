"""Tells how far a fusion group is from everything that a learned model was trained on.

distance to the nearest of a few training groups, in units of what is usual among them:
0 ............ 1 .............................. >
seen the like    outside: the prediction is a guess, measure the kernel
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from disco_fuse.cost_model.features import GroupFeatures

# Enough for the shape of the cloud, few enough for the model file and the search.
_NUM_PROTOTYPES = 256
_USUAL = 0.99


@dataclass(frozen=True, kw_only=True, eq=False)
class Familiarity:
    """Prototypes of the training groups in the space of standardised global features.

    Attributes
    ----------
    mean, scale : float32[num_globals]
    prototypes : float32[num_prototypes, num_globals]
        Standardised.
    usual : float
        The distance that 99% of training groups have at most to their nearest other prototype.
    """

    mean: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]
    prototypes: npt.NDArray[np.float32]
    usual: float

    @classmethod
    def of(cls, features: Sequence[GroupFeatures]) -> Familiarity:
        """Of the groups that a model is trained on.

        Prototypes are chosen farthest first (Gonzalez, "Clustering to minimize the maximum
        intercluster distance", 1985), so that rare groups are among them.
        """
        rows = np.stack([item.globals for item in features])
        mean, scale = rows.mean(0), rows.std(0)
        # A column that never changes has no scale of its own: any change of it is unusual.
        scale = np.where(scale > 0, scale, np.float32(0.1)).astype(np.float32)
        points = (rows - mean) / scale
        chosen, nearest = [0], np.linalg.norm(points - points[0], axis=1)
        while len(chosen) < min(_NUM_PROTOTYPES, len(points)) and nearest.max() > 0:
            chosen.append(int(nearest.argmax()))
            nearest = np.minimum(nearest, np.linalg.norm(points - points[chosen[-1]], axis=1))
        prototypes = points[chosen]
        others = _distances(points, prototypes)
        others[chosen, np.arange(len(chosen))] = np.inf
        least = others.min(1)
        finite = least[np.isfinite(least)]
        usual = float(np.quantile(finite, _USUAL)) if len(finite) else 0.0
        return cls(mean=mean, scale=scale, prototypes=prototypes, usual=max(usual, 1e-6))

    def distances(self, features: Sequence[GroupFeatures]) -> npt.NDArray[np.float64]:
        """Distance of each group, where 1 is what is usual among training groups.

        Returns
        -------
        float64[len(features)]
        """
        if not features:
            return np.zeros(0)
        points = (np.stack([item.globals for item in features]) - self.mean) / self.scale
        result: npt.NDArray[np.float64] = _distances(points, self.prototypes).min(1) / self.usual
        return result

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """For a model file."""
        return {
            "familiarity_mean": self.mean,
            "familiarity_scale": self.scale,
            "familiarity_prototypes": self.prototypes.astype(np.float32),
            "familiarity_usual": np.array(self.usual),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> Familiarity:
        """Inverse of :meth:`arrays`; KeyError where one is missing."""
        return cls(
            mean=arrays["familiarity_mean"],
            scale=arrays["familiarity_scale"],
            prototypes=arrays["familiarity_prototypes"],
            usual=float(arrays["familiarity_usual"]),
        )


def _distances(points: Any, prototypes: Any) -> npt.NDArray[np.float64]:
    """float64[points, prototypes], by the binomial formula, which needs no third dimension."""
    points, prototypes = np.asarray(points, np.float64), np.asarray(prototypes, np.float64)
    squares = (points**2).sum(1)[:, None] + (prototypes**2).sum(1) - 2 * points @ prototypes.T
    result: npt.NDArray[np.float64] = np.sqrt(np.maximum(squares, 0.0))
    return result
