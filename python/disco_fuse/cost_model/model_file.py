"""Files of learned cost models: one npz archive with a JSON header and arrays."""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from disco_fuse.cost_model.features import FEATURE_VERSION
from disco_fuse.device import DeviceSpec
from disco_fuse.files import replacing

FORMAT = 1
"""Version of the header; files of another version are refused."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelFile:
    """What a file holds.

    Attributes
    ----------
    kind : str
        "xgboost" or "gnn".
    device : DeviceSpec
        Of the roofline that the model corrects.
    environment : str
        What the training data was measured on.
    training : dict
        How it was trained, for people: number of groups, models, seed.
    arrays : dict of str to ndarray
        What the model computes with.
    """

    kind: str
    device: DeviceSpec
    environment: str
    training: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]

    def save(self, path: Path) -> None:
        """Write the file; equal models make equal files."""
        header = {
            "format": FORMAT,
            "feature_version": FEATURE_VERSION,
            "kind": self.kind,
            "device": asdict(self.device),
            "environment": self.environment,
            "training": self.training,
        }
        with replacing(path) as temporary, temporary.open("wb") as file:
            arrays: dict[str, Any] = {"header": np.array(json.dumps(header)), **self.arrays}
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path, kind: str) -> ModelFile:
        """Read a file of a model of ``kind``.

        Raises
        ------
        FileNotFoundError
            There is none.
        ValueError
            The file is damaged, of another kind, or was made for other features.
        """
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            header = json.loads(str(arrays.pop("header")))
            found = (header["format"], header["feature_version"], header["kind"])
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is not the file of a cost model: {error}") from error
        for what, value, allowed in zip(
            ("format", "feature version", "kind"),
            found,
            (FORMAT, FEATURE_VERSION, kind),
            strict=True,
        ):
            if value != allowed:
                raise ValueError(f"{path} has {what} {value!r}; this release reads {allowed!r}")
        return cls(
            kind=kind,
            device=device_from_json(header["device"]),
            environment=header["environment"],
            training=header["training"],
            arrays=arrays,
        )


def device_from_json(fields: dict[str, Any]) -> DeviceSpec:
    """The device whose ``asdict`` went through JSON.

    Raises
    ------
    ValueError
        Naming the field that is missing, unknown or wrong.
    """
    rows = [dict(row) for row in fields.get("efficiency", [])]
    efficiency = {row.pop("op_class"): row for row in rows}
    return DeviceSpec.from_table({**fields, "efficiency": efficiency})
