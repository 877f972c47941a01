"""The ATen operators that a training step may contain.

An operator is listed once a numeric test compares its values and gradients with eager torch in
float64 (tests/python/numeric/test_verified_operators.py fails for a name without one). All others
are refused by name, because a converter that nobody checked may be wrong without an error.

Those that draw random numbers cannot equal torch's draws; tests/python/numeric/test_dropout.py
checks their distribution, and their gradients given what was drawn.
"""

from __future__ import annotations

RANDOM_OPERATORS: frozenset[str] = frozenset(
    {
        "aten.bernoulli.p",
        "aten.native_dropout.default",
        "aten.rand.default",
        "aten.rand_like.default",
    }
)

VERIFIED_OPERATORS: frozenset[str] = RANDOM_OPERATORS | frozenset(
    {
        # elementwise
        "aten._to_copy.default",
        "aten.abs.default",
        "aten.add.Scalar",
        "aten.add.Tensor",
        "aten.bitwise_and.Tensor",
        "aten.bitwise_not.default",
        "aten.clamp.default",
        "aten.copy.default",
        "aten.cos.default",
        "aten.div.Scalar",
        "aten.div.Tensor",
        "aten.eq.Scalar",
        "aten.eq.Tensor",
        "aten.erf.default",
        "aten.exp.default",
        "aten.floor.default",
        "aten.ge.Scalar",
        "aten.ge.Tensor",
        "aten.gelu.default",
        "aten.gt.Scalar",
        "aten.gt.Tensor",
        "aten.le.Scalar",
        "aten.le.Tensor",
        "aten.log.default",
        "aten.logical_and.default",
        "aten.logical_not.default",
        "aten.logical_or.default",
        "aten.lt.Scalar",
        "aten.lt.Tensor",
        "aten.maximum.default",
        "aten.minimum.default",
        "aten.mul.Scalar",
        "aten.mul.Tensor",
        "aten.ne.Scalar",
        "aten.ne.Tensor",
        "aten.neg.default",
        "aten.pow.Tensor_Scalar",
        "aten.reciprocal.default",
        "aten.relu.default",
        "aten.rsqrt.default",
        "aten.sigmoid.default",
        "aten.sign.default",
        "aten.sin.default",
        "aten.sqrt.default",
        "aten.sub.Scalar",
        "aten.sub.Tensor",
        "aten.tanh.default",
        "aten.where.self",
        # matrix products
        "aten.addmm.default",
        "aten.bmm.default",
        "aten.mm.default",
        # reductions
        "aten._log_softmax.default",
        "aten._softmax.default",
        "aten.amax.default",
        "aten.any.dim",
        "aten.mean.default",
        "aten.mean.dim",
        "aten.sum.dim_IntList",
        # positions
        "aten.cat.default",
        "aten.constant_pad_nd.default",
        "aten.expand.default",
        "aten.permute.default",
        "aten.repeat.default",
        "aten.select.int",
        "aten.slice.Tensor",
        "aten.slice_scatter.default",
        "aten.split_with_sizes.default",
        "aten.squeeze.dims",
        "aten.unsqueeze.default",
        "aten.view.default",
        # indexing
        "aten.embedding.default",
        "aten.gather.default",
        "aten.index.Tensor",
        "aten.index_put.default",
        "aten.index_select.default",
        "aten.scatter.src",
        "aten.scatter.value",
        "aten.scatter_add.default",
        "aten.scatter_reduce.two",
        # order
        "aten.argmax.default",
        "aten.argmin.default",
        "aten.max.dim",
        "aten.min.dim",
        "aten.sort.default",
        "aten.sort.stable",
        "aten.topk.default",
        # normalisation, convolution, pooling
        "aten._native_batch_norm_legit_functional.default",
        "aten._adaptive_avg_pool2d.default",
        "aten._adaptive_avg_pool2d_backward.default",
        "aten._adaptive_avg_pool3d.default",
        "aten.avg_pool2d.default",
        "aten.avg_pool2d_backward.default",
        "aten.avg_pool3d.default",
        "aten.avg_pool3d_backward.default",
        "aten.convolution.default",
        "aten.convolution_backward.default",
        "aten.max_pool2d_with_indices.default",
        "aten.max_pool2d_with_indices_backward.default",
        "aten.max_pool3d_with_indices.default",
        "aten.native_layer_norm.default",
    }
)
