"""The package's layering, its optional dependencies and how the pass appears under tvm."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "python" / "disco_fuse"

# From what everything may import to what nothing may import. A module imports only modules of
# earlier lines, or of its own.
LAYERS = [
    ["_ffi", "errors", "checks", "files", "kernel_cache", "namespaces"],
    ["allreduce", "graph", "bindings", "target", "user_code"],
    ["device"],
    ["cluster"],
    ["config"],
    ["strategy", "tensor_fusion"],
    ["cost_model", "kernels", "frontend"],
    ["simulate", "insert", "own_gradients", "workload"],
    ["adjoint", "bound", "search", "lower", "zoo"],
    ["extract"],
    ["apply", "donate", "fuse_ops", "objects"],
    ["baselines", "bucket_memory", "arena"],
    ["plan_memory"],
    ["build", "testing", "tuning", "needs", "cubin", "mpirun"],
    ["transform", "plan", "runtime", "launch"],
    ["profile", "runner", "slow_link", "explain", "planning", "whatif"],
    ["trainer", "report"],
    ["compare", "bench", "dataset", "dashboard"],
    ["advise"],
    ["cli"],
]
# Dependency that few files need -> the only places (folders or files) that may import it.
OPTIONAL = {
    "torch": [
        "frontend/torch",
        "zoo",
        "compare/pytorch_ddp.py",
        "bench/kernels/torch_steps.py",
        "cost_model/gnn_training.py",
        "workload.py",
    ],
    "mpi4py": ["runtime/nccl.py", "runtime/communicator.py"],
    "xgboost": ["cost_model/boosted.py"],
    "dgl": ["cost_model/gnn_training.py"],
    "matplotlib": ["dataset/plot.py", "explain/plot.py", "whatif/plot.py"],
    "click": ["cli"],
    "tornado": ["dashboard"],
}


def _imports(path: Path) -> list[str]:
    """Names of the modules that the file imports anywhere, typing-only imports included."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module == "disco_fuse":
                names += [f"disco_fuse.{alias.name}" for alias in node.names]
            else:
                names.append(node.module)
    return names


def _files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_every_module_has_a_layer() -> None:
    listed = {name for layer in LAYERS for name in layer} | {"__init__"}
    present = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in _files()}
    assert present == listed


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    level = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] != "disco_fuse" or len(parts) < 2 or parts[1] in (own, "__version__"):
            continue
        assert level[parts[1]] < level[own], f"{own} imports {parts[1]}, which is not above it"


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_optional_dependencies_stay_in_their_files(path: Path) -> None:
    place = path.relative_to(PACKAGE).as_posix()
    for name in _imports(path):
        allowed = OPTIONAL.get(name.split(".")[0])
        if allowed is not None:
            assert any(place == a or place.startswith(a + "/") for a in allowed), f"imports {name}"


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def _python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import tvm; print(tvm.relax.transform.DisCoFuse)",
        "import disco_fuse, tvm; print(tvm.relax.transform.DisCoFuse)",
        "import tvm, disco_fuse; print(tvm.relax.transform.DisCoFuse)",
        "import tvm; print(tvm.relax.transform.DisCoFuse())",
    ],
)
def test_pass_appears_in_either_order(code: str) -> None:
    assert "DisCoFuse" in _python(code)


def test_pass_appears_without_autoload() -> None:
    code = "import disco_fuse, tvm; print(tvm.relax.transform.DisCoFuse)"
    assert "DisCoFuse" in _python(code, TVM_DEVICE_BACKEND_AUTOLOAD="0")


def test_import_needs_no_extra() -> None:
    banned = sorted(OPTIONAL)
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {banned}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import disco_fuse, tvm\n"
        "tvm.relax.transform.DisCoFuse()\n"
        "print([m for m in sys.modules if m in ('torch', 'mpi4py', 'dgl', 'xgboost')])"
    )
    assert _python(code).strip() == "[]"
