# SPDX-License-Identifier: Apache-2.0
"""amp and the kernels on the GPU of this machine, beside the same on the CPU. What test_amp_cuda tells of a fake one
holds here too: who stepped and each scale are the same, and nothing waits, which torch itself watches."""

import contextlib
import copy
import io
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU here", allow_module_level=True)

import test_amp_cuda as same  # noqa: E402
from levels import DYNAMIC  # noqa: E402
from libamp import kernels  # noqa: E402
from libamp.torch import _devices, amp  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from training import nothing_waits  # noqa: E402

pytestmark = pytest.mark.plain_half
LOSSES = {
    "cross_entropy": lambda x, y: nn.functional.cross_entropy(x, y),
    "log_softmax": lambda x, y: nn.functional.nll_loss(nn.functional.log_softmax(x, 1), y),
    "softmax": lambda x, y: nn.functional.softmax(x, 1).square().sum(),
    "sum": lambda x, y: x.sum(0).square().sum(),
}
SCRIPTS = sorted((pathlib.Path(__file__).parent / "gpu_scripts").glob("*.py"))
LEVELS = ["O0", "O1", "O2", "O4", "O5"]
MAKE = dict(same.MAKE)
OWN = [make.__name__ for make in same.OWN]
WAITS_NOT = ("_adamw", "_sgd", "_fused_adam", "_lamb", *OWN)
TOLERANCE = {"O0": 1e-4, "O1": 2e-2, "O2": 2e-2, "O4": 6e-2, "O5": 6e-2}


@pytest.fixture(autouse=True)
def _ends():
    yield
    torch.cuda.set_sync_debug_mode("default")
    amp.shutdown()
    _devices.read_switch()


def _start(make, level, device, loss_scale="dynamic", **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(device)
    optimizer = MAKE[make](model.parameters())
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=loss_scale, **settings)


def _train(make, level, device):
    model, optimizer = _start(make, level, device)
    stepped = []
    # After a skip was heard of the GPU is asked, and torch sees it where its own operators do it.
    asks = (6, 7) if os.environ.get("LIBAMP_TORCH_OPS") == "1" else (7,)
    for i, x in enumerate(x.to(device) for x in same._inputs()):
        alone = device == "cuda" and i > 2 and i not in asks and make in WAITS_NOT
        with nothing_waits() if alone else contextlib.nullcontext():
            same._iterate(model, optimizer, x)
        stepped.append(amp.stepped(optimizer))
    return [param.detach().cpu() for param in amp.master_params(optimizer)], amp.state_dict(), stepped


def assert_close(values, others, level):
    for value, other in zip(values, others, strict=True):
        torch.testing.assert_close(value.float(), other.float(), rtol=TOLERANCE[level], atol=TOLERANCE[level])


class _Casts(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.to = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op is torch.ops.aten._to_copy.default:
            self.to.append(kwargs.get("dtype"))
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("level, dtype", [("O1", torch.float16), ("O4", torch.bfloat16)])
@pytest.mark.parametrize("name", LOSSES)
def test_fp32_inside_a_kernel_is_fp32_of_a_cast(name, level, dtype):
    torch.manual_seed(0)
    x, y = torch.randn(64, 1000, device="cuda").to(dtype), torch.randint(0, 1000, (64,), device="cuda")
    ours, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
    LOSSES[name](expected.float(), y).backward()
    _start("_sgd", level, "cuda")
    with _Casts() as casts:
        loss = LOSSES[name](ours, y)
    assert loss.dtype is torch.float32
    assert len(casts.to) == (name != "sum" and dtype is torch.bfloat16)  # torch's own, where its kernel cannot
    torch.testing.assert_close(loss, LOSSES[name](x.float(), y), rtol=1e-5, atol=1e-6)
    loss.backward()
    assert ours.grad.dtype is dtype
    torch.testing.assert_close(ours.grad, expected.grad, rtol=2 * torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("torch_ops", ["0", "1"], ids=["plugin", "torch's operators"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("make", MAKE)
def test_trainings_are_the_cpus(make, level, torch_ops, monkeypatch):
    monkeypatch.setenv("LIBAMP_TORCH_OPS", torch_ops)
    values, state, stepped = _train(make, level, "cuda")
    amp.shutdown()
    monkeypatch.delenv("LIBAMP_TORCH_OPS")
    expected, expected_state, _ = _train(make, level, "cpu")
    assert stepped == [i not in same.SPOILT for i in range(same.STEPS)]
    assert state == expected_state
    assert_close(values, expected, level)


@pytest.mark.parametrize("torch_ops", ["0", "1"], ids=["plugin", "torch's operators"])
@pytest.mark.parametrize("level", ["O0", "O4", "O5"])
@pytest.mark.parametrize("make", OWN)
def test_nothing_waits_at_a_static_scale(make, level, torch_ops, monkeypatch):
    monkeypatch.setenv("LIBAMP_TORCH_OPS", torch_ops)
    model, optimizer = _start(make, level, "cuda", loss_scale=1.0)
    clean = [x.cuda() for i, x in enumerate(same._inputs()) if i not in same.SPOILT]
    for i, x in enumerate(clean):
        with nothing_waits() if i > 2 else contextlib.nullcontext():
            same._iterate(model, optimizer, x)


@pytest.mark.parametrize("level", ["O1", "O2", "O4", "O5"])
@pytest.mark.parametrize("make", ["_adamw_capturable", "_sgd", "_fused_adam", "_own_adam", "_own_sgd"])
def test_an_iteration_in_a_graph_is_one_without(make, level, monkeypatch):
    monkeypatch.setitem(
        MAKE, "_adamw_capturable",
        lambda params: torch.optim.AdamW(params, lr=0.01, fused=True, capturable=True),
    )
    expected, expected_state, _ = _train_side(make, level)
    amp.shutdown()
    model, optimizer = _start(make, level, "cuda")
    inputs, stepped = [x.cuda() for x in same._inputs()], []
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for x in inputs[:4]:
            same._iterate(model, optimizer, x)
            stepped.append(amp.stepped(optimizer))
    torch.cuda.current_stream().wait_stream(stream)
    static, graph = torch.zeros(4, 8, device="cuda"), torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = model(static).float().pow(2).mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    for x in inputs[4:]:
        static.copy_(x)
        with nothing_waits():
            graph.replay()
        stepped.append(amp.stepped(optimizer))
    assert stepped == [i not in same.SPOILT for i in range(same.STEPS)]
    assert amp.state_dict() == expected_state
    assert_close([param.detach().cpu() for param in amp.master_params(optimizer)], expected, level)
    torch.cuda.synchronize()
    del graph


def _train_side(make, level):
    return _train("_adamw" if make == "_adamw_capturable" else make, level, "cuda")


@pytest.mark.parametrize("level", DYNAMIC)
def test_graphed_callables_train_as_the_model_does(level):
    expected, expected_state, _ = _train("_adamw", level, "cuda")
    amp.shutdown()
    model, optimizer = _start("_adamw", level, "cuda")
    model = torch.cuda.make_graphed_callables(model, (torch.zeros(4, 8, device="cuda"),))
    for x in same._inputs():
        same._iterate(model, optimizer, x.cuda())
    assert amp.state_dict() == expected_state
    assert_close([param.detach().cpu() for param in amp.master_params(optimizer)], expected, level)
    amp.shutdown()
    fresh = torch.cuda.make_graphed_callables(nn.Linear(8, 4).cuda(), (torch.zeros(4, 8, device="cuda"),))
    with pytest.raises(RuntimeError, match=r"AFTER amp\.initialize"):
        amp.initialize(fresh, opt_level="O1", verbosity=0)


def test_what_a_capture_cannot_have_is_refused_in_words():
    model, optimizer = _start("_plain", "O1", "cuda")
    for x in same._inputs()[1:4]:
        same._iterate(model, optimizer, x.cuda())
    graph, static = torch.cuda.CUDAGraph(), torch.zeros(4, 8, device="cuda")
    with pytest.raises(RuntimeError, match="AdamW cannot be captured"), torch.cuda.graph(graph):
        with amp.scale_loss(model(static).float().pow(2).mean(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()


def test_a_resumed_run_is_the_uninterrupted_one():
    def run(path):
        model, optimizer = _start("_adamw", "O5", "cuda")
        for i, x in enumerate(same._inputs()):
            if path is not None and i == 4:
                torch.save([model.state_dict(), optimizer.state_dict(), amp.state_dict()], path)
                amp.shutdown()
                model, optimizer = _start("_adamw", "O5", "cuda")
                path.seek(0)
                for to, state in zip((model, optimizer, amp), torch.load(path, map_location="cuda"), strict=True):
                    to.load_state_dict(state)
            same._iterate(model, optimizer, x.cuda())
        values = [param.detach().cpu() for param in amp.master_params(optimizer)]
        state = amp.state_dict()
        amp.shutdown()
        return values, state

    values, state = run(None)
    resumed, resumed_state = run(io.BytesIO())
    assert state["loss_scaler0"]["loss_scale"] == resumed_state["loss_scaler0"]["loss_scale"]
    assert all(map(torch.equal, values, resumed))


# -- kernels --

SIZES = (1, 7, 256, 4097, 100_003)
TYPES = (torch.float32, torch.float16, torch.bfloat16)


def _tensors(dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, generator=generator) * 3).to(dtype) for size in SIZES]


def _there(tensors):
    return [tensor.cuda() for tensor in tensors]


def _equal(there, here):
    return all(torch.equal(gpu.cpu(), cpu) for gpu, cpu in zip(there, here, strict=True))


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("of", TYPES)
def test_casts_and_scales_are_the_cpus_bits(of, to):
    src = _tensors(of)
    dst = [torch.empty_like(each, dtype=to) for each in src]
    there, dst_there = _there(src), _there(dst)
    kernels.cast(dst, src)
    with nothing_waits():
        kernels.cast(dst_there, there)
    assert _equal(dst_there, dst)
    if torch.float32 in (of, to) or of is to:
        found = torch.zeros(1, device="cuda")
        assert kernels.scale(dst, src, 0.125) is False
        with nothing_waits():
            kernels.scale(dst_there, there, 0.125, found_inf=found)
        assert _equal(dst_there, dst) and found.item() == 0
    there[3][17] = float("inf")
    assert kernels.scale(dst_there, there, 2.0) is True


def test_norms_are_the_cpus_within_their_bound():
    for dtype in TYPES:
        src = _tensors(dtype)
        total, each = kernels.l2norms(src)
        total_there, each_there = kernels.l2norms(_there(src))
        np.testing.assert_allclose([total_there, *each_there], [total, *each], rtol=1e-6)


@pytest.mark.parametrize("rule, names", [("sgd", ["momentum_buffer"]), ("adamw", ["exp_avg", "exp_avg_sq"]),
                                         ("lamb", ["exp_avg", "exp_avg_sq"]), ("adagrad", ["sum"])])
def test_steps_are_the_cpus(rule, names):
    sides = []
    for device in ("cpu", "cuda"):
        params = [tensor.to(device) for tensor in _tensors(torch.float32)]
        halves = [param.to(torch.bfloat16) for param in params]
        state = {name: [torch.zeros_like(param) for param in params] for name in names}
        steps = torch.zeros(len(params), dtype=torch.int64, device=device)
        for i in range(3):
            grads = [tensor.to(device) for tensor in _tensors(torch.bfloat16, i + 1)]
            kernels.optimizer_step(rule, params, grads, state, steps=steps, model_params=halves, inv_scale=0.5, lr=0.01,
                                   **({"momentum": 0.9} if rule == "sgd" else {}))
        sides.append([*params, *halves])
    for here, there in zip(*sides, strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=1e-2 if here.dtype is torch.bfloat16 else 2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(64, 128, 256), (33, 70, 129)])
def test_products_are_the_cpus(dtype, shape):
    m, k, n = shape
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(s, generator=generator).to(dtype) for s in ((m, k), (k, n)))
    bias, d = torch.randn(n, generator=generator).to(dtype), torch.empty(m, n, dtype=dtype)
    there = torch.empty(m, n, dtype=dtype, device="cuda")
    kernels.matmul(d, a, b, bias=bias, activation="relu")
    kernels.matmul(there, a.cuda(), b.cuda(), bias=bias.cuda(), activation="relu")
    close = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    torch.testing.assert_close(there.cpu(), d, rtol=close, atol=close)


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_packed_bytes_are_the_cpus(dtype, bits):
    for i, src in enumerate(_tensors(dtype)):
        src = src.clamp(min=0).sign() if bits == 1 else src
        packed = torch.zeros(kernels.packed_bytes(src.numel(), bits), dtype=torch.uint8)
        there, flags = torch.zeros_like(packed, device="cuda"), torch.zeros(2, device="cuda")
        src_there = src.cuda()
        assert kernels.pack(packed, src, bits, i) == (False, False)
        with nothing_waits():
            assert kernels.pack(there, src_there, bits, i, None, flags) is None
        assert torch.equal(there.cpu(), packed) and flags.tolist() == [0.0, 0.0]
        back, back_there = torch.empty_like(src), torch.empty_like(src, device="cuda")
        kernels.unpack(back, packed, bits)
        with nothing_waits():
            kernels.unpack(back_there, there, bits)
        assert torch.equal(back_there.cpu(), back)
    spoilt = torch.ones(1000, dtype=dtype, device="cuda")
    spoilt[700] = float("inf")
    packed = torch.zeros(kernels.packed_bytes(1000, bits), dtype=torch.uint8, device="cuda")
    assert kernels.pack(packed, spoilt, bits, 0)[0] is True
    with pytest.raises(ValueError, match="packed: is on another device than src"):
        kernels.pack(packed.cpu(), spoilt, bits, 0)


def test_split_masters_are_the_cpus_bits():
    src = _tensors(torch.float32)
    for device in ("cpu", "cuda"):
        wide = [tensor.to(device) for tensor in src]
        low = [torch.empty_like(tensor, dtype=torch.bfloat16) for tensor in wide]
        sizes = [kernels.remainder_bytes(tensor.numel()) // 4 for tensor in wide]
        rest = [torch.zeros(size, device=device) for size in sizes]
        kernels.split(low, rest, wide)
        assert _equal(low, [tensor.bfloat16() for tensor in src])
        back = [torch.empty_like(tensor) for tensor in wide]
        kernels.join(back, low, rest)
        assert _equal(back, src)


# -- memory --


@pytest.mark.parametrize("make", same.MAKE)
def test_split_masters_are_fp32_masters(make):
    sides = []
    for masters in (True, "split"):
        model, optimizer = _start(make, "O5", "cuda", master_weights=masters)
        for x in same._inputs():
            same._iterate(model, optimizer, x.cuda())
        sides.append([tensor.cpu() for tensor in model.state_dict().values()])
        amp.shutdown()
    assert all(map(torch.equal, *sides))


@pytest.mark.parametrize("unheard", [0, 100])
def test_activations_are_packed_as_the_cpus(unheard):
    values, counts = same._train_compressed(unheard, True, "cuda")
    expected, expected_counts = same._train_compressed(unheard, True)
    assert_close(map(torch.tensor, values), map(torch.tensor, expected), "O5")
    assert counts["1 bit"][0] > 0
    assert unheard or counts["not finite"] == expected_counts["not finite"]  # else some are not known yet


@pytest.mark.parametrize("bits, off", [(8, 0.03), (4, 0.4)])
def test_compressed_activations(bits, off):
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.1))]
    model = nn.Sequential(*layers, nn.Linear(512, 8)).cuda()
    plain, used, grads = copy.deepcopy(model), [], []
    handle = amp.compress_activations(model, bits=bits)
    x = torch.randn(8192, 512, device="cuda")
    for each in (plain, model):
        for _ in range(3):
            each.zero_grad()
            torch.manual_seed(7)
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            loss = each(x).pow(2).mean()
            torch.cuda.synchronize()
            if each is model:
                handle.store._take_answers(0)
            used.append(torch.cuda.memory_allocated() - before)
            loss.backward()
        grads.append([param.grad.clone() for param in each.parameters()])
    for exact, grad in zip(*grads, strict=True):
        assert (grad - exact).norm() <= off * exact.norm()
    assert handle.bytes.now < (bits / 32 + 0.03) * handle.bytes.before + x.nbytes, handle.report()
    assert used[-1] < 0.45 * used[2], (used, handle.report())  # x itself, the mask and the last results are exact


# -- the doctor --


def _train_by_torch():
    """By torch.amp alone, with a scaler and an optimizer that skips on the device, as its second step is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=4)
    x, losses = torch.randn(32, 64, device="cuda"), []
    for i in range(20):
        with nothing_waits() if i > 2 else contextlib.nullcontext():
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = model(x).float().square().mean() * (float("inf") if i == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.detach().clone())
    return [*losses, *(param.detach().clone() for param in model.parameters())]


def test_the_doctor_waits_for_nothing_and_changes_no_bit():
    bare = _train_by_torch()
    with amp.doctor(quiet=True) as doctor:
        watched = _train_by_torch()
    assert all(torch.equal(one, other) or not one.isfinite().all() for one, other in zip(bare, watched, strict=True))
    run = doctor.result.run
    (optimizer,), (scaler,) = run.optimizers, run.scalers
    assert (optimizer.tried, optimizer.skipped, scaler.skips, scaler.first_skip) == (20, 1, 1, 2) and not run.unseen
    assert len(run.losses) == 20 and scaler.history[0][1] == 2.0**10 / 2 and run.devices == ["cuda"]
    assert all(param.moved == param.sampled for param in run.params) and run.watched


# -- scripts --


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_train_on_the_gpu(script):
    ran = subprocess.run([sys.executable, "-m", "libamp.run", str(script)], text=True, capture_output=True, timeout=240)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    found = re.search(r"^loss ([\d.]+) -> ([\d.]+)", ran.stdout, re.MULTILINE)
    assert found and float(found.group(2)) < 0.8 * float(found.group(1)), ran.stdout[-2000:]
