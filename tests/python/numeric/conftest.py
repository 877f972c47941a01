"""Where pytest-xdist spreads the files over processes, operators are counted when all have ended.

The process that starts the others fails the session if a verified operator was run by none of them
(test_verified_operators.py does that where there is one process).
"""

from __future__ import annotations

from typing import Any

import pytest
from converter_coverage import COVERED, all_converters_run, uncovered_operators

_FROM_WORKERS: list[dict[str, Any]] = []
_MISSING: list[str] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist has ended: keep what it says."""
    output = getattr(node, "workeroutput", None)
    if output is not None and "covered_operators" in output:
        _FROM_WORKERS.append(output)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that started this one, or judge what the started ones told."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["covered_operators"] = sorted(COVERED)
        output["all_converters_run"] = all_converters_run(session)
    elif _FROM_WORKERS and all(each["all_converters_run"] for each in _FROM_WORKERS):
        covered = {name for each in _FROM_WORKERS for name in each["covered_operators"]}
        _MISSING.extend(uncovered_operators(covered))
        if _MISSING:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the operators on which the session failed."""
    if _MISSING:
        terminalreporter.write_line(
            f"FAILED: verified operators that no test has run: {', '.join(_MISSING)}", red=True
        )
