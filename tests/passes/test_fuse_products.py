"""Fusion around matrix products: what they take in, what stays outside, and attention gathered whole."""

from __future__ import annotations

from fused import barriers, fused, groups

from neuron_compiler.ir.plan import GroupKind

# Matrix products


def test_a_product_takes_views_and_casts_before_and_elementwise_after():
    program = fused(
        """
        %a = aten._to_copy.default(%x, dtype=bf16) : bf16[4,8]
        %b = aten.permute.default(%w, [1, 0]) : bf16[8,16]
        %c = aten.mm.default(%a, %b) : bf16[4,16]
        %d = aten.add.Tensor(%c, %v) : bf16[4,16]
        %e = aten.gelu.default(%d) : bf16[4,16]
        %f = aten.view.default(%e, [2, 2, 16]) : bf16[2,2,16]
        %g = aten.add.Tensor(%r, %f) : bf16[2,2,16]
        return %g""",
        "%x: f32[4,8], %w: bf16[16,8], %v: bf16[16], %r: bf16[2,2,16]",
    )
    assert groups(program) == ["g0_mm_add_gelu matmul a b c d e f g"]


def test_arithmetic_before_a_product_is_a_barrier():
    program = fused(
        """
        %a = aten.exp.default(%x) : f32[4,8]
        %b = aten.mm.default(%a, %w) : f32[4,16]
        return %b""",
        "%x: f32[4,8], %w: f32[8,16]",
    )
    assert groups(program) == ["g0_exp elementwise a", "g1_mm matmul b"]
    assert barriers(program) == [
        "g0_exp -> g1_mm a: only casts and views are computed while a matmul loads its operands"
    ]


def test_two_products_stay_apart():
    program = fused(
        """
        %a = aten.mm.default(%x, %u) : f32[4,16]
        %b = aten.silu.default(%a) : f32[4,16]
        %c = aten.mm.default(%x, %w) : f32[4,16]
        %d = aten.mul.Tensor(%b, %c) : f32[4,16]
        return %d""",
        "%x: f32[4,8], %u: f32[8,16], %w: f32[8,16]",
    )
    assert groups(program) == ["g0_mm_silu matmul a b", "g1_mm_mul matmul c d"]
    assert barriers(program) == ["g0_mm_silu -> g1_mm_mul b: two matmuls"]


def test_product_and_convolution_stay_apart():
    program = fused(
        """
        %a = aten.convolution.default(%x, %k, none, [1], [0], [1], false, [0], 1) : f32[2,8,4]
        %b = aten.mv.default(%y, %z) : f32[64]
        %c = aten.view.default(%b, [2, 8, 4]) : f32[2,8,4]
        %d = aten.add.Tensor(%a, %c) : f32[2,8,4]
        return %d""",
        "%x: f32[2,3,4], %k: f32[8,3,1], %y: f32[64,5], %z: f32[5]",
    )
    assert groups(program) == ["g0_conv convolution a", "g1_mv_add matmul b c d"]
    assert barriers(program) == ["g0_conv -> g1_mv_add a: a convolution and a matmul"]


def test_a_reduction_over_a_products_output_is_a_barrier():
    program = fused(
        """
        %a = aten.mm.default(%x, %w) : f32[4,16]
        %b = aten._softmax.default(%a, -1, false) : f32[4,16]
        return %b""",
        "%x: f32[4,8], %w: f32[8,16]",
    )
    assert groups(program) == ["g0_mm matmul a", "g1_softmax reduction b"]
    assert barriers(program) == ["g0_mm -> g1_softmax a: a reduction over the output of a matmul"]


def test_what_only_a_reduction_reads_is_computed_with_it():
    # The square would be written out beside the sum, which the norm reads too.
    program = fused(
        """
        %a = aten.linear.default(%x, %w) : f32[4,8]
        %b = aten.add.Tensor(%a, %r) : f32[4,8]
        %c = aten.pow.Tensor_Scalar(%b, 2) : f32[4,8]
        %d = aten.mean.dim(%c, [-1], true) : f32[4,1]
        %e = aten.rsqrt.default(%d) : f32[4,1]
        %f = aten.mul.Tensor(%b, %e) : f32[4,8]
        return %f""",
        "%x: f32[4,8], %w: f32[8,8], %r: f32[4,8]",
    )
    assert groups(program) == ["g0_linear_add matmul a b", "g1_rms_norm reduction c d e f"]


# Attention


def test_attention_of_parts_is_one_group():
    program = fused(
        """
        %k1 = aten.permute.default(%k, [0, 2, 1]) : f32[2,8,4]
        %a = aten.bmm.default(%q, %k1) : f32[2,4,4]
        %b = aten.div.Tensor(%a, 2.0) : f32[2,4,4]
        %c = aten.add.Tensor(%b, %m) : f32[2,4,4]
        %d = aten._softmax.default(%c, -1, false) : f32[2,4,4]
        %e = aten.bmm.default(%d, %v) : f32[2,4,8]
        %f = aten.permute.default(%e, [1, 0, 2]) : f32[4,2,8]
        return %f""",
        "%q: f32[2,4,8], %k: f32[2,4,8], %v: f32[2,4,8], %m: f32[4,4]",
    )
    assert groups(program) == ["g0_attention attention k1 a b c d e f"]


def test_attention_takes_a_maximum_with_its_element_once():
    program = fused(
        """
        %a = aten.bmm.default(%q, %k) : f32[2,4,4]
        %m = aten.max.dim(%a, -1, true) : (f32[2,4,1], i64[2,4,1])
        %b = getitem(%m, 0) : f32[2,4,1]
        %c = aten.sub.Tensor(%a, %b) : f32[2,4,4]
        %d = aten._softmax.default(%c, -1, false) : f32[2,4,4]
        %e = aten.bmm.default(%d, %v) : f32[2,4,8]
        return %e""",
        "%q: f32[2,4,8], %k: f32[2,8,4], %v: f32[2,4,8]",
    )
    assert groups(program) == ["g0_attention attention a m b c d e"]


def test_fused_attention_takes_the_views_around_it():
    program = fused(
        """
        %q1 = aten.permute.default(%q, [0, 2, 1, 3]) : f32[1,2,4,8]
        %a = aten._scaled_dot_product_flash_attention_for_cpu.default(%q1, %k, %v) : (f32[1,2,4,8], f32[1,2,4])
        %b = getitem(%a, 0) : f32[1,2,4,8]
        %c = aten.permute.default(%b, [0, 2, 1, 3]) : f32[1,4,2,8]
        return %c""",
        "%q: f32[1,4,2,8], %k: f32[1,2,4,8], %v: f32[1,2,4,8]",
    )
    assert groups(program) == ["g0_attention attention q1 a b c"]


def test_two_products_without_softmax_are_no_attention():
    program = fused(
        """
        %a = aten.bmm.default(%q, %k) : f32[2,4,4]
        %b = aten.relu.default(%a) : f32[2,4,4]
        %c = aten.bmm.default(%b, %v) : f32[2,4,8]
        return %c""",
        "%q: f32[2,4,8], %k: f32[2,8,4], %v: f32[2,4,8]",
    )
    assert groups(program) == ["g0_bmm_relu matmul a b", "g1_bmm matmul c"]


def test_attention_whose_path_leaves_it_is_not_gathered():
    # The values are computed from the scores through a sort: gathering would make a cycle through it.
    program = fused(
        """
        %a = aten.bmm.default(%q, %k) : f32[2,4,4]
        %b = aten._softmax.default(%a, -1, false) : f32[2,4,4]
        %s = aten.sort.default(%b) : (f32[2,4,4], i64[2,4,4])
        %v = getitem(%s, 0) : f32[2,4,4]
        %c = aten.bmm.default(%b, %v) : f32[2,4,4]
        return %c""",
        "%q: f32[2,4,8], %k: f32[2,8,4]",
    )
    assert GroupKind.ATTENTION not in {g.kind for g in program.plan.groups}
