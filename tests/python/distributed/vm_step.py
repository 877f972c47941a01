"""A compiled Relax step that averages over ranks: ``mpirun -n N python vm_step.py``."""

from __future__ import annotations

import os
import time

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from disco_fuse import runtime
from disco_fuse.runtime import EventKind

SIZE = 50_000


def packed(name: str, *args: relax.Expr) -> relax.Call:
    return relax.Call(relax.ExternFunc(name), list(args), ty_args=[relax.TupleType([])])


def step_module(wait_for_gradients: bool) -> tvm.IRModule:
    """Two gradients in flight while kernels of the same shape want memory.

    The planner would give the gradients' memory to `more` and `most`, were they not arguments of
    the wait.
    """
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((SIZE,), "float32"))
    with builder.function("main", [x], pure=False):
        first = builder.emit(relax.op.multiply(x, relax.const(10.0, "float32")))
        second = builder.emit(relax.op.multiply(x, relax.const(20.0, "float32")))
        bucket = relax.prim_value(3)
        builder.emit(packed("disco_fuse.runtime.allreduce_start", bucket, first, second))
        builder.emit(packed("test.nap"))
        more = builder.emit(relax.op.add(x, relax.const(7.0, "float32")))
        most = builder.emit(relax.op.multiply(more, more))
        again = builder.emit(relax.op.add(most, more))
        waited = (first, second) if wait_for_gradients else (more, again)
        builder.emit(packed("disco_fuse.runtime.allreduce_wait", bucket, *waited))
        total = builder.emit(relax.op.add(first, second) if wait_for_gradients else again)
        builder.emit_func_output(builder.emit(relax.op.add(total, again)))
    return builder.get()


def main() -> None:
    os.write(1, f"pid {os.getpid()}\n".encode())
    communicator = runtime.mpi(timeout_s=30)
    rank, world_size = communicator.rank, communicator.world_size

    @tvm_ffi.register_global_func("test.nap")
    def nap() -> None:
        time.sleep(0.005 * (rank + 1))

    with runtime.abort_on_error(communicator):
        device = tvm.cpu()
        vm = relax.VirtualMachine(tvm.compile(step_module(True), target="llvm"), device)
        session = runtime.Session(communicator)
        for step in range(3):
            values = [
                np.random.default_rng([step, r]).standard_normal(SIZE).astype(np.float32)
                for r in range(world_size)
            ]
            x = values[rank]
            with session.recording_kernels(vm), session.step():
                result = vm["main"](tvm.runtime.tensor(x)).numpy()
            expected = 30 * np.mean(values, axis=0) + (x + 7) ** 2 + (x + 7)
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)
        events = session.events()
        assert events.num_dropped == 0
        assert [row[1] for row in events.of(EventKind.ALLREDUCE)] == [3]
        names = [events.kernel_names[row[1]] for row in events.of(EventKind.KERNEL)]
        assert names[:3] == ["multiply", "multiply1", "test.nap"], names
        try:
            vm["main"](tvm.runtime.tensor(x))
        except RuntimeError as error:
            os.write(1, f"rank {rank}: no session: {error}\n".encode())
        vm = relax.VirtualMachine(tvm.compile(step_module(False), target="llvm"), device)
        try:
            with runtime.Session(communicator).step():
                vm["main"](tvm.runtime.tensor(x))
        except ValueError as error:
            os.write(1, f"rank {rank}: refused: {error}\n".encode())


if __name__ == "__main__":
    main()
