"""Which operators the tests of converters have run, in one process or in several."""

from __future__ import annotations

from pathlib import Path

import pytest

# Filled by converter_check.py.
COVERED: set[str] = set()


def all_converters_run(session: pytest.Session) -> bool:
    """Whether every file test_converters_*.py is in the session, and no test was deselected."""
    files = set(Path(__file__).parent.glob("test_converters_*.py"))
    return files <= {item.path for item in session.items} and not session.config.option.keyword


def uncovered_operators(covered: set[str]) -> list[str]:
    """Verified operators that no test has run; test_dropout.py covers what draws random numbers."""
    from disco_fuse.frontend.torch.verified import RANDOM_OPERATORS, VERIFIED_OPERATORS

    return sorted(VERIFIED_OPERATORS - RANDOM_OPERATORS - covered)
