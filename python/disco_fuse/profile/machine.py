"""Everything that is measured of one machine and link, in one database: only what is new.

device      launch, arithmetic, copies           profile_device
kernels     library or generated, then every op  profile_model (one model after the other)
link        AllReduce, contention by pattern     messages.py, contention.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from disco_fuse.config import DeviceSpec
from disco_fuse.extract import Extraction, extract
from disco_fuse.kernels.generate import GenerateKernels
from disco_fuse.profile.database import ProfileDatabase, Sample
from disco_fuse.profile.device import measure_device
from disco_fuse.profile.kernels import Progress, profile_key, profile_ops, profiled_samples
from disco_fuse.profile.matmuls import choose_generated

# What of a device is kept, as a time: microseconds of a launch, of another nest, of 1e9 operations
# and of 1e9 bytes.
_DEVICE_TIMES: dict[str, Callable[[DeviceSpec], float]] = {
    "device: launch": lambda device: device.launch_us,
    "device: nest": lambda device: device.nest_us,
    "device: 1e9 operations": lambda device: 1e6 / device.peak_gflops,
    "device: 1e9 bytes": lambda device: 1e6 / device.bandwidth_gbps,
}
_NUM_DEVICE_RUNS = 5
# A kernel whose p90 is further than that above its p10 says little by its median.
_VARIES_ABOVE = 1.5


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelProfile:
    """Kernels of one model.

    Attributes
    ----------
    mod : tvm.IRModule
        With generated kernels where those are faster than the library.
    extraction : Extraction
        Of ``mod``.
    op_times_us : float64[num_ops]
        Medians of each op alone, see :func:`disco_fuse.profile.kernels.profile_ops`.
    num_kernels, num_new : int
        Distinct kernels and library calls, and how many of them were measured now.
    varying : tuple of str
        Signatures of those whose times vary by more than half.
    """

    mod: tvm.IRModule
    extraction: Extraction
    op_times_us: Any
    num_kernels: int
    num_new: int
    varying: tuple[str, ...]


def profile_device(target: tvm.target.Target, database: ProfileDatabase) -> tuple[DeviceSpec, bool]:
    """The device of :func:`~disco_fuse.profile.device.measure_device`: medians of several runs.

    Returns
    -------
    device : DeviceSpec
    is_new : bool
        Whether it was measured now.
    """
    environment = profile_key(target)
    known = database.load(environment, _DEVICE_TIMES)
    is_new = len(known) < len(_DEVICE_TIMES)
    if is_new:
        runs = [measure_device(target) for _ in range(_NUM_DEVICE_RUNS)]
        known = {
            name: Sample.of([time_of(device) for device in runs])
            for name, time_of in _DEVICE_TIMES.items()
        }
        database.store(environment, known)
    launch, nest, operations, copied = (known[name].median_us for name in _DEVICE_TIMES)
    device = DeviceSpec(
        name=str(target),
        peak_gflops=1e6 / operations,
        bandwidth_gbps=1e6 / copied,
        launch_us=launch,
        nest_us=nest,
    )
    return device, is_new


def profile_model(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    database: ProfileDatabase,
    progress: Progress | None = None,
) -> ModelProfile:
    """Choose between library and generated kernels, then time every distinct op that is new.

    Parameters
    ----------
    mod : tvm.IRModule
        Lowered, with its AllReduces; the libraries that it calls are loaded.
    progress : callable, optional
        Called as ``progress(done, total, name)``.
    """
    chosen = choose_generated(mod, target, database, progress)
    mod = GenerateKernels(chosen, target)(mod)
    extraction = extract(mod)
    before = profiled_samples(extraction, target, database)
    times_us = profile_ops(mod, extraction, target, database, progress)
    after = profiled_samples(extraction, target, database)
    return ModelProfile(
        mod=mod,
        extraction=extraction,
        op_times_us=np.asarray(times_us),
        num_kernels=len(after),
        num_new=len(after) - len(before),
        varying=tuple(
            name for name, item in after.items() if item.p90_us > _VARIES_ABOVE * item.p10_us
        ),
    )
