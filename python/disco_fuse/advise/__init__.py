"""Advice for somebody's own PyTorch DDP job, from traces of its profiler or from the model alone.

    trace files -> trace -> messages, steps -> rank -> job (all ranks on one clock)
        -> line (AllReduce), contention -> replay of the step for other buckets -> advice

Reading traces needs neither torch nor tvm; only ``from_model`` imports a model.
"""

from __future__ import annotations

from disco_fuse.advise.advice import Advice, advise
from disco_fuse.advise.caps import CapResult
from disco_fuse.advise.job import Job, load_job

__all__ = ["Advice", "CapResult", "Job", "advise", "load_job"]
