"""A compiled step whose gradients are computed in their buckets: ``mpirun -n N python ...``."""

from __future__ import annotations

import os

import numpy as np
import tvm
from tvm import relax

from disco_fuse import runtime
from disco_fuse.build import vm_pipeline

SIZES = (100, 7, 3000)
FACTORS = (10.0, 20.0, 30.0)


def step_module() -> tvm.IRModule:
    """Bucket 0: three gradients, the second seen through a reshape. Bucket 1: one that is a
    parameter, which cannot be moved, and one that can."""
    builder = relax.BlockBuilder()
    xs = [relax.Var(f"x{i}", relax.TensorType((n,), "float32")) for i, n in enumerate(SIZES)]
    given = relax.Var("given", relax.TensorType((SIZES[0],), "float32"))
    with builder.function("main", [*xs, given], pure=False):
        gradients = [
            builder.emit(relax.op.multiply(x, relax.const(factor, "float32")))
            for x, factor in zip(xs, FACTORS, strict=True)
        ]
        gradients[1] = builder.emit(relax.op.reshape(gradients[1], (7, 1)))
        extra = builder.emit(relax.op.add(xs[0], relax.const(1.0, "float32")))
        for bucket, tensors in enumerate([gradients, [given, extra]]):
            for name in ("allreduce_start", "allreduce_wait"):
                callee = relax.ExternFunc(f"disco_fuse.runtime.{name}")
                arguments = [relax.prim_value(bucket), *tensors]
                builder.emit(relax.Call(callee, arguments, ty_args=[relax.TupleType([])]))
        results = [
            builder.emit(relax.op.add(tensor, relax.const(0.0, "float32")))
            for tensor in (*gradients, given, extra)
        ]
        builder.emit_func_output(relax.Tuple(results))
    return relax.transform.LegalizeOps()(builder.get())


def main() -> None:
    os.write(1, f"pid {os.getpid()}\n".encode())
    communicator = runtime.mpi(timeout_s=30)
    with runtime.abort_on_error(communicator):
        pipeline = vm_pipeline(place_gradients=True)
        executable = tvm.compile(step_module(), target="llvm", relax_pipeline=pipeline)
        machine = relax.VirtualMachine(executable, tvm.cpu())
        session = runtime.Session(communicator)
        for step in range(3):
            xs = [
                [np.full(n, r + step + i, np.float32) for i, n in enumerate((*SIZES, SIZES[0]))]
                for r in range(communicator.world_size)
            ]
            with session.step():
                results = machine["main"](*map(tvm.runtime.tensor, xs[communicator.rank]))
            means = [np.mean(parts, axis=0) for parts in zip(*xs, strict=True)]
            expected = [m * f for m, f in zip(means, FACTORS, strict=False)]
            expected += [means[3], means[0] + 1]
            for got, want in zip(results, expected, strict=True):
                np.testing.assert_allclose(got.numpy().reshape(-1), want, rtol=1e-6)
        os.write(1, f"rank {communicator.rank}: copied {session.copied_bytes()}\n".encode())


if __name__ == "__main__":
    main()
