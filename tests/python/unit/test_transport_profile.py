"""From what messages cost beside compute to the curve and the factor that the simulator takes."""

from __future__ import annotations

import pytest

from disco_fuse.profile.allreduce import TransportProfile, profile_allreduce
from disco_fuse.runtime import MessageCost

SIZES = (4096, 65536, 1 << 20, 1 << 24)


def costs(flight_us: list[float], stolen_us: list[float]) -> list[MessageCost]:
    rows = zip(SIZES, flight_us, stolen_us, strict=True)
    return [MessageCost(num_bytes=n, flight_us=f, stolen_us=s) for n, f, s in rows]


def test_a_transport_that_steals_half_of_a_core_has_contention_two() -> None:
    flight = [100 + 1e-3 * size for size in SIZES]
    profile = TransportProfile.fit(costs(flight, [time / 2 for time in flight]))
    assert profile.contention == pytest.approx(2.0)
    for size, time in zip(SIZES, flight, strict=True):
        assert profile.allreduce.time_us(size) == pytest.approx(time, rel=1e-3)


def test_compute_loses_what_was_stolen_where_a_size_steals_more_than_others() -> None:
    flight = [20.0, 200.0, 1000.0, 15000.0]
    stolen = [40.0, 80.0, 400.0, 6000.0]  # of the larger half, 40%; of the smallest, 200%
    profile = TransportProfile.fit(costs(flight, stolen))
    assert profile.contention == pytest.approx(1 / (1 - 0.4))
    lost = profile.allreduce.time_us(SIZES[0]) * (1 - 1 / profile.contention)
    assert lost == pytest.approx(40.0, rel=0.15)  # the curve is a fit


def test_noise_of_large_messages_does_not_make_them_longer() -> None:
    flight = [20.0, 200.0, 1000.0, 16000.0]
    stolen = [2.0, 20.0, 300.0, 1600.0]  # of the larger half 30% and 10%
    profile = TransportProfile.fit(costs(flight, stolen))
    assert profile.contention == pytest.approx(1 / (1 - 0.2))
    assert profile.allreduce.time_us(SIZES[2]) == pytest.approx(1000.0, rel=0.1)  # not 1500


def test_a_transport_with_a_core_of_its_own_costs_compute_nothing() -> None:
    profile = TransportProfile.fit(costs([20.0, 60.0, 800.0, 12000.0], [0.0] * 4))
    assert profile.contention == 1.0
    assert profile.allreduce.time_us(SIZES[3]) == pytest.approx(12000.0, rel=0.01)


def test_a_transport_that_does_not_overlap_keeps_a_finite_contention() -> None:
    flight = [20.0, 60.0, 800.0, 12000.0]
    profile = TransportProfile.fit(costs(flight, [2 * time for time in flight]))
    assert profile.contention == pytest.approx(10.0)
    lost = profile.allreduce.time_us(SIZES[3]) * (1 - 1 / profile.contention)
    assert lost == pytest.approx(24000.0, rel=0.01)


def test_one_rank_sends_nothing() -> None:
    profile = profile_allreduce(1)
    assert (profile.allreduce.time_us(1 << 20), profile.contention) == (0.0, 1.0)
