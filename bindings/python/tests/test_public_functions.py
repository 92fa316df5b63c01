# SPDX-License-Identifier: Apache-2.0
"""Every public function of torch, torch.linalg, torch.fft and torch.nn.functional, and the methods of the same names:
where it works on mixed or 16-bit arguments under torch.autocast, or plainly, it works at O1 and O4."""
import collections
import re

import casting
import pytest
from casting import LOW, by_hand, policy, words
from public import NAMESPACES, NEWEST, OTHER, Maker

torch = casting.torch
from levels import PATCHES  # noqa: E402
from libamp import _core  # noqa: E402

SINGLE = torch.float32
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
# torch.autocast on CPUs has fp16 since 2.4; older torches have few of its kernels.
LEVELS = PATCHES if VERSION >= (2, 4) else ("O4",)
PREFIX = {"torch.linalg": "linalg_", "torch.fft": "fft_"}
# The rows of docs/internals/apex-differences-python.md, "beside torch.autocast", that fail here and not there.
REFUSED = {("torch.nn.functional", "binary_cross_entropy")}
# What torch.autocast names and the lists do not: the insides of functions that they have; what runs in 16 bits too, in
# the type that arrives (the second row of that table).
INSIDE = set(words("""
    _addmm_activation _convolution _cudnn_rnn _grid_sampler_2d_cpu_fallback _lu_with_info _native_multi_head_attention
    _scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell _upsample_bicubic2d_aa
    _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    cross_entropy_loss
    mkldnn_rnn_layer multilabel_margin_loss_forward nll_loss2d upsample_bicubic2d upsample_bilinear2d upsample_linear1d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d
"""))
AS_IT_COMES = set(words("""
    adaptive_avg_pool3d adaptive_max_pool3d fake_quantize_per_tensor_affine fractional_max_pool2d fractional_max_pool3d
    log1p
    logsumexp max_pool3d max_unpool2d max_unpool3d reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d
    replication_pad3d trace
"""))
ON_CUDA = {name: fp16 for name, _, fp16, _ in _core.list_ops(2)}  # list "torch"


def backward(result):
    flat = result if isinstance(result, (list, tuple)) else [result]
    taped = [each for each in flat if isinstance(each, torch.Tensor) and each.requires_grad]
    if taped:
        sum((each.real if each.is_complex() else each).double().sum() for each in taped).backward()


def attempt(find, make, dtypes):
    """What is wrong with a call on leaves of these types, and with its backward; None: nothing."""
    args = make(Maker(*dtypes))
    kwargs = args[-1] if isinstance(args[-1], dict) else {}
    try:
        backward(find()(*(args[:-1] if kwargs else args), **kwargs))
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def works_elsewhere(find, make, dtypes, low, name):
    with by_hand():
        if attempt(find, make, dtypes) is None:
            return True
        with torch.autocast("cpu", low):
            if attempt(find, make, dtypes) is None:
                return True
        op_class = ON_CUDA.get(name)  # there is no such device, but what it would do is known
        if op_class is None or op_class == 5:
            return False
        alike = set(dtypes) == {low}
        return attempt(find, make, [low if op_class == 1 or (op_class != 2 and alike) else SINGLE]) is None


def ways(place, owner, name):
    """As the function, and as the method of this name."""
    yield lambda: getattr(owner, name)
    if place == "torch" and callable(getattr(torch.Tensor, name, None)):
        yield lambda: getattr(torch.Tensor, name)


@pytest.mark.filterwarnings("ignore")  # of what is deprecated, or slow, in some version
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("lists", ("apex", "torch"))
@pytest.mark.parametrize("place", NAMESPACES)
def test_what_works_under_autocast_works(place, lists, level):
    owner, table = NAMESPACES[place]
    low, failed, compared = LOW[level], collections.defaultdict(set), 0
    with policy(level, lists=lists, enter=True):
        for name, make in table.items():
            if not hasattr(owner, name):
                continue  # of another version of torch
            for find in ways(place, owner, name):
                for dtypes in ([low], [low, SINGLE], [SINGLE, low]):
                    wrong = attempt(find, make, dtypes)
                    compared += 1
                    if wrong and works_elsewhere(find, make, dtypes, low, PREFIX.get(place, "") + name):
                        failed[name].add(wrong)
    refused = {name for where, name in REFUSED if where == place and (lists, level) != ("torch", "O4")}
    assert compared > 3 * len(table) / 2
    assert set(failed) == refused, "\n".join(f"{name}: {wrong}" for name, wrong in failed.items())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", NAMESPACES)
def test_the_arguments_are_right(place):
    """In FP32, so that what fails elsewhere fails because of its types."""
    owner, table = NAMESPACES[place]
    there = {name: make for name, make in table.items() if hasattr(owner, name)}
    assert len(there) > 15
    wrong = {name: attempt(lambda name=name: getattr(owner, name), make, [SINGLE]) for name, make in there.items()}
    assert not {name: error for name, error in wrong.items() if error and VERSION >= (2, 4)}


@pytest.mark.skipif(VERSION != NEWEST, reason="the table has the functions of another PyTorch")
@pytest.mark.parametrize("place", NAMESPACES)
def test_no_public_function_is_missing(place):
    owner, table = NAMESPACES[place]
    other = re.compile("|".join(OTHER.split()))
    names = {
        name for name in dir(owner)
        if not name.startswith("_") and not name.endswith("_")  # in place: the types are the written tensor's
        and callable(getattr(owner, name)) and not isinstance(getattr(owner, name), type)
    }
    assert len(names & set(table)) > 15
    missing = {name for name in names - set(table) if not other.fullmatch(name)}
    assert not missing


@pytest.mark.skipif(VERSION != NEWEST, reason="the lists are those of another PyTorch")
def test_the_lists_of_torch_autocast_op_by_op():
    named = {}
    for device in ("CPU", "CUDA"):
        ops = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{device}")
        own = (op.removeprefix("aten::") for op in ops)  # another package's have its name before theirs
        named[device] = {op.split(".")[0] for op in own if "::" not in op}
        assert len(named[device]) > 90
    apex, todays = ({name for name, *_ in _core.list_ops(lists)} for lists in (1, 2))
    assert (named["CPU"] | named["CUDA"]) - apex == INSIDE | AS_IT_COMES
    assert named["CUDA"] - todays == {"_cudnn_rnn"}
