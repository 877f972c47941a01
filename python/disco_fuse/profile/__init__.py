"""Measures this machine: kernels, launch overhead, memory bandwidth, AllReduce."""

from __future__ import annotations

from disco_fuse.profile.database import ProfileDatabase, Sample
from disco_fuse.profile.device import measure_device
from disco_fuse.profile.kernels import profile_ops
from disco_fuse.profile.matmuls import choose_generated

__all__ = ["ProfileDatabase", "Sample", "choose_generated", "measure_device", "profile_ops"]
