"""The TVM target of this machine's processor."""

from __future__ import annotations

import tvm


def host_target(num_threads: int = 1) -> tvm.target.Target:
    """LLVM for the processor this runs on.

    Parameters
    ----------
    num_threads : int
        Cores a kernel may use. One rank per core is the rule in data-parallel runs, hence one.
    """
    if num_threads < 1:
        raise ValueError(f"num_threads is {num_threads}; allowed: from 1")
    mcpu = str(tvm.target.codegen.llvm_get_system_cpu())
    return tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": num_threads})
