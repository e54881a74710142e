"""Fusion: what joins, what stays apart and why, that no cycle is made, and that the result is always the same."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pytest
from families import registry
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_compiler.ir import text, verify
from neuron_compiler.ir.graph import DType, Graph, Input, Op, TensorType, TupleType, Value
from neuron_compiler.ir.plan import GroupKind, Program
from neuron_compiler.passes.fuse import Fuse

FUSE = Fuse(registry=registry())


def fused(body: str, inputs: str, pass_: Fuse = FUSE) -> Program:
    """The program with these lines after fusion, verified."""
    program = pass_(text.parse(f"graph test({inputs}) target=trn2 {{\n{body}\n}}"))
    verify.program(program, when="fuse")
    return program


def groups(program: Program) -> list[str]:
    return [f"{g.name} {g.kind.value} {' '.join(g.ops)}" for g in program.plan.groups]


def barriers(program: Program) -> list[str]:
    return [f"{b.producer} -> {b.consumer} {b.value}: {b.reason}" for b in program.plan.barriers]


# Elementwise chains


def test_a_chain_with_casts_broadcasts_and_reshapes_is_one_group():
    program = fused(
        """
        %a = aten._to_copy.default(%x, dtype=f32) : f32[4,8]
        %b = aten.mul.Tensor(%a, %w) : f32[4,8]
        %c = aten.view.default(%b, [32]) : f32[32]
        %d = aten.exp.default(%c) : f32[32]
        return %d""",
        "%x: bf16[4,8], %w: f32[8]",
    )
    assert groups(program) == ["g0_mul_exp elementwise a b c d"]
    assert barriers(program) == []


def test_branches_of_one_space_join():
    #    x
    #  exp neg
    #    add
    program = fused(
        """
        %a = aten.exp.default(%x) : f32[4,8]
        %b = aten.neg.default(%x) : f32[4,8]
        %c = aten.add.Tensor(%a, %b) : f32[4,8]
        return %c""",
        "%x: f32[4,8]",
    )
    assert groups(program) == ["g0_exp_neg_add elementwise a b c"]


def test_independent_ops_stay_apart():
    program = fused(
        """
        %a = aten.exp.default(%x) : f32[4,8]
        %b = aten.neg.default(%x) : f32[4,8]
        return %a, %b""",
        "%x: f32[4,8]",
    )
    assert groups(program) == ["g0_exp elementwise a", "g1_neg elementwise b"]


def test_a_permuted_value_is_another_space():
    program = fused(
        """
        %a = aten.exp.default(%x) : f32[8,8]
        %b = aten.permute.default(%a, [1, 0]) : f32[8,8]
        %c = aten.add.Tensor(%a, %b) : f32[8,8]
        return %c""",
        "%x: f32[8,8]",
    )
    # c may join by a; its other operand is then read from within, which no chain of the same order can.
    assert [g.split()[2:] for g in groups(program)] in ([["a", "b"], ["c"]], [["a", "b", "c"]])


def test_a_permutation_between_two_ops_is_a_barrier():
    program = fused(
        """
        %a = aten.exp.default(%x) : f32[4,8]
        %b = aten.permute.default(%a, [1, 0]) : f32[8,4]
        %c = aten.neg.default(%b) : f32[8,4]
        return %c""",
        "%x: f32[4,8]",
    )
    assert groups(program) == ["g0_exp elementwise a b", "g1_neg elementwise c"]
    assert barriers(program) == ["g0_exp -> g1_neg b: different iteration space (f32[8,4] is permuted)"]


def test_a_permutation_that_only_moves_ones_is_none():
    program = fused(
        """
        %a = aten.exp.default(%x) : f32[2,1,8]
        %b = aten.permute.default(%a, [1, 0, 2]) : f32[1,2,8]
        %c = aten.neg.default(%b) : f32[1,2,8]
        return %c""",
        "%x: f32[2,1,8]",
    )
    assert groups(program) == ["g0_exp_neg elementwise a b c"]


def test_a_small_operand_is_computed_on_the_side():
    program = fused(
        """
        %a = aten.add.Tensor(%w, 1) : f32[8]
        %b = aten.mul.Tensor(%x, %a) : f32[4,8]
        return %b""",
        "%x: f32[4,8], %w: f32[8]",
    )
    assert groups(program) == ["g0_add_mul elementwise a b"]


def test_a_small_operand_of_two_groups_is_computed_once():
    program = fused(
        """
        %a = aten.add.Tensor(%w, 1) : f32[8]
        %b = aten.mul.Tensor(%x, %a) : f32[4,8]
        %c = aten.mul.Tensor(%y, %a) : f32[6,8]
        return %b, %c""",
        "%x: f32[4,8], %y: f32[6,8], %w: f32[8]",
    )
    assert groups(program) == ["g0_add elementwise a", "g1_mul elementwise b", "g2_mul elementwise c"]
    assert [b.reason for b in program.plan.barriers] == [
        "different iteration space (f32[8] feeds f32[4,8])",
        "different iteration space (f32[8] feeds f32[6,8])",
    ]


def test_rotary_embedding_is_one_group():
    program = fused(
        """
        %a = aten.mul.Tensor(%q, %cos) : f32[2,4,16]
        %b = aten.slice.Tensor(%q, 2, 0, 8) : f32[2,4,8]
        %c = aten.slice.Tensor(%q, 2, 8, 16) : f32[2,4,8]
        %d = aten.neg.default(%c) : f32[2,4,8]
        %e = aten.cat.default([%d, %b], -1) : f32[2,4,16]
        %f = aten.mul.Tensor(%e, %sin) : f32[2,4,16]
        %g = aten.add.Tensor(%a, %f) : f32[2,4,16]
        return %g""",
        "%q: f32[2,4,16], %cos: f32[4,16], %sin: f32[4,16]",
    )
    assert groups(program) == ["g0_mul_neg_cat elementwise a b c d e f g"]


def test_a_concatenation_alone_moves_data():
    program = fused(
        "%a = aten.cat.default([%x, %y], 0) : f32[8,8]\nreturn %a",
        "%x: f32[4,8], %y: f32[4,8]",
    )
    assert groups(program) == ["g0_cat data_movement a"]


def test_creations_join_their_reader():
    program = fused(
        """
        %i = aten.arange.default(8) : i64[8]
        %r = aten.unsqueeze.default(%i, 1) : i64[8,1]
        %m = aten.ge.Tensor(%r, %i) : bool[8,8]
        %z = aten.full.default([], 0.0) : f32[]
        %a = aten.where.self(%m, %x, %z) : f32[2,8,8]
        return %a""",
        "%x: f32[2,8,8]",
    )
    assert groups(program) == ["g0_arange_ge_where elementwise i r m z a"]


def test_the_group_limit_is_kept_and_told():
    lines = "\n".join(f"%v{i} = aten.exp.default(%{'x' if i == 0 else f'v{i - 1}'}) : f32[4]" for i in range(10))
    program = fused(f"{lines}\nreturn %v9", "%x: f32[4]", Fuse(max_ops=4, registry=registry()))
    assert [len(g.ops) for g in program.plan.groups] == [4, 4, 2]
    assert [b.reason for b in program.plan.barriers] == ["group limit (4 ops)"] * 2


# Reductions


def test_rms_norm_of_parts_is_one_group():
    program = fused(
        """
        %a = aten._to_copy.default(%x, dtype=f32) : f32[2,4,8]
        %b = aten.pow.Tensor_Scalar(%a, 2) : f32[2,4,8]
        %c = aten.mean.dim(%b, [-1], true) : f32[2,4,1]
        %d = aten.add.Tensor(%c, 1e-06) : f32[2,4,1]
        %e = aten.rsqrt.default(%d) : f32[2,4,1]
        %f = aten.mul.Tensor(%a, %e) : f32[2,4,8]
        %g = aten._to_copy.default(%f, dtype=bf16) : bf16[2,4,8]
        %h = aten.mul.Tensor(%w, %g) : bf16[2,4,8]
        return %h""",
        "%x: bf16[2,4,8], %w: bf16[8]",
    )
    assert groups(program) == ["g0_rms_norm reduction a b c d e f g h"]


def test_softmax_of_parts_is_one_group():
    program = fused(
        """
        %a = aten.amax.default(%x, [-1], true) : f32[4,8]
        %m = aten.amax.default(%x, [-1], true) : f32[4,1]
        %s = aten.sub.Tensor(%x, %m) : f32[4,8]
        %e = aten.exp.default(%s) : f32[4,8]
        %t = aten.sum.dim_IntList(%e, [-1], true) : f32[4,1]
        %d = aten.div.Tensor(%e, %t) : f32[4,8]
        return %d""".replace("        %a = aten.amax.default(%x, [-1], true) : f32[4,8]\n", ""),
        "%x: f32[4,8]",
    )
    assert groups(program) == ["g0_softmax reduction m s e t d"]


def test_cross_entropy_is_one_group():
    program = fused(
        """
        %a = aten._log_softmax.default(%x, 1, false) : f32[4,8]
        %b = aten.nll_loss_forward.default(%a, %t, none, 1, -100) : (f32[], f32[])
        %c = getitem(%b, 0) : f32[]
        return %c""",
        "%x: f32[4,8], %t: i64[4]",
    )
    assert groups(program) == ["g0_cross_entropy reduction a b c"]


def test_cross_entropy_of_parts_is_one_group():
    program = fused(
        """
        %a = aten._log_softmax.default(%x, 1, false) : f32[4,8]
        %i = aten.unsqueeze.default(%t, 1) : i64[4,1]
        %b = aten.gather.default(%a, 1, %i) : f32[4,1]
        %c = aten.squeeze.dim(%b, 1) : f32[4]
        %d = aten.neg.default(%c) : f32[4]
        %e = aten.sum.default(%d) : f32[]
        %f = aten.div.Tensor(%e, 4.0) : f32[]
        return %f""",
        "%x: f32[4,8], %t: i64[4]",
    )
    assert groups(program) == ["g0_cross_entropy reduction a i b c d e f"]


def test_layer_norm_with_what_feeds_and_follows_it():
    program = fused(
        """
        %a = aten.add.Tensor(%x, %y) : f32[4,8]
        %b = aten.native_layer_norm.default(%a, [8], %w, %v, 1e-05) : (f32[4,8], f32[4,1], f32[4,1])
        %c = getitem(%b, 0) : f32[4,8]
        %d = aten.gelu.default(%c) : f32[4,8]
        return %d, %a""",
        "%x: f32[4,8], %y: f32[4,8], %w: f32[8], %v: f32[8]",
    )
    assert groups(program) == ["g0_add_layer_norm_gelu reduction a b c d"]


def test_a_row_statistic_joins_only_beside_its_own_rows():
    # The mean of each row, but added along columns: in a square matrix the sizes alone would not tell.
    program = fused(
        """
        %a = aten.mean.dim(%x, [1]) : f32[8]
        %b = aten.add.Tensor(%x, %a) : f32[8,8]
        return %b""",
        "%x: f32[8,8]",
    )
    assert groups(program) == ["g0_mean reduction a", "g1_add elementwise b"]
    assert barriers(program) == ["g0_mean -> g1_add a: different iteration space (f32[8] feeds f32[8,8])"]


def test_reductions_over_different_dimensions_stay_apart():
    program = fused(
        """
        %a = aten.exp.default(%x) : f32[4,8]
        %b = aten.sum.dim_IntList(%a, [1], true) : f32[4,1]
        %c = aten.sum.dim_IntList(%a, [0], true) : f32[1,8]
        return %b, %c""",
        "%x: f32[4,8]",
    )
    assert groups(program) == ["g0_exp_sum reduction a b", "g1_sum reduction c"]
    assert barriers(program) == ["g0_exp_sum -> g1_sum a: reductions over different dimensions"]


def test_equal_dimensions_through_a_reshape_are_the_same():
    program = fused(
        """
        %a = aten.sum.dim_IntList(%x, [2], true) : f32[2,4,1]
        %b = aten.div.Tensor(%x, %a) : f32[2,4,8]
        %c = aten.view.default(%b, [8, 8]) : f32[8,8]
        %d = aten._softmax.default(%c, -1, false) : f32[8,8]
        return %d""",
        "%x: f32[2,4,8]",
    )
    assert groups(program) == ["g0_sum_div_softmax reduction a b c d"]


def test_inference_batch_norm_is_no_reduction():
    program = fused(
        """
        %a = aten.convolution.default(%x, %k, none, [1, 1], [0, 0], [1, 1], false, [0, 0], 1) : f32[2,8,4,4]
        %b = aten._native_batch_norm_legit_no_training.default(%a, %w, %v, %m, %s, 0.1, 0) : (f32[2,8,4,4], none, none)
        %c = getitem(%b, 0) : f32[2,8,4,4]
        %d = aten.relu.default(%c) : f32[2,8,4,4]
        %e = aten.add.Tensor(%d, %r) : f32[2,8,4,4]
        return %e""",
        "%x: f32[2,3,4,4], %k: f32[8,3,1,1], %w: f32[8], %v: f32[8], %m: f32[8], %s: f32[8], %r: f32[2,8,4,4]",
    )
    assert groups(program) == ["g0_conv_batch_norm_relu convolution a b c d e"]


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


# What stays alone


@pytest.mark.parametrize(
    ("line", "kind", "reason"),
    [
        ("aten.embedding.default(%w, %i) : f32[4,8]", "data_movement", "indexing op (aten.embedding.default)"),
        ("aten.cumsum.default(%x, 0) : f32[4,8]", "other", "scan (aten.cumsum.default)"),
        ("aten.mystery.default(%x) : f32[4,8]", "other", "op of no fusible family (aten.mystery.default)"),
    ],
)
def test_ops_that_stay_alone_say_so(line: str, kind: str, reason: str):
    program = fused(
        f"%a = {line}\n%b = aten.exp.default(%a) : f32[4,8]\nreturn %b", "%x: f32[4,8], %w: f32[9,8], %i: i64[4]"
    )
    assert [g.kind.value for g in program.plan.groups] == [kind, "elementwise"]
    assert [b.reason for b in program.plan.barriers] == [reason]


def test_an_embedding_takes_positions_and_reshapes():
    program = fused(
        """
        %i = aten.arange.default(4) : i64[4]
        %j = aten.unsqueeze.default(%i, 0) : i64[1,4]
        %a = aten.embedding.default(%w, %j) : f32[1,4,8]
        %b = aten.view.default(%a, [4, 8]) : f32[4,8]
        return %b""",
        "%w: f32[9,8]",
    )
    assert groups(program) == ["g0_embedding data_movement i j a b"]


def test_a_tuple_and_its_elements_are_one_group():
    program = fused(
        """
        %s = aten.split.Tensor(%x, 4, 1) : (f32[4,4], f32[4,4])
        %a = getitem(%s, 0) : f32[4,4]
        %b = getitem(%s, 1) : f32[4,4]
        %c = aten.silu.default(%a) : f32[4,4]
        %d = aten.mul.Tensor(%c, %b) : f32[4,4]
        return %d""",
        "%x: f32[4,8]",
    )
    assert groups(program) == ["g0_split_silu_mul elementwise s a b c d"]


# Cycles


def test_a_merge_that_would_close_a_cycle_is_refused():
    #   mm ─ relu ── softmax
    #    └────────── add
    program = fused(
        """
        %a = aten.mm.default(%x, %w) : f32[8,8]
        %b = aten._softmax.default(%a, -1, false) : f32[8,8]
        %c = aten.cumsum.default(%b, 0) : f32[8,8]
        %d = aten.add.Tensor(%a, %c) : f32[8,8]
        return %d""",
        "%x: f32[8,8], %w: f32[8,8]",
    )
    assert groups(program) == [
        "g0_mm matmul a",
        "g1_softmax reduction b",
        "g2_cumsum other c",
        "g3_add elementwise d",
    ]
    assert "g0_mm -> g3_add a: would form a cycle through g2_cumsum" in barriers(program)


def test_a_value_of_many_groups_is_materialised():
    program = fused(
        """
        %a = aten.permute.default(%w, [1, 0]) : f32[8,8]
        %b = aten.mm.default(%x, %a) : f32[8,8]
        %c = aten.mm.default(%y, %a) : f32[8,8]
        return %b, %c""",
        "%x: f32[8,8], %y: f32[8,8], %w: f32[8,8]",
    )
    assert groups(program) == ["g0_permute data_movement a", "g1_mm matmul b", "g2_mm matmul c"]
    assert [b.reason for b in program.plan.barriers] == [
        "value has 2 users in other groups and is materialised anyway"
    ] * 2


# The pass itself


def test_a_fused_program_is_returned_as_it_is():
    program = fused("%a = aten.exp.default(%x) : f32[4]\nreturn %a", "%x: f32[4]")
    assert FUSE(program) is program


def test_a_graph_without_ops_is_returned_as_it_is():
    program = text.parse("graph test(%x: f32[4]) target=trn2 {\n return %x\n}")
    assert FUSE(program) is program


def test_new_groups_drop_tiles_of_the_old_ones():
    program = fused("%a = aten.exp.default(%x) : f32[4]\nreturn %a", "%x: f32[4]")
    stale = replace(program, plan=replace(program.plan, groups=(), tiles={"g0_exp": object()}))
    assert dict(FUSE(stale).plan.tiles) == {}


# Random graphs

N = 6
MATRIX, ROW, FLAT = (N, N), (N, 1), (N * N,)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Straight-line programs over [6,6] matrices, their rows, transposes, reshapes, products and tuples."""
    shapes: dict[str, tuple[int, ...]] = {"x": MATRIX, "y": MATRIX, "r": ROW}
    ops: list[Op] = []

    def add(kind: str, operands: tuple[object, ...], shape: tuple[int, ...], **attrs: object) -> str:
        name = f"v{len(ops)}"
        ops.append(Op(name, kind, operands, TensorType(shape, DType.F32), tuple(sorted(attrs.items()))))  # type: ignore[arg-type]
        shapes[name] = shape
        return name

    def some(shape: tuple[int, ...]) -> Value:
        return Value(draw(st.sampled_from([n for n, s in shapes.items() if s == shape])))

    for _ in range(draw(st.integers(1, 24))):
        step = draw(st.sampled_from(STEPS))
        if step == "unary":
            add("aten.exp.default", (some(MATRIX),), MATRIX)
        elif step == "binary":
            add("aten.add.Tensor", (some(MATRIX), some(MATRIX)), MATRIX)
        elif step == "scale":
            add("aten.mul.Tensor", (some(MATRIX), some(ROW)), MATRIX)
        elif step == "row":
            add("aten.rsqrt.default", (some(ROW),), ROW)
        elif step in ("sum", "mean"):
            axis = draw(st.sampled_from((-1, 0)))
            kind = "aten.sum.dim_IntList" if step == "sum" else "aten.mean.dim"
            name = add(kind, (some(MATRIX), (axis,), True), ROW if axis == -1 else (1, N))
            if axis == 0:
                add("aten.permute.default", (Value(name), (1, 0)), ROW)
        elif step == "softmax":
            add("aten._softmax.default", (some(MATRIX), -1, False), MATRIX)
        elif step == "transpose":
            add("aten.permute.default", (some(MATRIX), (1, 0)), MATRIX)
        elif step == "flat":
            name = add("aten.view.default", (some(MATRIX), FLAT), FLAT)
            name = add("aten.neg.default", (Value(name),), FLAT)
            add("aten.view.default", (Value(name), MATRIX), MATRIX)
        elif step == "mm":
            add("aten.mm.default", (some(MATRIX), some(MATRIX)), MATRIX)
        elif step == "sort":
            name = f"v{len(ops)}"
            both = TupleType((TensorType(MATRIX, DType.F32), TensorType(MATRIX, DType.I64)))
            ops.append(Op(name, "aten.sort.default", (some(MATRIX),), both))
            add("getitem", (Value(name), 0), MATRIX)
        elif step == "full":
            add("aten.full.default", (MATRIX, 1.0), MATRIX)
        elif step == "alone":
            add("aten.cumsum.default", (some(MATRIX), 0), MATRIX)
    results = [op.result for op in ops if isinstance(op.type, TensorType)]
    outputs = draw(st.lists(st.sampled_from(results), min_size=1, max_size=3))
    inputs = tuple(Input(n, TensorType(shapes[n], DType.F32)) for n in ("x", "y", "r"))
    return Graph("random", inputs, tuple(ops), tuple(outputs))


STEPS = (
    "unary", "binary", "scale", "row", "sum", "mean", "softmax", "transpose", "flat", "mm", "sort", "full", "alone",
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from((2, 5, 64)))
def test_any_graph_is_partitioned_without_cycles(graph: Graph, max_ops: int):
    fuse = Fuse(max_ops=max_ops, registry=registry())
    program = fuse(Program(graph))
    verify.program(program, when="fuse")
    # A tuple and its elements are together whatever the limit.
    assert all(len(g.ops) <= max(max_ops, 2) for g in program.plan.groups)
    assert text.format(fuse(Program(graph))) == text.format(program)
    assert fuse(program) is program


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_every_edge_between_groups_has_one_barrier_with_a_reason(graph: Graph):
    program = FUSE(Program(graph))
    home = {name: g.name for g in program.plan.groups for name in g.ops}
    edges = {
        (home[use], g.name, use)
        for g in program.plan.groups
        for name in g.ops
        for use in graph.defs[name].uses
        if use in home and home[use] != g.name
    }
    told = [(b.producer, b.consumer, b.value) for b in program.plan.barriers]
    assert sorted(told) == sorted(edges)
    assert all(b.reason for b in program.plan.barriers)


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_a_reported_cycle_is_one(graph: Graph):
    program = FUSE(Program(graph))
    between = nx.DiGraph((b.producer, b.consumer) for b in program.plan.barriers)
    for b in program.plan.barriers:
        if b.reason.startswith("would form a cycle through "):
            through = b.reason.rsplit(" ", 1)[1]
            assert nx.has_path(between, b.producer, through)
            assert nx.has_path(between, through, b.consumer)
