# SPDX-License-Identifier: Apache-2.0
"""The doctor looks, changes nothing, waits for nothing, and tells. test_doctor_checks has its findings."""

import os
import sys
import threading

import pytest
import torch
import torch._dynamo  # torch 2.0 does not import it by itself
from libamp.torch import amp
from libamp.torch._living import living
from libamp.torch.doctor import ops, samples, seen, taps
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),  # of steps that are skipped
    pytest.mark.plain_half,  # a mode of the tests would keep the doctor's out
]
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
SCALES = pytest.mark.skipif(TORCH < (2, 6), reason="this torch has no GradScaler and no fp16 under autocast on CPUs")
FOLDER = os.path.dirname(os.path.abspath(taps.__file__))


def net(dtype=torch.float32):
    torch.manual_seed(3)
    layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 4)
    return nn.Sequential(*layers).to(dtype)


def data(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 8, generator=generator).to(dtype), torch.randn(32, 4, generator=generator).to(dtype)


def plain(model, optimizer, steps=12):
    x, y = data(next(model.parameters()).dtype)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


def scaled(model, optimizer, steps=12):
    """fp16 with a scaler. The first steps are skipped."""
    x, y = data()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, growth_interval=4, backoff_factor=2.0**-10)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        losses.append(loss.detach().clone())
    return losses


def compiled(model, optimizer):
    return plain(torch.compile(model, backend="aot_eager", fullgraph=True), optimizer, 4)


def iterations(model, optimizer, step, run=lambda function: function):
    x, y = data()

    def iteration():
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        step()
        optimizer.zero_grad()
        return loss.detach()

    iteration = run(iteration)
    return [iteration().clone() for _ in range(5)]


def compiled_step(model, optimizer):
    return iterations(model, optimizer, torch.compile(optimizer.step, backend="eager"))


def compiled_whole(model, optimizer):
    """Forward, backward and step in a function that torch.compile breaks into graphs."""
    return iterations(model, optimizer, optimizer.step, lambda function: torch.compile(function, backend="eager"))


def closures(model, optimizer):
    x, y = data()
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        losses.append(loss.detach().clone())
        return loss

    for _ in range(6):
        optimizer.step(closure)
    return losses


def half_weights(model, optimizer):
    return plain(model.to(torch.bfloat16), optimizer)


COMPILED = compiled, compiled_step, compiled_whole
SCALED = pytest.param(scaled, marks=SCALES)
OLD = TORCH < (2, 1)
LOW = pytest.param(half_weights, marks=pytest.mark.skipif(OLD, reason="this torch has no mse_loss in bf16 on CPUs"))
TRAININGS = [plain, SCALED, *COMPILED, closures, LOW]


def trained(training, kind=torch.optim.AdamW, **options):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = net()
    optimizer = kind(model.parameters(), lr=0.01, **options)
    torch.manual_seed(5)
    losses = training(model, optimizer)
    return [*losses, *model.state_dict().values(), torch.get_rng_state()]


@pytest.mark.parametrize("training", TRAININGS)
def test_no_bit_of_a_training_changes(training):
    bare = trained(training)
    breaks = dict(torch._dynamo.utils.counters["graph_break"])
    with amp.doctor(quiet=True) as doctor:
        watched = trained(training)
    assert len(bare) == len(watched) > 5 and all(map(torch.equal, bare, watched))
    assert OLD or dict(torch._dynamo.utils.counters["graph_break"]) == breaks  # torch 2.0 traces through taps
    run = doctor.result.run
    (optimizer,) = run.optimizers
    assert not run.unseen or run.unseen == ["compiled: ops not seen"], run.unseen
    steps = len([loss for loss in bare if loss.dim() == 0]) - 1  # num_batches_tracked is no loss
    assert optimizer.tried == steps and optimizer.looks >= 4
    assert len(run.params) == 6
    assert OLD or all(param.looks for param in run.params) == (training is not compiled_whole)
    assert training is half_weights or all(param.moved for param in run.params)
    assert run.compiled == (training in COMPILED) != bool(run.watched)


def attributes():
    """All places that a tap replaces, and torch's lists of hooks."""
    put = [(tap.owner, tap.name) for tap in taps._taps() if hasattr(tap, "owner")]
    module = sys.modules[torch.optim.Optimizer.__module__]
    hooks = module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks
    modules = torch.nn.modules.module
    hooks += modules._global_forward_pre_hooks, modules._global_forward_hooks
    return [vars(owner)[name] for owner, name in put] + [len(each) for each in hooks]


def test_all_taps_are_gone_behind_it():
    before = attributes()
    with amp.doctor(quiet=True):
        with pytest.raises(RuntimeError, match="a doctor looks at this process already"):
            amp.doctor().__enter__()
        trained(plain)
        assert all(one is not other for one, other in zip(before[:-4], attributes())) and len(before) > 20
        assert sum(attributes()[-4:]) == sum(before[-4:]) + (0 if OLD else 2)
    assert attributes() == before
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.mark.parametrize("owner,name", [(samples.Group, "gradients"), (ops.Ops, "_op")])
def test_an_error_of_the_doctor_is_not_the_scripts(monkeypatch, owner, name):
    bare = trained(plain)
    monkeypatch.setattr(owner, name, lambda *ignored: 1 / 0)
    with amp.doctor(quiet=True) as doctor:
        watched = trained(plain)
    assert all(map(torch.equal, bare, watched))
    assert any("ZeroDivisionError" in sentence for sentence in doctor.result.run.unseen)


# ---- cost ----


class Count(TorchDispatchMode):
    """Counts the ops that the doctor calls, and the elements that they make."""

    def __init__(self):
        super().__init__()
        self.ops = self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if taps._watch is not None and taps._watch.here.busy:
            self.ops += 1
            self.elements += out.numel() if isinstance(out, torch.Tensor) and not func.is_view else 0
        return out


@pytest.mark.parametrize("depth,width", [(4, 64), (4, 1024), (40, 64)])
def test_a_look_costs_a_few_ops_a_parameter_and_a_step_between_none(monkeypatch, depth, width):
    """By counting: three views and three detaches a parameter, and fifty ops for all whole or for all cut samples."""
    monkeypatch.setattr(seen.Budget, "is_due", lambda self, now: self.count < 1)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    costs = []
    with amp.doctor(quiet=True), Count() as count:
        for _ in range(3):
            model(torch.ones(1, width)).sum().backward()
            count.ops = count.elements = 0
            optimizer.step()
            costs.append((count.ops, count.elements))
    (ops, elements), *rest = costs
    each = 10 if OLD else 8
    assert 0 < ops <= each * 2 * depth + 100, ops
    assert 0 < elements <= 45 * 2 * depth * min(width * width, samples.SAMPLE), elements
    assert rest == [(0, 0), (0, 0)]


def test_samples_have_a_limit_for_all_parameters():
    params = [nn.Parameter(torch.zeros(100, 100)) for _ in range(400)]
    taken = samples.Samples(params)
    assert samples.TOTAL // 2 <= taken.elements() <= samples.TOTAL


def test_later_looks_are_paid_off_by_the_time_that_follows():
    budget = seen.Budget()
    for look in range(seen.FIRST):
        assert budget.is_due(0.0)
        budget.paid(1.0, float(look))
    assert not budget.is_due(0.99 * seen.FIRST / seen.SHARE)
    assert budget.is_due(1.01 * seen.FIRST / seen.SHARE)
    budget.paid(1.0, 1e6)  # behind a pause
    assert not budget.is_due(1e6 + 0.99 / seen.SHARE) and budget.is_due(1e6 + 1.01 / seen.SHARE)


@pytest.mark.parametrize("training", [plain, SCALED])
def test_it_reads_no_number_before_the_end(monkeypatch, training):
    """On a GPU reading waits. Numbers of a device other than the CPU go through Later, which copies them without
    waiting: here all are of such a device."""
    read = []

    def watched(name):
        original = getattr(torch.Tensor, name)

        def method(self, *args, **kwargs):
            frame = sys._getframe(1)
            if frame.f_code.co_filename.startswith(FOLDER) and taps._watch is not None:
                read.append((name, frame.f_code.co_name))
            return original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, method)

    for module in ("later", "recorder", "scaling"):
        monkeypatch.setattr(f"libamp.torch.doctor.{module}.is_here", lambda device: False)
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__"):
        watched(name)
    with amp.doctor(quiet=True) as doctor:
        trained(training)
    run = doctor.result.run
    assert read == []
    assert run.losses and run.watched and (run.scalers[0].history if training is scaled else True)


def test_it_searches_while_other_threads_wait_alone():
    """A thread that makes a tuple fails if a list of all objects has it."""
    model, over = nn.Linear(2, 2), threading.Event()
    waiting = threading.Thread(target=over.wait)
    waiting.start()
    assert any(found is model for found in living(frozenset((nn.Linear,))))

    def run():
        while not over.is_set():
            pass

    running = threading.Thread(target=run)
    running.start()
    try:  # a busy machine may give the thread no time in one millisecond
        assert any(not living(frozenset((nn.Linear,))) for _ in range(100))
    finally:
        over.set()
        waiting.join()
        running.join()


# ---- what it sees ----


def run_of(training, *args, **kwargs):
    with amp.doctor(quiet=True) as doctor:
        training(*args, **kwargs)
    return doctor.result.run


@SCALES
def test_a_scaled_training_as_it_was():
    run = run_of(trained, scaled)
    (scaler,), (schedule,), (clip,), (region,) = run.scalers, run.schedulers, run.clips, run.autocasts
    (optimizer,) = run.optimizers
    assert scaler.skips == optimizer.skipped == schedule.after_skip > 1
    assert (optimizer.tried, optimizer.steps) == (12, 12 - scaler.skips)
    assert (scaler.scales, scaler.steps, scaler.updates, scaler.unscales) == (12, 12, 12, 12)
    assert scaler.history[0] == (1, 2.0**50) and scaler.scale_min < 2.0**30
    assert (clip.calls, clip.scaled, clip.limit) == (12, 0, 1.0)
    assert (region.dtype, region.regions, region.backwards_inside) == ("float16", 12, 0)
    assert (run.iterations, run.backwards, len(run.losses)) == (12, 12, 12)
    assert optimizer.order[:4] == ["skip", "schedule", "backward", "clip"]
    assert os.path.samefile(clip.place.filename, __file__)


@SCALES
@pytest.mark.parametrize("fused", [False, True])
def test_skips_that_the_device_decides(fused):
    run = run_of(trained, scaled, fused=fused)
    assert run.optimizers[0].fused == fused
    assert run.optimizers[0].skipped == run.scalers[0].skips > 1


def test_names_models_and_state():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.first(x) + self.other(x)

    def training():
        model = Two()
        optimizer = torch.optim.AdamW(model.first.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()
        return model

    run = run_of(training)
    named = {param.name: param for param in run.params}
    assert set(named) == {"first.weight", "first.bias", "other.weight", "other.bias"}
    assert named["first.weight"].optimizer == 0 and named["first.weight"].state_dtypes["exp_avg_sq"] == "float32"
    other = named["other.weight"]
    assert other.optimizer == -1 and other.grad_looks and not other.moved
    (model,) = (run.models[param.model] for param in run.params[:1])
    assert (model.kind, model.params, [module.name for module in model.modules]) == ("Two", 4, ["first", "other"])


def test_steps_of_an_instance_where_torch_has_no_global_hooks(monkeypatch):
    module = sys.modules[torch.optim.Optimizer.__module__]
    monkeypatch.delattr(module, "register_optimizer_step_pre_hook")
    old = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1.0)
    bare = trained(plain)
    with amp.doctor(quiet=True) as doctor:
        watched = trained(plain)
        old.param_groups[0]["params"][0].grad = torch.ones(2)
        old.step()
    assert all(map(torch.equal, bare, watched)) and "step" not in vars(old)
    assert [(each.kind, each.steps) for each in doctor.result.run.optimizers] == [("AdamW", 12), ("SGD", 1)]


def test_autocast_around_the_doctor():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torch.autocast("cpu", torch.bfloat16), amp.doctor(quiet=True) as doctor:
        plain(model, optimizer)
    (region,) = doctor.result.run.autocasts
    assert (region.device, region.dtype, region.backwards_inside) == ("cpu", "bfloat16", 12)
    assert [each.code for each in doctor.result.found] == ["AMP-D09"]


def test_steps_of_compiled_functions_that_show_nothing():
    """Their parameters are written, no hook runs, and the gradients are gone."""
    model = net(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step():
        with torch.no_grad():
            for param in model.parameters():
                param.add_(0)

    early = torch.compile(step, backend="eager")
    early()
    with amp.doctor(quiet=True) as doctor:
        compiled = torch.compile(step, backend="eager")
        for _ in range(12):
            compiled()
    assert [(each.kind, each.steps) for each in doctor.result.run.optimizers] == [("SGD", 12)]
    assert "not judged: AMP-D01, updates of 16-bit weights: the compiled function" in doctor.result.text()
    with amp.doctor(quiet=True) as doctor:
        for _ in range(3):
            early()
    assert doctor.result.status() == 2 and "SGD: they ran in a function that torch.compile" in doctor.result.text()
    del optimizer


def test_a_step_compiled_before_the_doctor():
    torch._dynamo.reset()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    iterations(model, optimizer, step)
    with amp.doctor(quiet=True) as doctor:
        iterations(model, optimizer, step)
    (record,) = doctor.result.run.optimizers
    assert record.outside and record.steps >= 3 and doctor.result.status() == 0


# ---- causes ----


def cause_of(change, scaler=False, dtype=torch.float32):
    """The cause of a training that goes wrong in its fifth iteration, when `change` is called."""

    def training():
        model = net(dtype).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        grad_scaler = torch.amp.GradScaler("cpu", enabled=scaler, init_scale=4.0)
        loader = torch.utils.data.DataLoader([{"pixels": x, "label": y} for x, y in zip(*data(dtype))], batch_size=8)
        for _ in range(3):
            for step, batch in enumerate(loader):
                if step > 1:
                    change(model, batch)
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(batch["pixels"]), batch["label"])
                grad_scaler.scale(loss).backward()
                grad_scaler.step(optimizer)
                grad_scaler.update()

    causes = run_of(training).causes
    return causes[0] if causes else None


@SCALES
def test_a_batch_is_the_cause():
    cause = cause_of(lambda model, batch: batch["pixels"].numpy()[0].fill(float("nan")), scaler=True)
    assert (cause.kind, cause.subject, cause.value, cause.after) == ("batch", "the batch['pixels']", "NaN", "loss")
    assert (cause.count, cause.share) == (8, 0.125)


@SCALES
def test_a_weight_is_the_cause():
    cause = cause_of(lambda model, batch: model[4].bias.data.fill_(float("inf")), scaler=True)
    assert (cause.kind, cause.subject, cause.value) == ("weight", "4.bias", "inf")


@SCALES
def test_an_op_is_the_cause_although_a_mask_is_infinite():
    def change(model, batch):
        def forward(x):
            mask = torch.zeros(16).masked_fill(torch.arange(16) < 2, float("-inf"))
            x = torch.softmax(x + mask, -1)
            return x + (x.detach().half().clamp(min=2) * 6e4).float()

        model[2].forward = forward

    cause = cause_of(change, scaler=True)
    assert (cause.kind, cause.subject, cause.value, cause.module) == ("op", "mul", "inf", "2")
    assert cause.module_kind == "GELU" and cause.output_dtype == "float16" and cause.scalars == [6e4]
    assert os.path.samefile(cause.place.filename, __file__)


@SCALES
def test_an_op_of_backward_is_the_cause():
    class Steep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * float("1e38") * 1e10

    def change(model, batch):
        model[2].forward = Steep.apply

    cause = cause_of(change, scaler=True)
    assert (cause.kind, cause.subject, cause.value, cause.module) == ("gradient", "mul", "inf", "2")


@SCALES
def test_a_loss_without_a_scaler():
    cause = cause_of(lambda model, batch: batch["label"].numpy().fill(float("inf")))
    # after the step on it all weights are NaN: the batch of the first loss is asked
    assert (cause.kind, cause.subject, cause.after) == ("batch", "batch['label']", "loss")
    assert cause_of(lambda model, batch: None) is None
