"""Naming what is to be trained."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="workloads are torch models")

from disco_fuse.workload import call_function, load_workload

QUICKSTART = Path(__file__).parents[3] / "tutorials" / "quickstart.py"


def test_workload_of_a_file() -> None:
    workload = load_workload(f"{QUICKSTART}:byte_gpt")
    tokens, targets = workload.example_batch()
    assert workload.name == "byte_gpt"
    assert tokens.shape == targets.shape == (8, 128)
    assert (tokens[0, 1:] == targets[0, :-1]).all()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("quickstart", "names no function; allowed"),
        (":f", "names no function; allowed"),
        ("no_such_module_:f", "no module 'no_such_module_'"),
        ("/nowhere/x.py:f", "no file /nowhere/x.py"),
        (f"{QUICKSTART}:nothing", "has no function 'nothing'"),
        ("os:getcwd", "returned str, not a Workload"),
    ],
)
def test_bad_references(reference: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_workload(reference)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nx / 0\n", "the import of FILE raised ZeroDivisionError at FILE, line 2: division"),
        ("raise SystemExit(3)\n", "the import of FILE raised SystemExit at FILE, line 1: 3"),
        ("def f(:\n", r"the import of FILE raised SyntaxError: .*\(wrong.py, line 1\)"),
        (
            "import no_such_package_",
            "the import of FILE raised ModuleNotFoundError at FILE, line 1",
        ),
        ("def f():\n    return dict()['a']", "FILE:f raised KeyError at FILE, line 2: 'a'"),
    ],
)
def test_code_that_raises(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(text)
    for _ in range(2):  # what has failed is not taken for loaded
        with pytest.raises(ValueError, match=message.replace("FILE", str(file))):
            load_workload(f"{file}:f")


def test_a_module_that_needs_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_more.py").write_text("import no_such_package_\n")
    with pytest.raises(ValueError, match="the import of needs_more raised ModuleNotFoundError at"):
        load_workload("needs_more:f")
    with pytest.raises(ValueError, match=r"no module 'nobody_\.part': No module named 'nobody_'"):
        load_workload("nobody_.part:f")


def test_a_file_is_imported_once_and_another_of_its_name_too(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        count = "made = []\nmade.append(1)\ndef f():\n    made.append(1)\n    return made\n"
        (tmp_path / folder / "model.py").write_text(count)
    first, other = (f"{tmp_path / folder / 'model.py'}:f" for folder in ("a", "b"))
    assert call_function(first) is call_function(first)
    assert len(call_function(first)) == 4
    assert len(call_function(other)) == 2
