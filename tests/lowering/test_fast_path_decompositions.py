"""The fused inference kernels in parts, against the kernels themselves."""

import pytest
import torch

from neuron_compiler.lowering import fast_path_decompositions as parts

aten = torch.ops.aten
BATCH, LENGTH, WIDTH, HEADS = 2, 5, 12, 3


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _masks():
    attention = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1, 3:] = True
    hidden = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    hidden[0] = True
    return {
        "none": (None, None),
        "attention": (attention, 0),
        "padding": (padding, 1),
        "generic": (torch.rand(BATCH, HEADS, LENGTH, LENGTH) > 0.7, 2),
        "all_hidden": (hidden, 1),
    }


@pytest.mark.parametrize("kind", ["attention", "padding", "generic", "all_hidden"])
def test_masked_softmax(kind):
    mask, mask_type = _masks()[kind]
    scores = torch.randn(BATCH, HEADS, LENGTH, LENGTH)
    expected = aten._masked_softmax(scores, mask, 3, mask_type)
    torch.testing.assert_close(parts.masked_softmax(scores, mask, 3, mask_type), expected, equal_nan=True)


@pytest.mark.parametrize("kind", ["none", "attention", "padding", "generic"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("average", [True, False])
def test_multi_head_attention(kind, need_weights, average):
    x = torch.randn(BATCH, LENGTH, WIDTH)
    qkv, proj = torch.randn(3 * WIDTH, WIDTH) / 3, torch.randn(WIDTH, WIDTH) / 3
    mask, mask_type = _masks()[kind]
    arguments = (x, x, x, WIDTH, HEADS, qkv, torch.randn(3 * WIDTH), proj, torch.randn(WIDTH))
    options = (mask, need_weights, average, mask_type)
    expected, weights = aten._native_multi_head_attention(*arguments, *options)
    result, probabilities = parts.native_multi_head_attention(*arguments, *options)
    torch.testing.assert_close(result, expected)
    if need_weights:
        torch.testing.assert_close(probabilities, weights)


@pytest.mark.parametrize("kind", ["none", "attention", "padding"])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer(kind, norm_first, activation):
    layer = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, 20, activation=activation, norm_first=norm_first, batch_first=True
    ).eval()
    x = torch.randn(BATCH, LENGTH, WIDTH)
    mask, mask_type = _masks()[kind]
    attention, norm_1, norm_2 = layer.self_attn, layer.norm1, layer.norm2
    arguments = (x, WIDTH, HEADS, attention.in_proj_weight, attention.in_proj_bias)
    arguments += (attention.out_proj.weight, attention.out_proj.bias, activation == "gelu", norm_first, 1e-5)
    arguments += (norm_1.weight, norm_1.bias, norm_2.weight, norm_2.bias)
    arguments += (layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias)
    with torch.no_grad():
        expected = aten._transformer_encoder_layer_fwd(*arguments, mask, mask_type)
        torch.testing.assert_close(parts.transformer_encoder_layer_fwd(*arguments, mask, mask_type), expected)


@pytest.mark.parametrize(("shape", "dim"), [((4, 3), 0), ((4, 3), 1), ((4, 3, 2), 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_norm_backward(shape, dim, dtype):
    v = torch.randn(shape).to(dtype)
    g = torch.rand([n if d == dim else 1 for d, n in enumerate(shape)]).to(dtype) + 0.5
    w, norms = aten._weight_norm_interface(v, g, dim)
    grad = torch.randn(shape).to(dtype)
    expected = aten._weight_norm_interface_backward(grad, v, g, norms, dim)
    result = parts.weight_norm_interface_backward(grad, v, g, norms, dim)
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(result, expected, **tolerance)
    assert w.shape == grad.shape
