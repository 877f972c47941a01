"""Measures this machine: kernels, launch overhead, memory bandwidth, AllReduce."""

from __future__ import annotations

from disco_fuse.profile.database import ProfileDatabase, Sample
from disco_fuse.profile.device import measure_device
from disco_fuse.profile.kernels import profile_ops

__all__ = ["ProfileDatabase", "Sample", "measure_device", "profile_ops"]
