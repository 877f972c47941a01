"""TVM's own Adam, made to work.

``relax.training.optimizer.Adam`` of TVM 0.27 raises in ``init``: it keeps the dtype of the
parameters as TVM's type object, which numpy cannot make the initial products of the betas with.
"""

from __future__ import annotations

import tvm.relax.training.optimizer as tvm_optimizer
from tvm import relax


class RelaxAdam(tvm_optimizer.Adam):  # type: ignore[misc]
    """``relax.training.optimizer.Adam`` for ``relax.training.SetupTrainer``; same arguments.

    The update is that of :class:`disco_fuse.frontend.Adam`; the powers of the betas are products in
    the dtype of the parameters.
    """

    def _set_params_and_dtype(self, params: list[relax.Var]) -> None:
        super()._set_params_and_dtype(params)
        self.dtype = str(params[0].ty.dtype.dtype)
