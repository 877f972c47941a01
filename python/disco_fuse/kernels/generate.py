"""Generated kernels in place of those library calls that they are faster than."""

from __future__ import annotations

from collections.abc import Collection

import tvm
from tvm.target import Target

from disco_fuse.kernels.generate_convolution import GenerateConvolution
from disco_fuse.kernels.generate_matmul import GenerateMatmul


def GenerateKernels(  # noqa: N802 - the name of a pass
    signatures: Collection[str] | None, target: Target
) -> tvm.transform.Pass:
    """Pass that replaces library matmuls and convolutions of main by generated kernels.

    Parameters
    ----------
    signatures : collection of str or None
        Which ones, as :func:`disco_fuse.profile.choose_generated` returns them; None: all.
    target : Target
        An llvm target.
    """
    passes = [GenerateMatmul(signatures, target), GenerateConvolution(signatures, target)]
    return tvm.transform.Sequential(passes, name="GenerateKernels")
