"""Fusion: what joins, what stays apart and why, that no cycle is made, and that the result is always the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from families import registry
from fused import FUSE, barriers, fused, groups

from neuron_compiler.ir import text
from neuron_compiler.passes.fuse import Fuse

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


def test_a_value_and_its_transpose_lie_differently():
    program = fused(
        """
        %a = aten.exp.default(%x) : f32[8,8]
        %b = aten.permute.default(%a, [1, 0]) : f32[8,8]
        %c = aten.add.Tensor(%a, %b) : f32[8,8]
        return %c""",
        "%x: f32[8,8]",
    )
    assert groups(program) == ["g0_exp elementwise a b", "g1_add elementwise c"]
    assert barriers(program) == [
        "g0_exp -> g1_add a: different iteration space (f32[8,8] is permuted)",
        "g0_exp -> g1_add b: different iteration space (f32[8,8] is permuted)",
    ]


def test_two_permutations_lie_differently():
    program = fused(
        """
        %a = aten.exp.default(%x) : f32[8,8,8]
        %b = aten.permute.default(%a, [1, 0, 2]) : f32[8,8,8]
        %c = aten.permute.default(%a, [0, 2, 1]) : f32[8,8,8]
        %d = aten.add.Tensor(%b, %c) : f32[8,8,8]
        return %d""",
        "%x: f32[8,8,8]",
    )
    assert groups(program) == ["g0_exp elementwise a b c", "g1_add elementwise d"]


def test_what_follows_one_permutation_joins():
    # The residual is loaded in the inverse order, the result stored in this one.
    program = fused(
        """
        %a = aten.linear.default(%x, %w) : f32[2,6,8]
        %b = aten.permute.default(%a, [0, 2, 1]) : f32[2,8,6]
        %c = aten.view.default(%b, [2, 2, 4, 6]) : f32[2,2,4,6]
        %d = aten.add.Tensor(%r, %c) : f32[2,2,4,6]
        %e = aten.relu.default(%d) : f32[2,2,4,6]
        return %e""",
        "%x: f32[2,6,4], %w: f32[8,4], %r: f32[2,2,4,6]",
    )
    assert groups(program) == ["g0_linear_add_relu matmul a b c d e"]


def test_a_permuted_value_with_other_readers_is_written_anyway():
    program = fused(
        """
        %a = aten.linear.default(%x, %w) : f32[6,8]
        %b = aten.permute.default(%a, [1, 0]) : f32[8,6]
        %c = aten.mul.Tensor(%b, %r) : f32[8,6]
        %d = aten.cumsum.default(%b, 0) : f32[8,6]
        return %c, %d""",
        "%x: f32[6,4], %w: f32[8,4], %r: f32[8,6]",
    )
    assert groups(program) == ["g0_linear matmul a b", "g1_mul elementwise c", "g2_cumsum other d"]
    assert barriers(program) == [
        "g0_linear -> g1_mul b: value has 2 users in other groups and is materialised anyway",
        "g0_linear -> g2_cumsum b: scan (aten.cumsum.default)",
    ]


def test_a_permuted_value_meets_no_other_chain():
    program = fused(
        """
        %a = aten.exp.default(%x) : f32[4,8]
        %b = aten.permute.default(%a, [1, 0]) : f32[8,4]
        %c = aten.neg.default(%y) : f32[8,4]
        %d = aten.add.Tensor(%b, %c) : f32[8,4]
        return %d""",
        "%x: f32[4,8], %y: f32[8,4]",
    )
    assert groups(program) == ["g0_exp elementwise a b", "g1_neg_add elementwise c d"]


def test_a_reduction_after_a_permutation_is_a_barrier():
    program = fused(
        """
        %a = aten.exp.default(%x) : f32[4,8]
        %b = aten.permute.default(%a, [1, 0]) : f32[8,4]
        %c = aten.sum.dim_IntList(%b, [1], true) : f32[8,1]
        return %c""",
        "%x: f32[4,8]",
    )
    assert groups(program) == ["g0_exp elementwise a b", "g1_sum reduction c"]
    assert barriers(program) == ["g0_exp -> g1_sum b: different iteration space (f32[8,4] is permuted)"]


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


# What stays alone


@pytest.mark.parametrize(
    ("line", "kind", "reason"),
    [
        ("aten.embedding.default(%w, %i) : f32[4,8]", "data_movement", "indexing op (aten.embedding.default)"),
        ("aten.sort.default(%x) : f32[4,8]", "other", "sorting op (aten.sort.default)"),
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


def test_a_cast_does_not_join_an_op_that_stays_alone():
    program = fused(
        """
        %a = aten.embedding.default(%w, %i) : f32[4,8]
        %b = aten._to_copy.default(%a, dtype=bf16) : bf16[4,8]
        return %b""",
        "%w: f32[9,8], %i: i64[4]",
    )
    assert groups(program) == ["g0_embedding data_movement a", "g1_cast elementwise b"]
    assert barriers(program) == ["g0_embedding -> g1_cast a: indexing op (aten.embedding.default)"]


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
