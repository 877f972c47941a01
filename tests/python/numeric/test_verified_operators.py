"""The verified list is what has a converter, and what the tests of converters really run."""

from __future__ import annotations

import pytest
from converter_coverage import COVERED, all_converters_run, uncovered_operators

from disco_fuse.frontend.torch.converters import CONVERTERS
from disco_fuse.frontend.torch.verified import VERIFIED_OPERATORS


def test_every_verified_operator_has_a_converter() -> None:
    assert set(CONVERTERS) == VERIFIED_OPERATORS


def test_every_verified_operator_is_covered(request: pytest.FixtureRequest) -> None:
    """Runs after the files test_converters_*.py, of which every test must have run."""
    if hasattr(request.config, "workerinput"):
        return  # several processes share the files: conftest.py looks when all have ended
    if not all_converters_run(request.session):
        pytest.skip("needs all tests of converters")
    assert uncovered_operators(COVERED) == []
