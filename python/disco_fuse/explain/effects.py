"""What single edits would do to a strategy, by the simulator of the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from disco_fuse import _ffi
from disco_fuse.config import EDIT_KINDS, FusionLimits
from disco_fuse.simulate import native_cluster
from disco_fuse.strategy import Edit, native_limits
from disco_fuse.tuning.choice import Choice


@dataclass(frozen=True, kw_only=True)
class EditEffect:
    """One edit, made alone.

    Attributes
    ----------
    edit : Edit
    change_us : float
        By how much the list-scheduled step gets longer; negative if it gets shorter, 0 if the edit
        is illegal.
    reason : str
        The rule that forbids the edit, "" if none does.
    """

    edit: Edit
    change_us: float
    reason: str


def edit_effects(
    choice: Choice, edits: Sequence[Edit], limits: FusionLimits | None = None
) -> list[EditEffect]:
    """What each of ``edits`` alone would change, in their order; see ``src/search/edit_effects.h``.

    Raises
    ------
    ValueError
        If the cost model gives no valid time.
    """
    graph = choice.problem.graph
    rows = [(EDIT_KINDS.index(edit.kind), edit.producer, edit.consumer) for edit in edits]
    makespans_ns, reasons = _ffi.function("search.edit_effects")(
        graph._handle,
        native_limits(limits),
        choice.cost_model._native(graph),
        native_cluster(choice.cluster),
        choice.strategy.handle_for(graph),
        np.array(rows, np.int32).reshape(-1),
    )
    base_ns, *changed_ns = _ffi.array(makespans_ns).tolist()
    return [
        EditEffect(
            edit=edit,
            change_us=0.0 if reason else (changed - base_ns) / 1000,
            reason=str(reason),
        )
        for edit, changed, reason in zip(edits, changed_ns, reasons, strict=True)
    ]
