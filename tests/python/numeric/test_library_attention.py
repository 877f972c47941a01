"""A block of attention exactly as torch's joint graph brings it: the same numbers, no copies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from library_run import count_ops, dispatch, run
from tvm import relax

from disco_fuse.kernels.library import library_available, load_library

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(not library_available(), reason="needs the library inside torch"),
    pytest.mark.filterwarnings("ignore"),  # torch.export and copyreg warn about their own code
]


class Attention(torch.nn.Module):  # type: ignore[misc]
    """Self-attention with a loss; `fused` takes torch's own scaled dot product."""

    def __init__(self, width: int, num_heads: int, fused: bool) -> None:
        super().__init__()
        self.project = torch.nn.ModuleList([torch.nn.Linear(width, width) for _ in range(4)])
        self.num_heads, self.fused = num_heads, fused

    def forward(self, x: Any, target: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = (
            project(x).view(batch, length, self.num_heads, -1).transpose(1, 2)
            for project in self.project[:3]
        )
        if self.fused:
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.num_heads)
            y = torch.softmax(scores, -1) @ v
        y = self.project[3](y.transpose(1, 2).reshape(batch, length, width))
        return torch.nn.functional.mse_loss(y, target)


def training_graph(model: Any, arguments: tuple[Any, ...]) -> tuple[Any, list[np.ndarray]]:
    """Forward and backward of a model as a Relax module, and arguments for it."""
    from torch.export.experimental import _export_forward_backward
    from torch.export.graph_signature import OutputKind
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    with sdpa_kernel(SDPBackend.MATH):
        program = _export_forward_backward(torch.export.export(model, arguments))
    for spec in program.graph_signature.output_specs:
        spec.kind = OutputKind.USER_OUTPUT  # the importer would drop gradients
    module = ExportedProgramImporter().from_exported_program(program, True, False, False, {})
    module = relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(module))
    parameters = [parameter for _, parameter in program.named_parameters()]
    return module, [tensor.detach().numpy() for tensor in (*arguments, *parameters)]


# Torch's own attention scales queries and keys after they were permuted, forward and backward:
# those six products with a constant stay, and with them what they read.
@pytest.mark.parametrize(("fused", "num_permutes_left"), [(False, 0), (True, 6)])
def test_training_step_of_attention(fused: bool, num_permutes_left: int) -> None:
    load_library()
    torch.manual_seed(0)
    x, target = torch.randn(2, 2, 12, 32)
    module, arguments = training_graph(Attention(32, 4, fused), (x, target))
    before = count_ops(module)
    assert before["permute_dims"] == 31

    after = dispatch(module)

    ops = count_ops(after)
    assert ops["call_dps_packed"] == before["matmul"]
    assert ops["permute_dims"] == num_permutes_left
    for expected, actual in zip(run(module, arguments), run(after, arguments), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
