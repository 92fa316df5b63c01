# SPDX-License-Identifier: Apache-2.0
"""libamp on a device that torch has and libamp has no kernels for: registered through PrivateUse1 (toydevice.py)."""
import contextlib
import importlib
import io

import pytest

torch = pytest.importorskip("torch")
import extras  # noqa: E402
import toydevice  # noqa: E402
import training  # noqa: E402
from levels import DYNAMIC, LEVELS  # noqa: E402
from libamp.torch import _torch_ops as ops  # noqa: E402
from libamp.torch import amp, amp_C, optimizers  # noqa: E402
from libamp.torch.parallel.LARC import LARC  # noqa: E402
from test_torch_ops import Both, all_same, compare_lists, compare_steps, take_exact_roots  # noqa: E402
from toydevice import on_toy  # noqa: E402


def there(tensors):
    return [tensor.to("toy") for tensor in tensors]


def here(tensors):
    return [tensor.cpu() for tensor in tensors]


@on_toy
def test_the_device_is_none_that_libamp_knows():
    x = torch.ones(3).to("toy")
    before = toydevice.waits()
    assert x.device == torch.device("toy", 0) and not x.is_cpu and not x.is_cuda
    y = (x * 2).t()
    assert toydevice.waits() == before and y.device == x.device
    assert y.sum().item() == 6.0 and toydevice.waits() == before + 1
    with pytest.raises(RuntimeError, match="same device"):
        torch.mm(torch.ones(2, 2), torch.ones(2, 2).to("toy"))


@contextlib.contextmanager
def nothing_waits():
    before = toydevice.waits()
    yield
    assert toydevice.waits() == before


@on_toy
def test_lists_have_the_cpus_bits_and_nothing_waits():
    both = Both("toy", nothing_waits)
    compare_lists(both)
    compare_steps(both)


@on_toy
def test_unscaling_looks_once_a_list():
    """No kernel of torch's is there: a product and a largest element for each tensor, and the rest once."""
    counted = []
    for n in (10, 30):
        grads, found = [torch.ones(3, device="toy") for _ in range(n)], torch.zeros(1, device="toy")
        before = toydevice.ops()
        ops.scale(grads, grads, 0.5, found_inf=found)
        counted.append(toydevice.ops() - before)
    assert counted[1] - counted[0] == 2 * 20 and counted[0] < 2 * 10 + 20


# ---- training ----

DATA = training.batches(8)


def momentum(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, foreach=False)


FUSED = {
    "adam": lambda params: optimizers.FusedAdam(params, lr=0.01, weight_decay=0.1),
    "sgd": lambda params: optimizers.FusedSGD(params, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "lamb": lambda params: optimizers.FusedLAMB(params, lr=0.01),
    "mixed": lambda params: optimizers.FusedMixedPrecisionLamb(params, lr=0.01),
    "novograd": lambda params: optimizers.FusedNovoGrad(params, lr=0.01, weight_decay=0.1),
    "adagrad": lambda params: optimizers.FusedAdagrad(params, lr=0.01),
}


class Run:
    """training.py's net, on a device, at a level."""

    def __init__(self, device, level, make=momentum, **settings):
        self.device = device
        model = training.net().to(device)
        self.model, self.optimizer = amp.initialize(
            model, make(model.parameters()), opt_level=level, **{"verbosity": 0, **settings}
        )
        self.trace = []

    def step(self, batch, factor=1.0):
        training.backward(self.model, self.optimizer, there(batch) if self.device == "toy" else batch, factor)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, data, overflow=None):
        for i, batch in enumerate(data):
            self.step(batch, 1e30 if i == overflow else 1.0)
            self.trace.append(amp.state_dict())
        return self

    def masters(self):
        return here(p.detach() for p in amp.master_params(self.optimizer))

    def checkpoint(self):
        """Through a file, as a training that ends leaves it."""
        file = io.BytesIO()
        torch.save([self.model.state_dict(), self.optimizer.state_dict(), amp.state_dict()], file)
        return file

    def load(self, file):
        file.seek(0)
        states = torch.load(file, map_location=self.device)
        for to, state in zip((self.model, self.optimizer, amp), states, strict=True):
            to.load_state_dict(state)
        return self


def of_each_device(function):
    """The results on the CPU and on the toy device; each in a session of its own."""
    results = []
    for device in ("cpu", "toy"):
        results.append(function(device))
        amp.shutdown()
    return results


def assert_trains_as_on_the_cpu(level, make, **settings):
    def train(device):
        run = Run(device, level, make, **settings).train(DATA, 3 if level in DYNAMIC else None)
        assert {p.device.type for p in run.model.parameters()} == {device}
        return run.trace, run.masters(), here(run.model.state_dict().values())

    (trace, masters, weights), theirs = of_each_device(train)
    assert trace == theirs[0] and all_same(masters, theirs[1]) and all_same(weights, theirs[2])
    start = training.net().state_dict().values()
    assert any(not torch.equal(a.float(), b.float()) for a, b in zip(start, weights, strict=True))
    scales = [state["loss_scaler0"]["loss_scale"] for state in trace]
    assert (scales[3] == scales[2] / 2) == (level in DYNAMIC)


@pytest.mark.parametrize("level", LEVELS)
@on_toy
def test_levels_train_as_on_the_cpu(level):
    for make in (momentum, FUSED["adam"]):
        assert_trains_as_on_the_cpu(level, make)
    if level == "O1":
        assert_trains_as_on_the_cpu(level, momentum, lists="torch")


@pytest.mark.parametrize("name", [name for name in FUSED if name != "adam"])
@on_toy
def test_fused_optimizers_train_as_on_the_cpu(name):
    for level in ("O0", "O2", "O5"):
        assert_trains_as_on_the_cpu(level, FUSED[name])


@on_toy
def test_checkpoints_go_on_there_and_on_the_cpu():
    for level, make in (("O2", momentum), ("O5", FUSED["adam"])):

        def begin(device, level=level, make=make):
            run = Run(device, level, make).train(DATA[:4])
            return run.checkpoint(), run.train(DATA[4:]).masters()

        (_, whole), (file, theirs) = of_each_device(begin)
        assert all_same(whole, theirs)

        def resume(device, level=level, make=make, file=file):
            return Run(device, level, make).load(file).train(DATA[4:]).masters()

        assert all(all_same(whole, masters) for masters in of_each_device(resume))


@on_toy
def test_apexs_names_compute_there_what_they_do_on_the_cpu():
    def made(device, dtype, seed):
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(n, generator=generator).to(device, dtype) for n in (3, 40)]

    def kernels(device):
        flag = torch.zeros(1, dtype=torch.int32, device=device)
        x, out = made(device, torch.float32, 0), made(device, torch.float16, 1)
        amp_C.multi_tensor_scale(65536, flag, [x, out], 0.3)
        amp_C.multi_tensor_axpby(65536, flag, [x, out, x], 0.5, 2.0, -1)
        norm, norms = amp_C.multi_tensor_l2norm(65536, flag, [x], True)
        return [*x, *out, flag.float(), norm, norms]

    def stepped(device, make):
        params = [torch.nn.Parameter(p) for p in made(device, torch.float16, 0)]
        optimizer = make(params)
        for seed in range(1, 4):
            for param, grad in zip(params, made(device, torch.float16, seed), strict=True):
                param.grad = grad
            optimizer.step()
        return params

    def masters(device):
        return stepped(device, lambda p: optimizers.FusedAdam(p, lr=0.01, capturable=True, master_weights=True))

    def larc(device):
        return stepped(device, lambda p: LARC(torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False)))

    for function in (kernels, masters, larc):
        mine, theirs = of_each_device(function)
        assert all_same([one.detach() for one in mine], here(one.detach() for one in theirs))


@on_toy
def test_a_step_waits_no_oftener_than_with_torchs_scaler():
    """One value a step where the host decides on it. The first two steps look for averages, and at what was made."""
    for level, make, most in (("O1", momentum, 1), ("O2", FUSED["adam"], 1), ("O2", FUSED["mixed"], 0),
                              ("O4", momentum, 0), ("O5", FUSED["adam"], 0), ("O0", FUSED["lamb"], 0)):
        run = Run("toy", level, make).train(DATA[:3])
        batch = there(DATA[0])
        for _ in range(3):
            loss = torch.nn.functional.mse_loss(run.model(batch[0]).float(), batch[1])
            before = toydevice.waits()
            with amp.scale_loss(loss, run.optimizer) as scaled:
                scaled.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            assert toydevice.waits() - before <= most, (level, toydevice.waits() - before)
        amp.shutdown()

    model = training.net().to("toy")
    optimizer = optimizers.FusedAdam(model.parameters(), capturable=True)
    scaler = torch.amp.GradScaler("toy", init_scale=4.0)
    for x, y in DATA[:3]:
        scaler.scale(torch.nn.functional.mse_loss(model(x.to("toy")), y.to("toy"))).backward()
        before = toydevice.waits()
        scaler.step(optimizer)
        assert toydevice.waits() == before
        scaler.update()
        optimizer.zero_grad()


@on_toy
def test_the_lists_cast_where_torch_has_no_autocast():
    with pytest.raises((AssertionError, RuntimeError)):
        torch.autocast("toy")
    a, b = torch.ones(4, 4, device="toy"), torch.ones(4, 4, device="toy")
    for level, low in (("O1", torch.float16), ("O4", torch.bfloat16)):
        Run("toy", level)
        product = torch.mm(a, b)
        assert product.dtype is low and product.device.type == "toy"
        assert torch.exp(product).dtype is torch.nn.functional.softmax(product, 0).dtype is torch.float32
        assert torch.nn.functional.linear(a, b.to(low)).dtype is low
        with amp.disable_casts():
            assert torch.mm(a, b).dtype is torch.float32
        amp.shutdown()


@on_toy
def test_observing_counts_there_what_it_counts_on_the_cpu():
    def observed(device):
        run = Run(device, "O1")
        amp.observe()
        run.train(DATA[:2])
        seen = [
            (one.what, one.op, one.name, one.dtype, one.lost_fp16, one.lost_bf16, one.total[:7], one.total.binades)
            for one in amp.observations()
        ]
        amp.observe_stop()
        return seen

    mine, theirs = of_each_device(observed)
    assert len(mine) > 20 and mine == theirs


@on_toy
def test_clipping_and_what_needs_the_plugin():
    layers = extras.is_there("apex_layers")
    clips = importlib.import_module("libamp.torch.contrib.clip_grad") if layers else torch.nn.utils

    def clipped(device):
        run = Run(device, "O2")
        training.backward(run.model, run.optimizer, [value.to(device) for value in DATA[0]])
        norm = clips.clip_grad_norm_(amp.master_params(run.optimizer), 0.05)
        run.optimizer.step()
        return [norm.cpu(), *run.masters()]

    mine, theirs = of_each_device(clipped)
    assert mine[0] > 0.05 and all_same(mine, theirs)

    model = training.net().to("toy")
    with pytest.raises(RuntimeError, match=r"split.* needs .*plugin"):
        amp.initialize(model, momentum(model.parameters()), opt_level="O5", master_weights="split", verbosity=0)
    amp.shutdown()
    with pytest.raises(RuntimeError, match=r"compress_activations (needs .*plugin|is not in)"):
        amp.compress_activations(model)


@on_toy
def test_a_run_that_only_skips_is_told_of():
    """No event of the toy's says that a word has come: the device is asked now and then."""
    for make in (FUSED["adam"], lambda params: torch.optim.AdamW(params, lr=0.01, fused=True)):
        run = Run("toy", "O2", make, max_skips=20, verbosity=1)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), pytest.raises(RuntimeError, match="64 steps in a row were skipped"):
            for _ in range(150):
                run.optimizer.zero_grad()
                loss = run.model(DATA[0][0].to("toy")).float().mean() * float("nan")
                with amp.scale_loss(loss, run.optimizer) as scaled_loss:
                    scaled_loss.backward()
                run.optimizer.step()
        assert "overflow" in said.getvalue()
        amp.shutdown()


toydevice.start(lambda: take_exact_roots(setattr))
