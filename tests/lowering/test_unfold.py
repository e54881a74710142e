"""Windows as columns and their sum back into an image, against ATen."""

from __future__ import annotations

import pytest
import torch
from against_aten import call, check

aten = torch.ops.aten

GEOMETRIES = (
    ([3, 2], [1, 1], [1, 0], [1, 2]),
    ([2, 2], [2, 1], [0, 2], [2, 2]),
    ([1, 3], [1, 2], [2, 2], [3, 1]),
    ([2, 2], [1, 1], [0, 0], [2, 2]),
)


@pytest.mark.parametrize(("kernel", "dilation", "padding", "stride"), GEOMETRIES)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_unfold_and_fold(
    batch: tuple[int, ...], kernel: list[int], dilation: list[int], padding: list[int], stride: list[int]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(*batch, 3, 6, 7)
    columns = aten.im2col.default(x, kernel, dilation, padding, stride)
    check(
        call(aten.im2col.default, x, kernel, dilation, padding, stride),
        call(aten.col2im.default, columns, [6, 7], kernel, dilation, padding, stride),
        call(aten.col2im.default, columns.bfloat16(), [6, 7], kernel, dilation, padding, stride),
    )


def test_empty_batch() -> None:
    columns = torch.zeros(0, 4, 16)
    check(
        call(aten.col2im.default, columns, [5, 5], [2, 2], [1, 1], [0, 0], [1, 1]),
        call(aten.im2col.default, torch.zeros(0, 1, 5, 5), [2, 2], [1, 1], [0, 0], [1, 1]),
    )
