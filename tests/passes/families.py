"""A registry that knows the families of the ops in these tests, and nothing else of them: fusion asks no more."""

from __future__ import annotations

from neuron_compiler.opdef import Kind, OpDef, Registry, no_work

_FAMILIES = {
    Kind.ELEMENTWISE: (
        "add.Tensor sub.Tensor mul.Tensor div.Tensor neg.default relu.default gelu.default silu.default exp.default "
        "log.default rsqrt.default tanh.default pow.Tensor_Scalar where.self ge.Tensor _to_copy.default "
        "masked_fill.Scalar sin.default cos.default"
    ),
    Kind.VIEW: (
        "view.default permute.default expand.default unsqueeze.default slice.Tensor select.int split.Tensor squeeze.dim"
    ),
    Kind.REDUCTION: "sum.dim_IntList sum.default mean.dim amax.default var_mean.correction nll_loss_forward.default",
    Kind.NORMALISATION: (
        "_softmax.default _log_softmax.default native_layer_norm.default native_group_norm.default "
        "native_batch_norm.default _native_batch_norm_legit_no_training.default native_layer_norm_backward.default"
    ),
    Kind.CONTRACTION: "mm.default addmm.default bmm.default linear.default mv.default _trilinear.default",
    Kind.CONVOLUTION: "convolution.default convolution_backward.default",
    Kind.ATTENTION: "_scaled_dot_product_flash_attention_for_cpu.default",
    Kind.INDEXING: "embedding.default gather.default index.Tensor",
    Kind.CREATION: "full.default arange.default",
    Kind.SORT: "sort.default",
    Kind.SCAN: "cumsum.default",
    Kind.POOLING: "max_pool2d_with_indices.default",
    Kind.OTHER: "cat.default",
}


def registry() -> Registry:
    """A new registry of the families above."""
    found = Registry()
    for kind, names in _FAMILIES.items():
        for name in names.split():
            found.add(OpDef(f"aten.{name}", lambda *_: None, kind, no_work, None, False, "tests"))
    return found
