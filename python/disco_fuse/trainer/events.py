"""What happens in a training, as JSON lines that logs, dashboards and tests read.

Every event has ``event``, its kind, and ``step``, how many are done:

    start        rank, world_size, plan, plan_digest, num_kernels, restored (a checkpoint or null)
    step         loss (the mean of the ranks), losses, seconds; of this rank alone: exposed_us, in
                 which it waited for AllReduces, and busy_us, the rest of its step
    skip         detail: which rank's loss was not finite
    checkpoint   failure: null or why
    evaluation   the figures of the callback, means of the ranks
    end          reason, detail
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

Event = dict[str, Any]
"""``event`` (its kind), ``step`` (steps done), and what belongs to the kind."""
OnEvent = Callable[[Event], None]


class EventLog:
    """Appends events to a file, each at once, so that a rank that dies leaves its last ones.

    Parameters
    ----------
    path : Path
        Its folder is made if needed. A resumed training goes on in the same file.

    Attributes
    ----------
    failure : str or None
        Why the events from some point on are missing: a disk that is full ends the log, and not
        the work that it is about.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.failure: str | None = None

    def __call__(self, event: Event) -> None:
        """Write one line; numbers that are not finite become words, since JSON has none."""
        if self.failure is not None:
            return
        line = json.dumps(_finite(event), allow_nan=False) + "\n"
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            self.failure = f"{self._path}: {error.strerror}: later events are missing"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
