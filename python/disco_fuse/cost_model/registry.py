"""Cost models by name, and which one ``auto`` takes.

gnn       where its file is, and DGL, with which it can be trained further on what is measured
xgboost   else, where its file and xgboost are
roofline  else
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from disco_fuse.cost_model.base import CostModel, Times
from disco_fuse.cost_model.gnn import GnnCostModel
from disco_fuse.cost_model.learned import LearnedCostModel
from disco_fuse.cost_model.roofline import RooflineCostModel
from disco_fuse.device import DeviceSpec

NAMES = ("roofline", "xgboost", "gnn", "auto")
SHIPPED = Path(__file__).parent / "pretrained"
"""The folder of the models that come with the package."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ChosenModel:
    """A cost model, and why it is this one.

    Attributes
    ----------
    model : CostModel
    reason : str
        A sentence for the user; with ``auto`` it names what was passed over, and why.
    """

    model: CostModel
    reason: str


def model_path(folder: Path, kind: str) -> Path:
    """Where the model of ``kind`` lies in a folder of models."""
    return folder / f"{kind}.npz"


def choose_cost_model(
    name: str,
    device: DeviceSpec,
    op_times_us: Times | None = None,
    folder: Path = SHIPPED,
    *,
    environment: str | None = None,
) -> ChosenModel:
    """The cost model called ``name``.

    Parameters
    ----------
    name : str
        One of ``NAMES``. With "auto" a model whose file or package is missing or broken is passed
        over; a damaged file, or one made for other features, is an error all the same.
    device : DeviceSpec
        Of the roofline; learned models take only its launch time, the rest is in their file.
    op_times_us : float64[num_ops], optional
        Measured time of each op alone, launch not included.
    folder : Path
        Where ``xgboost.npz`` and ``gnn.npz`` are, as ``disco-fuse train-cost-model`` writes them.
    environment : str, optional
        What is priced runs there (see ``profile.kernels.environment_key``); the reason says so
        where a learned model was trained on something else.

    Raises
    ------
    ValueError
        There is no such model, or its file is damaged or of another version, or a learned model is
        asked for by name for a GPU: they learn from kernels on a processor.
    FileNotFoundError
        The model asked for by name has no file in ``folder``.
    ImportError
        The model asked for by name needs a package that is not there or does not work.
    """
    if name not in NAMES:
        raise ValueError(f"no cost model {name!r}; allowed: {', '.join(NAMES)}")
    if name == "roofline":
        return ChosenModel(
            model=RooflineCostModel(device, op_times_us), reason="roofline: asked for"
        )
    loaders: dict[str, Callable[[], LearnedCostModel]] = {
        "gnn": lambda: _load_gnn(folder, device, op_times_us),
        "xgboost": lambda: _load_boosted(folder, device, op_times_us),
    }
    if name != "auto":
        if device.library_convolutions:
            raise ValueError(f"cost model {name!r} is for processors; {device.name} needs roofline")
        return _learned(loaders[name](), f"{name}: asked for", environment)
    passed_over: list[str] = []
    for kind, module in (("gnn", "gnn_training"), ("xgboost", "boosted")):
        missing = _missing(folder, kind, module)
        if device.library_convolutions:
            missing = f"{device.name} is no processor"
        if not missing:
            reason = "; ".join([f"{kind}: the first of gnn, xgboost, roofline", *passed_over])
            return _learned(loaders[kind](), reason, environment)
        passed_over.append(f"no {kind}: {missing}")
    reason = "; ".join(["roofline: nothing was learned", *passed_over])
    return ChosenModel(model=RooflineCostModel(device, op_times_us), reason=reason)


def _learned(model: LearnedCostModel, reason: str, environment: str | None) -> ChosenModel:
    if environment is not None and model.environment != environment:
        reason += f"; it was trained on '{model.environment}', this is '{environment}'"
    return ChosenModel(model=model, reason=reason)


def _missing(folder: Path, kind: str, module: str) -> str:
    """Why a model cannot be loaded here, "" if it can."""
    path = model_path(folder, kind)
    if not path.is_file():
        return f"there is no {path}"
    try:
        importlib.import_module(f"disco_fuse.cost_model.{module}")
    except Exception as error:  # a broken package, or one too old for its torch, raises anything
        return f"{type(error).__name__}: {error}"
    return ""


def _load_gnn(folder: Path, device: DeviceSpec, op_times_us: Times | None) -> LearnedCostModel:
    return GnnCostModel.load(model_path(folder, "gnn"), device.launch_us, op_times_us)


def _load_boosted(folder: Path, device: DeviceSpec, op_times_us: Times | None) -> LearnedCostModel:
    # Needs xgboost, which nothing else does.
    from disco_fuse.cost_model.boosted import BoostedCostModel

    return BoostedCostModel.load(model_path(folder, "xgboost"), device.launch_us, op_times_us)
