"""The verified list is what has a converter, and what the tests of converters really run."""

from __future__ import annotations

import pytest
from converter_check import COVERED

from disco_fuse.frontend.torch.converters import CONVERTERS
from disco_fuse.frontend.torch.verified import RANDOM_OPERATORS, VERIFIED_OPERATORS


def test_every_verified_operator_has_a_converter() -> None:
    assert set(CONVERTERS) == VERIFIED_OPERATORS


def test_every_verified_operator_is_covered(request: pytest.FixtureRequest) -> None:
    """Runs after the files test_converters_*.py, of which every test must have run."""
    files = sorted(request.path.parent.glob("test_converters_*.py"))
    here = {item.path: item for item in request.session.items}
    if not set(files) <= set(here) or request.config.option.keyword:
        pytest.skip("needs all tests of converters")
    # test_dropout.py covers what draws random numbers.
    assert sorted(VERIFIED_OPERATORS - RANDOM_OPERATORS - COVERED) == []
