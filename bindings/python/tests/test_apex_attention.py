# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.multihead_attn: the formulas of NVIDIA's tests, and torch's own attention with the same weights."""

import pytest
import torch
import torch.nn.functional as F
from libamp.torch import amp
from libamp.torch.contrib.multihead_attn import (
    EncdecMultiheadAttn,
    SelfMultiheadAttn,
    fast_mask_softmax_dropout_func,
)

TIME, KEYS, BATCH, EMBED, HEADS = 5, 7, 3, 24, 4
IMPLS = ["fast", "default"]


def _by_parts(joint, parts):
    """Rows of heads outside and parts inside, as rows of parts outside: torch's order."""
    return joint.view(HEADS, parts, EMBED // HEADS, *joint.shape[1:]).transpose(0, 1).reshape(joint.shape)


def _fill(layer):
    """Biases that are not 0."""
    torch.manual_seed(1)
    for name, param in layer.named_parameters():
        if "bias" in name and "lyr_nrm" not in name:
            torch.nn.init.normal_(param)
    return layer


def _torchs(layer, weight, bias):
    own = torch.nn.MultiheadAttention(EMBED, HEADS, bias=bias is not None)
    own.in_proj_weight.data, own.out_proj.weight.data = weight, layer.out_proj_weight.data
    if bias is not None:
        own.in_proj_bias.data, own.out_proj.bias.data = bias, layer.out_proj_bias.data
    return own


def _masks(kind, keys):
    padding = torch.zeros(BATCH, keys, dtype=torch.bool)
    padding[0, -2:] = padding[2, 0] = True
    times = torch.triu(torch.ones(TIME, keys, dtype=torch.bool), 1)
    return {"none": {}, "padding": {"key_padding_mask": padding}, "times": {"attn_mask": times}}[kind]


def _compare(layer, own, inputs, masks, byte):
    given = {name: mask.to(torch.uint8) if byte else mask for name, mask in masks.items()}
    outputs, weights = layer(*inputs, *inputs[-1:] * (3 - len(inputs)), **given, is_training=True)
    expected, _ = own(*inputs, *inputs[-1:] * (3 - len(inputs)), **masks)
    assert weights is None
    torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-5)
    seed = torch.randn_like(outputs)
    grads = [torch.autograd.grad(value, inputs, seed) for value in (outputs, expected)]
    torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("kind", ["none", "padding", "times"])
@pytest.mark.parametrize("bias", [False, True])
def test_attention_to_itself_is_torchs(impl, kind, bias):
    layer = _fill(SelfMultiheadAttn(EMBED, HEADS, bias=bias, impl=impl))
    joint = layer.in_proj_bias
    own = _torchs(layer, _by_parts(layer.in_proj_weight.data, 3), None if joint is None else _by_parts(joint.data, 3))
    inputs = [torch.randn(TIME, BATCH, EMBED, requires_grad=True)]
    _compare(layer, own, inputs, _masks(kind, TIME), byte=impl == "fast")


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("kind", ["none", "padding"])
def test_attention_to_another_is_torchs(impl, kind):
    layer = _fill(EncdecMultiheadAttn(EMBED, HEADS, bias=impl == "default", impl=impl))
    bias = layer.in_proj_bias_q
    weight = torch.cat([layer.in_proj_weight_q.data, _by_parts(layer.in_proj_weight_kv.data, 2)])
    bias = None if bias is None else torch.cat([bias.data, _by_parts(layer.in_proj_bias_kv.data, 2)])
    inputs = [torch.randn(size, BATCH, EMBED, requires_grad=True) for size in (TIME, KEYS)]
    _compare(layer, _torchs(layer, weight, bias), inputs, _masks(kind, KEYS), byte=True)


@pytest.mark.parametrize("impl", IMPLS)
def test_separate_parameters_are_the_joint_ones_in_rows(impl):
    joint = _fill(SelfMultiheadAttn(EMBED, HEADS, bias=True, impl=impl))
    layer = SelfMultiheadAttn(EMBED, HEADS, bias=True, impl=impl, separate_qkv_params=True)
    state = {"out_proj_weight": joint.out_proj_weight, "out_proj_bias": joint.out_proj_bias}
    for kind in ("weight", "bias"):
        rows = _by_parts(getattr(joint, f"in_proj_{kind}").data, 3).chunk(3)
        state.update({f"{part}_{kind}": part_rows for part, part_rows in zip("qkv", rows, strict=True)})
    layer.load_state_dict(state)
    x = torch.randn(TIME, BATCH, EMBED)
    assert torch.equal(layer(x, x, x)[0], joint(x, x, x)[0])


@pytest.mark.parametrize("impl", IMPLS)
def test_an_additive_mask_is_added(impl):
    plain, additive = (SelfMultiheadAttn(EMBED, HEADS, bias=True, impl=impl, mask_additive=a) for a in (False, True))
    additive.load_state_dict(plain.state_dict())
    x, padding = torch.randn(TIME, BATCH, EMBED), _masks("padding", TIME)["key_padding_mask"]
    hidden = plain(x, x, x, key_padding_mask=padding)[0]
    torch.testing.assert_close(additive(x, x, x, key_padding_mask=padding.half() * -10000)[0], hidden)
    assert not torch.allclose(additive(x, x, x, key_padding_mask=padding * -0.5)[0], hidden)


@pytest.mark.parametrize("bias", [False, True])
def test_norm_and_residual_around_both_kinds(bias):
    x, y = torch.randn(TIME, BATCH, EMBED), torch.randn(KEYS, BATCH, EMBED)
    for kind, key in ((SelfMultiheadAttn, x), (EncdecMultiheadAttn, y)):
        for impl in IMPLS[bias and kind is EncdecMultiheadAttn :]:
            layer = _fill(kind(EMBED, HEADS, bias=bias, include_norm_add=True, impl=impl))
            inside = kind(EMBED, HEADS, bias=bias, impl="default")
            inside.load_state_dict(layer.state_dict(), strict=False)
            normed = F.layer_norm(x, (EMBED,))
            expected = x + inside(normed, normed if key is x else key)[0]
            torch.testing.assert_close(layer(x, key, key)[0], expected, atol=1e-5, rtol=1e-5)
        names = {name for name, _ in kind(EMBED, HEADS, include_norm_add=True).named_parameters()}
        assert {"lyr_nrm_gamma_weights", "lyr_nrm_beta_weights"} <= names


def test_dropout_is_for_training_alone():
    x = torch.randn(TIME, BATCH, EMBED)
    for impl in IMPLS:
        layer = SelfMultiheadAttn(EMBED, HEADS, dropout=0.5, include_norm_add=True, impl=impl)
        still = layer(x, x, x, is_training=False)[0]
        assert torch.equal(still, layer(x, x, x, is_training=False)[0])
        assert not torch.allclose(still, layer(x, x, x)[0])


def test_first_weights_are_those_of_square_matrices():
    layer, other = SelfMultiheadAttn(512, 8), EncdecMultiheadAttn(512, 8)
    bound = (6 / 1024) ** 0.5
    for weight in (layer.in_proj_weight, layer.out_proj_weight, other.in_proj_weight_kv, other.in_proj_weight_q):
        assert bound * 0.99 < weight.abs().max() <= bound


@pytest.mark.parametrize("additive", [True, False])
def test_masked_softmax(additive):
    """NVIDIA's formula: softmax of scores and mask."""
    scores = torch.randn(BATCH * HEADS, TIME, TIME, requires_grad=True)
    padding = _masks("padding", TIME)["key_padding_mask"]
    mask = padding.float() * -10000
    result = fast_mask_softmax_dropout_func(True, HEADS, scores, mask if additive else padding, additive, 0.0)
    expected = F.softmax(scores.view(BATCH, HEADS, TIME, TIME) + mask[:, None, None], dim=-1).view(scores.shape)
    torch.testing.assert_close(result, expected)
    seed = torch.randn_like(result)
    torch.testing.assert_close(*(torch.autograd.grad(value, scores, seed) for value in (result, expected)))
    assert torch.equal(fast_mask_softmax_dropout_func(False, HEADS, scores, None, additive, 0.9), F.softmax(scores, -1))


@pytest.mark.parametrize("impl", IMPLS)
def test_amp_casts_it(impl):
    layer = SelfMultiheadAttn(EMBED, HEADS, bias=True, include_norm_add=True, impl=impl)
    x = torch.randn(TIME, BATCH, EMBED)
    expected = layer(x, x, x)[0]
    model = amp.initialize(layer, opt_level="O4", verbosity=0)
    with torch.no_grad():
        torch.testing.assert_close(model(x, x, x)[0].float(), expected, atol=5e-2, rtol=5e-2)
    amp.shutdown()


@pytest.mark.parametrize(("make", "words"), [
    (lambda: SelfMultiheadAttn(10, 4), "divisible"),
    (lambda: SelfMultiheadAttn(8, 4, impl="slow"), "'fast' or 'default'"),
    (lambda: SelfMultiheadAttn(8, 4, mask_additive=True), "needs bias=True"),
    (lambda: SelfMultiheadAttn(8, 4, bias=True, mask_additive=True, include_norm_add=True), "include_norm_add"),
    (lambda: EncdecMultiheadAttn(8, 4, bias=True), "impl='default'"),
    (lambda: SelfMultiheadAttn(8, 4)(torch.ones(2, 1, 8), None, None, key_padding_mask=torch.ones(1, 2),
                                     attn_mask=torch.ones(2, 2)), "not both"),
    (lambda: SelfMultiheadAttn(8, 4, bias=True, mask_additive=True)(torch.ones(2, 1, 8), attn_mask=torch.ones(2, 2)),
     "not for attn_mask"),
    (lambda: SelfMultiheadAttn(8, 4)(torch.ones(2, 1, 8), attn_mask=torch.ones(2)), "[queries, keys]"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_words(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert words in str(error.value)
