"""Messages that are to outlast the work beside them."""

from __future__ import annotations

import pytest

from disco_fuse.runtime import loopback, outlasting


@pytest.mark.parametrize(
    ("us_per_byte", "expected"), [(1.0, [100]), (0.1, [100, 1500]), (0.8, [100, 187])]
)
def test_sizes_grow_until_they_do(us_per_byte: float, expected: list[int]) -> None:
    """Work of 100 us beside messages; what falls short is made half as long again as it seems."""
    asked = []

    def measure(num_bytes: int) -> list[tuple[float, ...]]:
        asked.append(num_bytes)
        return [(7.0, 100.0, us_per_byte * num_bytes + 1), (7.0, 50.0, 1e9)]

    rows = outlasting(loopback(), 100, measure)
    assert len(asked) == len(expected)
    assert asked == pytest.approx(expected, rel=0.1)
    assert all(arrived > work for _, work, arrived in rows)
