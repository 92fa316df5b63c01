# SPDX-License-Identifier: Apache-2.0
"""Records of trainings for the doctor's checks: for each code those in which it is found and those in which it is
not."""
from libamp._findings import Place
from libamp.torch.doctor.watch import (
    Autocast,
    Average,
    Buffer,
    Cause,
    Change,
    Clip,
    Loss,
    Model,
    Module,
    Op,
    Optimizer,
    Param,
    Run,
    Scaler,
    Scheduler,
)

HERE = Place("train.py", 12)
INF = float("inf")
HALF = Autocast("cuda", "float16", True, 40, HERE)


def weight(name="fc.weight", shape=(64, 64), dtype="float32", **fields):
    """A parameter that trains well: all its elements had gradients and moved."""
    healthy = {"model": 0, "optimizer": 0, "lr": 1e-3, "lr_first": 1e-3, "lr_max": 1e-3, "sampled": 64, "looks": 40,
               "grad_looks": 40, "grad_seen": 64, "moved": 64, "moved_of_seen": 64, "grad_max": 0.1, "grad_min": 1e-4,
               "weight_max": 0.2, "has_grad": True, "grad_dtype": dtype}
    return Param(name, shape, dtype, **healthy | fields)


def adam(**fields):
    stepped = {"steps": 40, "looks": 40, "tried": 40, "lr": 1e-3, "eps": 1e-8, "beta2": 0.999}
    return Optimizer("Adam", HERE, **stepped | fields)


def scaler(**fields):
    used = {"scale": 65536.0, "first_scale": 65536.0, "scale_min": 65536.0, "scale_max": 65536.0, "scales": 40,
            "steps": 40, "updates": 40, "growth_interval": 2000, "place": HERE}
    return Scaler("GradScaler", **used | fields)


def training(params=None, **fields):
    """The record of a training of 40 steps in which nothing is wrong, with these fields instead of its own."""
    run = Run(iterations=40, backwards=40, devices=["cpu"], params=[weight()] if params is None else params,
              optimizers=[adam()], watched=[2], models=[Model("Net")])
    run.losses = [Loss(number, 1.0) for number in range(1, 41)]
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def scaled(params=None, **fields):
    """The same with a GradScaler and autocast to fp16."""
    return training(params, **{"scalers": [scaler()], "autocasts": [HALF]} | fields)


def half(**fields):
    fields = {"looks": 40, "zeros": 0.7, "tiny": 0.5, "grad_min": 6e-8 / 65536} | fields
    return weight("deep.weight", **fields)


def lost(name="norm.weight", dtype="bfloat16", **fields):
    """A 16-bit parameter that got gradients and never moved."""
    return weight(name, (64,), dtype, **{"moved": 0, "moved_of_seen": 0, "still": 1.0, "weight_max": 1.0} | fields)


def module(**fields):
    return Model("Net", modules=[Module("block.bn", "BatchNorm2d", HERE, **fields)])


def buffer(name, dtype="bfloat16", **fields):
    return [Model("Net", modules=[Module("rope", "Rotary", HERE, buffers=[Buffer(name, dtype, **fields)])])]


def op(name, **fields):
    return [Op(name, HERE, "attn", "Attention", **{"calls": 1, "inputs": ["float16"], "output": "float16"} | fields)]


def average(**fields):
    seen = {"dtype": "bfloat16", "place": HERE, "model": 0, "updates": 40, "looks": 40, "sampled": 64, "followed": 64}
    return [Average("AveragedModel", **seen | fields)]


def cause(kind, subject, **fields):
    return Cause(3, kind, subject, **{"place": HERE, "after": "loss"} | fields)


def change(op="mul", **fields):
    return Change(op, "fc.weight", HERE, 2, 65536.0, **fields)


FIRST = change(factor=0.02, norm=1.0)
SKIPPED = {"skips": 40, "skips_in_a_row": 40, "scale": 2.0**-24, "scale_min": 2.0**-24}
FREE = {"optimizer": -1, "trained": False, "moved": 0, "moved_of_seen": 0}

# code: (record, subject) in which it is found, and records in which it is not, by name.
CASES = {
    "AMP-D01": (
        {
            "norm weights of 1.0": (training([weight(), lost()]), "norm.weight"),
            "most, not all": (training([lost(moved_of_seen=24)]), "norm.weight"),
            "the worst is named": (training([lost("a", moved_of_seen=20), lost("b")]), "b"),
            "a rate that has fallen to 0": (training([lost(lr=0.0)]), "norm.weight"),
            "a few moves by outliers": (
                training([lost()], optimizers=[adam(small_moves=[90.0, 90.0], small_updates=[9e3, 1.0])]), "norm.weight"
            ),
        },
        {
            "FP32": training([lost(dtype="float32")]),
            "a learning rate of 0": training([lost(lr=0.0, lr_first=0.0, lr_max=0.0)]),
            "frozen": training([lost(grad_looks=0, grad_seen=0, has_grad=False, requires_grad=False)]),
            "rows without gradients": training([lost(grad_seen=8, moved_of_seen=8)]),
            "warm-up": training([lost(lr=1e-6, lr_first=1e-8, lr_max=1e-6)]),
            "a few steps": training([lost(looks=8, grad_looks=8)], optimizers=[adam(steps=8, tried=8)]),
            "all steps skipped": training([lost()], optimizers=[adam(tried=40, skipped=40)]),
            "masters": training([lost()], optimizers=[adam(masters=True)]),
            "Kahan summation": training([lost(state_dtypes={"exp_avg": "bfloat16", "kahan_comp": "bfloat16"})]),
            "small updates that arrive": training(
                [lost()], optimizers=[adam(small_moves=[90.0, 0.0], small_updates=[400.0, 0.0])]
            ),
            "small steps of descent that arrive": training(
                [lost()], optimizers=[adam(small_moves=[0.0, 90.0], small_updates=[0.0, 80.0])]
            ),
            "some large weights": training([lost(moved_of_seen=56)]),
            "descent that FP32 would lose too": training(
                [lost(grad_max=1e-9)], optimizers=[Optimizer("SGD", HERE, steps=40, tried=40)]
            ),
        },
    ),
    "AMP-D02": (
        {
            "at a static scale": (scaled([half()]), "deep.weight"),
            "all gradients": (scaled([half(zeros=1.0, tiny=0.0, grad_looks=0, grad_min=0.0)]), "deep.weight"),
        },
        {
            "dead units": scaled([half(tiny=0.0)]),
            "a healthy tail": scaled([half(zeros=0.1)]),
            "bf16": scaled([half()], autocasts=[Autocast("cuda", "bfloat16", True, 40)]),
            "a layer behind a zero": scaled([weight(), half(zeros=1.0, tiny=0.0, grad_looks=0)]),
            "few looks": scaled([half(looks=2)]),
        },
    ),
    "AMP-D03": (
        {
            "autocast": (training([half(zeros=0.95, grad_min=6e-8)], autocasts=[HALF]), "deep.weight"),
            "a disabled scaler": (scaled([half(grad_min=6e-8)], scalers=[scaler(enabled=False)]), "deep.weight"),
            "fp16 weights": (training([half(dtype="float16", grad_min=6e-8)]), "deep.weight"),
        },
        {
            "a scaler": scaled(),
            "bf16": training(autocasts=[Autocast("cuda", "bfloat16", True, 40)]),
            "evaluation in fp16": training([weight(has_grad=False, looks=0)], autocasts=[HALF], backwards=0),
            "a disabled autocast": training(autocasts=[Autocast("cuda", "float16", False, 40)]),
            "a bf16 model": training([lost(moved_of_seen=64)]),
            "evaluation between backwards in FP32": training(
                [half(grad_min=6e-8)], autocasts=[HALF], ops=op("mm", output="float32", inputs=[], backward=True)
            ),
            "a scale by hand, in the loss": training([half(grad_min=6e-8)], autocasts=[HALF], scaled_by_hand=40),
            "DeepSpeed": training([half(grad_min=6e-8)], autocasts=[HALF], frameworks=["deepspeed"]),
            "a scale by hand": training([half(grad_min=6e-11)], autocasts=[HALF]),
            "libamp": training(autocasts=[HALF], libamp=["level O2\nsound\n"]),
        },
    ),
    "AMP-D04": (
        {
            "with its cause": (
                scaled(scalers=[scaler(**SKIPPED)], causes=[cause("op", "mm", module="blocks.1.fc2")]), "blocks.1.fc2"
            ),
            "without": (scaled(scalers=[scaler(**SKIPPED)]), ""),
            "a few steps with NaN losses": (scaled(scalers=[scaler(steps=4, skips=4)], nonfinite_losses=4), ""),
            "from some step on": (scaled(scalers=[scaler(steps=90, skips=25, skips_in_a_row=25)]), ""),
        },
        {
            "the search for a scale": scaled(scalers=[scaler(steps=5, skips=5, skips_in_a_row=5)]),
            "some skips": scaled(scalers=[scaler(skips=12, skips_in_a_row=1)]),
            "disabled": scaled(scalers=[scaler(**SKIPPED, enabled=False)]),
        },
    ),
    "AMP-D05": (
        {"fell": (scaled(scalers=[scaler(skips=17, scale=0.5, scale_min=0.5, steps=40)]), "GradScaler")},
        {
            "chosen": scaled(scalers=[scaler(scale=1.0, first_scale=1.0, skips=4)]),
            "from 2 to 1": scaled(scalers=[scaler(scale=1.0, first_scale=2.0, skips=4)]),
            "at work": scaled(scalers=[scaler(scale=4.0, skips=14)]),
        },
    ),
    "AMP-D06": (
        {
            "made in the loop": (scaled(scalers=[scaler(steps=1, updates=1) for _ in range(9)]), "GradScaler"),
            "skips at one scale": (scaled(scalers=[scaler(skips=6)]), "GradScaler"),
        },
        {
            "a growth interval not yet over": scaled(),
            "several trainings": scaled(scalers=[scaler() for _ in range(9)]),
            "skips that lower it": scaled(scalers=[scaler(skips=6, scale_min=1024.0)]),
        },
    ),
    "AMP-D07": (
        {
            "torch's clip": (scaled(clips=[Clip("clip_grad_norm_", HERE, 40, 40, 65536.0, 1.0)]), "clip_grad_norm_"),
            "elements, in the script": (scaled(changes=[change("clamp", limit=1.0)]), "fc.weight"),
            "a norm, in the script": (scaled(changes=[FIRST, change(factor=0.01, norm=1.0)]), "fc.weight"),
        },
        {
            "factors without a limit": scaled(changes=[FIRST, change(factor=0.01, norm=2.0)]),
            "one factor": scaled(changes=[FIRST, FIRST]),
            "a limit times the scale, in the script": scaled(changes=[change("clamp", limit=65536.0)]),
            "unscaled by the script before torch's": scaled(
                clips=[Clip("clip_grad_norm_", HERE, 40, 40, 65536.0, 1.0)],
                changes=[change(factor=1 / 65536, clip=HERE)],
            ),
            "unscaled by the script before": scaled(changes=[change(factor=1 / 65536), change("clamp", limit=1.0)]),
            "torch's own": scaled(
                clips=[Clip("clip_grad_norm_", HERE, 40, 0, 0.0, 1.0)], changes=[FIRST, change(factor=0.01, norm=1.0)]
            ),
            "after unscale_": scaled(clips=[Clip("clip_grad_norm_", HERE, 40, 0, 0.0, 1.0)]),
            "a scale of 1": scaled(clips=[Clip("clip_grad_norm_", HERE, 40, 40, 1.0, 1.0)]),
            "only measures": scaled(clips=[Clip("clip_grad_norm_", HERE, 40, 40, 65536.0, INF)]),
            "a limit times the scale": scaled(clips=[Clip("clip_grad_norm_", HERE, 40, 40, 65536.0, 65536.0)]),
        },
    ),
    "AMP-D08": (
        {"each step": (scaled(schedulers=[Scheduler("CosineAnnealingLR", HERE, 0, 40, 3)]), "CosineAnnealingLR")},
        {
            "no skip": scaled(schedulers=[Scheduler("CosineAnnealingLR", HERE, 0, 40, 0)]),
            "each epoch": scaled(schedulers=[Scheduler("StepLR", HERE, 0, 4, 1)]),
            "a metric": scaled(schedulers=[Scheduler("ReduceLROnPlateau", HERE, 0, 40, 1)]),
        },
    ),
    "AMP-D09": (
        {
            "each": (
                scaled(autocasts=[Autocast("cpu", "bfloat16", True, 40, backwards_inside=40, backward_place=HERE)]),
                "autocast",
            )
        },
        {
            "outside": scaled(),
            "disabled": scaled(autocasts=[HALF, Autocast("cuda", "float16", False, 40, HERE, backwards_inside=40)]),
        },
    ),
    "AMP-D10": (
        {
            "twice": (scaled(scalers=[scaler(unscaled_twice=1, unscaled_twice_place=HERE)]), "GradScaler"),
            "by the script, then by the scaler": (scaled(changes=[change(factor=2.0**-16, divided=True)]), "fc.weight"),
        },
        {
            "once": scaled(scalers=[scaler(unscales=40)]),
            "by the script alone": scaled(changes=[change(factor=2.0**-16)]),
            "another factor": scaled(changes=[change(factor=0.25, divided=True)]),
        },
    ),
    "AMP-D11": (
        {
            "refused by torch": (
                scaled(scalers=[scaler(steps_without_update=1, without_update_place=HERE)]), "GradScaler"
            ),
            "never": (scaled(scalers=[scaler(updates=0)]), "GradScaler"),
        },
        {
            "two optimizers": scaled(optimizers=[adam(), adam()], scalers=[scaler(steps=80)]),
            "the first step": scaled(scalers=[scaler(steps=1, updates=0)]),
        },
    ),
    "AMP-D12": (
        {"step of its own": (scaled(scalers=[scaler(bypassed=40, bypassed_place=HERE)]), "Adam")},
        {
            "a scale of 1": scaled(scalers=[scaler(bypassed=40, scale=1.0, scale_max=1.0, first_scale=1.0)]),
            "unscaled by the script": scaled(scalers=[scaler(bypassed=40)], changes=[change(factor=2.0**-16)]),
        },
    ),
    "AMP-D13": (
        {
            "never scaled": (
                scaled(scalers=[scaler(scales=0, unscaled_backwards=40, unscaled_backward_place=HERE)]), "GradScaler"
            ),
            "one of two losses": (
                scaled(scalers=[scaler(scales=20, unscaled_backwards=20, unscaled_backward_place=HERE)]), "GradScaler"
            ),
        },
        {
            "a second optimizer in FP32": scaled(
                optimizers=[adam(), adam()], scalers=[scaler(unscaled_backwards=40)], backwards=80
            ),
            "scaled": scaled(),
        },
    ),
    "AMP-D14": (
        {"a key": (training(causes=[cause("batch", "pixels", value="NaN")]), "pixels")},
        {"none": training(causes=[cause("unknown", "")])},
    ),
    "AMP-D15": (
        {"the first": (training(causes=[cause("weight", "fc.weight"), cause("weight", "fc.bias")]), "fc.weight"),
         "at the end": (training([weight(), weight("head.weight", weight_nonfinite=True)]), "head.weight")},
        {"none": training(), "after a batch": training([weight(weight_nonfinite=True)], causes=[cause("batch", "x")])},
    ),
    "AMP-D16": (
        {
            "in forward, under a scaler": (scaled(causes=[cause("op", "log", module="head")]), "head"),
            "in backward, without one": (training(causes=[cause("gradient", "sqrt")]), "sqrt"),
            "a division by 0 in backward": (
                scaled(causes=[cause("gradient", "div", output_dtype="float32", input_largest=1e3)]), "div"
            ),
        },
        {"a scale that is too large": scaled(causes=[cause("gradient", "mm", output_dtype="float16", after="skip")])},
    ),
    "AMP-D17": (
        {"a mask": (scaled(ops=op("mul", scalars=[-1e9])), "attn")},
        {
            "-inf": scaled(ops=op("masked_fill", scalars=[-INF])),
            "the least number": scaled(ops=op("masked_fill", scalars=[-65504.0])),
            "FP32": scaled(ops=op("mul", scalars=[-1e9], output="float32")),
            "bf16": scaled(ops=op("mul", scalars=[-1e9], output="bfloat16")),
        },
    ),
    "AMP-D18": (
        {
            "added": (scaled(ops=op("add", scalars=[1e-8])), "attn"),
            "of Adam": (training([half(dtype="float16", state_dtypes={"exp_avg": "float16"})]), "Adam"),
        },
        {
            "large enough": scaled(ops=op("add", scalars=[1e-6])),
            "in bf16": scaled(ops=op("add", scalars=[1e-8], output="bfloat16")),
            "a normalization": scaled(ops=op("native_layer_norm", scalars=[1e-12])),
            "of a fused Adam": training([half(dtype="float16")], optimizers=[adam(fused=True)]),
            "of Adam over FP32 weights": scaled(),
        },
    ),
    "AMP-D19": (
        {
            "near overflow": (scaled(ops=op("square", largest=5e4)), "attn"),
            "positions": (scaled(ops=op("cumsum", output="bfloat16", inputs=["bfloat16"], largest=2000.0)), "attn"),
            "by its size": (scaled(ops=op("cumsum", output="bfloat16", shapes=[(8, 512)])), "attn"),
            "a loss": (training(ops=op("mse_loss", output="bfloat16", inputs=["bfloat16"])), "attn"),
        },
        {
            "in range": scaled(ops=op("exp", largest=900.0)),
            "a mask of the least number": scaled(ops=op("mul", largest=65504.0, scalars=[-65504.0])),
            "a short sum": scaled(ops=op("cumsum", output="bfloat16", shapes=[(8, 128)])),
            "exp in bf16": scaled(ops=op("exp", output="bfloat16", largest=1e6)),
            "a mean in bf16": scaled(ops=op("mean", output="bfloat16", largest=4.0)),
            "FP32": scaled(ops=op("square", output="float32", largest=5e4)),
            "the backward": scaled(ops=op("mul", largest=6e4, backward=True)),
            "known as AMP-D16": scaled(ops=op("exp", largest=6e4, nonfinite=1)),
        },
    ),
    "AMP-D20": (
        {"undecorated": (scaled(ops=op("mul", function="Energy", autocast="float16")), "Energy")},
        {
            "custom_fwd": scaled(ops=op("mul", function="Energy", autocast="float16", protected=True)),
            "FP32": scaled(ops=op("mul", function="Energy", autocast="float16", inputs=["float32"])),
            "without autocast": scaled(ops=op("mul", function="Energy")),
        },
    ),
    "AMP-D21": (
        {"stands": (training(averages=average(moved=6)), "AveragedModel")},
        {
            "FP32": training(averages=average(dtype="float32")),
            "moves": training(averages=average(moved=60)),
            "a model that stands": training(averages=average(followed=0)),
            "few updates": training(averages=average(updates=3)),
        },
    ),
    "AMP-D22": (
        {
            "bf16": (training([weight(state_dtypes={"exp_avg_sq": "bfloat16"})]), "fc.weight"),
            "fp16": (
                scaled([weight(state_dtypes={"exp_avg_sq": "float16"})], optimizers=[adam(beta2=0.9)]), "fc.weight"
            ),
        },
        {
            "FP32": training([weight(state_dtypes={"exp_avg": "float32", "exp_avg_sq": "float32"})]),
            "8 bits with scales": training([weight(state_dtypes={"exp_avg_sq": "uint8"})]),
            "a momentum": training([weight(state_dtypes={"momentum_buffer": "bfloat16"})]),
            "a small beta2": training(
                [weight(state_dtypes={"exp_avg_sq": "bfloat16"})], optimizers=[adam(beta2=0.95)]
            ),
        },
    ),
    "AMP-D23": (
        {"a head": (training([weight(), weight("head.weight", **FREE)]), "head.weight")},
        {
            "frozen": training([weight(), weight("head.weight", **FREE | {"requires_grad": False})]),
            "another model": training([weight(), weight("vgg.weight", **FREE | {"model": 1})]),
            "the script steps it": training([weight(), weight("temperature", **FREE | {"moved": 1})]),
            "no gradient": training([weight(), weight("head.weight", **FREE | {"has_grad": False})]),
            "one look": training([weight(), weight("head.weight", **FREE | {"grad_looks": 1})]),
            "an optimizer of an input": training([weight("image", model=-1), weight("vgg.weight", **FREE)]),
        },
    ),
    "AMP-D24": (
        {"running_var": (training(models=[module(buffers=[Buffer("running_var", "bfloat16")])]), "block.bn")},
        {
            "FP32": training(models=[module(buffers=[Buffer("running_var", "float32")])]),
            "evaluation": training(models=[module(buffers=[Buffer("running_var", "bfloat16")], training=False)]),
            "nothing is trained": training(models=[module(buffers=[Buffer("running_var", "float16")])], optimizers=[]),
        },
    ),
    "AMP-D25": (
        {
            "positions": (training(models=buffer("at", distinct_lost=99, whole=True, largest=511.0)), "rope.at"),
            "frequencies": (training(models=buffer("freq", monotone=True, least=1e-4, largest=1.0)), "rope.freq"),
        },
        {
            "FP32": training(models=buffer("inv_freq", "float32", monotone=True, least=1e-4, largest=1.0)),
            "segments": training(models=buffer("segment", distinct_lost=9, whole=True, largest=1.0)),
            "a mask": training(models=buffer("mask", whole=True, largest=65504.0)),
            "a table of sines": training(models=buffer("pe", least=0.0, largest=1.0)),
        },
    ),
    "AMP-D26": (
        {
            "to the end": (scaled(nonfinite_losses=3, losses=[Loss(40, INF)]), "the loss"),
            "no cause": (training(nonfinite_losses=3, first_nonfinite_loss=8), "the loss"),
            "at a scale that was too large": (
                scaled(nonfinite_losses=12, causes=[cause("gradient", "mm", output_dtype="float16")]), "the loss"
            ),
        },
        {
            "a known cause": training(nonfinite_losses=3, causes=[cause("batch", "pixels")]),
            "finite losses": training(),
            "the search for a scale": scaled(nonfinite_losses=3, first_nonfinite_loss=1),
        },
    ),
    "AMP-D80": (
        {"a vocabulary": (scaled(models=[module(sizes={"out_features": 50257})], devices=["cuda"]), "block.bn")},
        {
            "a CPU": scaled(models=[module(sizes={"out_features": 50257})]),
            "FP32": training(models=[module(sizes={"out_features": 50257})], devices=["cuda"]),
            "ten classes": scaled(models=[module(sizes={"out_features": 10})], devices=["cuda"]),
            "a multiple": scaled(models=[module(sizes={"out_features": 50304})], devices=["cuda"]),
        },
    ),
    "AMP-D81": (
        {"FP32": (training(devices=["cuda"], capability=(8, 0)), "fc.weight")},
        {
            "TF32": training(devices=["cuda"], capability=(8, 0), tf32=True),
            "autocast": scaled(devices=["cuda"], capability=(8, 0)),
            "an older GPU": training(devices=["cuda"], capability=(7, 0)),
            "a CPU": training(capability=(8, 0)),
        },
    ),
}
