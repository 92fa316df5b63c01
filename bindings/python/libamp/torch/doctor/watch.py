# SPDX-License-Identifier: Apache-2.0
"""The record of a training, as data: what the taps saw. The checks judge it, the result prints it, and no class here
has an opinion.

Every value is plain (numbers, words, lists), so that a record goes into JSON and comes back. Types are torch's names
without "torch.": "float16". An iteration begins with the first backward after a step, and is counted from 1: several
backwards before one step (accumulated gradients) are one iteration, the two steps of a GAN are two. A step that an
overflow skipped counts as a step that was tried.

Statistics of elements come from samples: up to SAMPLE elements of a tensor, always the same ones, and those of the
own rank. "Looks" are the steps at which they were taken. Between looks nothing is lost of `moved`: it also compares
a look with the look before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..._findings import Place

SAMPLE = 1024  # largest number of sampled elements of a tensor
NOWHERE = Place("", 0)


@dataclass
class Param:
    """A parameter of an optimizer, or one of a model that is in no optimizer (optimizer is -1)."""

    name: str  # as named_parameters of its model says, else "group 0, parameter 3 of AdamW"
    shape: tuple[int, ...]  # of the whole, also where ranks have parts
    dtype: str
    device: str = "cpu"
    model: int = -1  # index in Run.models, -1 if no model was found that has it
    optimizer: int = -1  # index in Run.optimizers, -1 if none has it
    lr: float = 0.0  # of its group, at the last look
    lr_first: float = 0.0  # at the first look
    lr_max: float = 0.0
    sampled: int = 0  # elements in the sample, 0: this rank has none
    looks: int = 0  # steps at which it had a gradient and was sampled
    grad_looks: int = 0  # looks with a nonzero gradient in the sample
    grad_seen: int = 0  # sampled elements that ever had a nonzero gradient
    moved: int = 0  # sampled elements that ever changed
    moved_of_seen: int = 0  # those of grad_seen that ever changed
    still: float = 0.0  # share of (look, element) with a nonzero gradient where the step changed nothing
    zeros: float = 0.0  # share of (look, element) whose gradient is exactly 0
    grad_max: float = 0.0  # largest finite |gradient| in the samples, after unscaling
    grad_min: float = 0.0  # smallest nonzero |gradient| in the samples, 0 if there is none
    tiny: float = 0.0  # share of the nonzero sampled gradients that, with the loss scale on them, are below 2^-20
    grad_dtype: str = ""  # of .grad, "" without
    grad_nonfinite: int = 0  # looks with an inf or NaN in the sampled gradient
    weight_max: float = 0.0  # largest finite |weight| in the last sample
    weight_nonfinite: bool = False  # the last sample of the weight has an inf or NaN
    has_grad: bool = False  # .grad was ever there
    steps_without_grad: int = 0  # looks at which .grad was None
    requires_grad: bool = True
    state_dtypes: dict[str, str] = field(default_factory=dict)  # of optimizer.state: {"exp_avg": "bfloat16"}
    trained: bool = True  # in an optimizer that stepped


@dataclass
class Optimizer:
    """An optimizer, torch's or one of the same shape."""

    kind: str  # class name: "AdamW"
    place: Place = NOWHERE  # of its first step
    steps: int = 0  # steps that ran
    looks: int = 0  # steps at which parameters were sampled
    tried: int = 0  # steps that ran or that a scaler skipped
    skipped: int = 0  # of these, skipped (on the device, too)
    lr: float = 0.0  # of its first group, at the last step
    eps: float = 0.0  # of its first group, 0 without
    beta2: float = 0.0  # of its first group: betas[1], or alpha of RMSprop, 0 without
    fused: bool = False
    closures: int = 0  # steps with a closure
    outside: bool = False  # it steps in compiled functions, and is looked at behind their calls
    # sampled 16-bit elements that a step moved by 8 times its update or more, if its rule makes updates of the learning
    # rate, and if it makes updates in proportion to gradients; and the expected numbers of them with random rounding
    small_moves: list[float] = field(default_factory=lambda: [0.0, 0.0])
    small_updates: list[float] = field(default_factory=lambda: [0.0, 0.0])
    masters: bool = False  # FP32 copies of 16-bit parameters, by libamp, apex or FP16_Optimizer
    params: int = 0  # number of parameters
    order: list[str] = field(default_factory=list)  # the first 40 events of its iterations: "backward", "step", ...


@dataclass
class Scaler:
    """A loss scaler: torch.amp.GradScaler or a subclass, libamp's or Apex's."""

    kind: str  # "GradScaler", "libamp"
    enabled: bool = True
    device: str = ""
    scale: float = 0.0  # at the end
    first_scale: float = 0.0
    scale_min: float = 0.0
    scale_max: float = 0.0
    history: list[tuple[int, float]] = field(default_factory=list)  # (iteration, scale) at each change, last 400
    growth_interval: int = 0
    scales: int = 0  # calls of scale()
    unscales: int = 0  # calls of unscale_() by the script
    steps: int = 0  # calls of step()
    updates: int = 0
    skips: int = 0  # steps that it skipped
    skips_in_a_row: int = 0  # at the end
    first_skip: int = 0  # iteration, 0: none
    last_skip: int = 0
    skip_iterations: list[int] = field(default_factory=list)  # the first 100
    unscaled_twice: int = 0  # unscale_() of gradients that it had already unscaled
    unscaled_twice_place: Place = NOWHERE
    steps_without_update: int = 0  # a step() before the update() of the one before
    without_update_place: Place = NOWHERE
    unscaled_backwards: int = 0  # backwards of a loss that scale() did not return, while it is in use
    unscaled_backward_place: Place = NOWHERE
    bypassed: int = 0  # optimizer.step() by the script on gradients that are still scaled
    bypassed_place: Place = NOWHERE
    place: Place = NOWHERE  # of the first step()


@dataclass
class Clip:
    """The calls of clip_grad_norm_ or clip_grad_value_ at one line."""

    kind: str  # "clip_grad_norm_"
    place: Place = NOWHERE
    calls: int = 0
    scaled: int = 0  # of gradients that a scaler had scaled and not unscaled
    scale: float = 0.0  # at the last of these, 0 if not known without waiting
    limit: float = 0.0
    after_step: int = 0  # after the step that they should have limited: no backward since


@dataclass
class Change:
    """What the script did itself to gradients with the loss scale on them, in an iteration that was watched op by op:
    the first change by an op at a line."""

    op: str  # "div", "mul", "clamp"
    subject: str  # the parameter
    place: Place
    iteration: int
    scale: float
    factor: float = 0.0  # of the gradient, 0: not known
    limit: float = 0.0  # of its elements, 0: none or not known
    norm: float = 0.0  # of all gradients of the optimizer, behind all changes
    own: float = 0.0  # of the subject's
    divided: bool = False  # the scaler divided it behind that
    clip: Place = NOWHERE  # of torch's clip that followed it


@dataclass
class Scheduler:
    """A learning rate scheduler."""

    kind: str
    place: Place = NOWHERE
    optimizer: int = -1
    steps: int = 0
    after_skip: int = 0  # directly after a step that was skipped
    before_step: int = 0  # before the first step of its optimizer


@dataclass
class Autocast:
    """The regions of torch.autocast with one device and type."""

    device: str
    dtype: str
    enabled: bool = True
    regions: int = 0
    place: Place = NOWHERE  # of the first
    backwards_inside: int = 0  # backwards that began inside
    backward_place: Place = NOWHERE  # of the first
    cache_off: int = 0  # regions with cache_enabled=False


@dataclass
class Loss:
    """A tensor on which backward was called without a gradient, in one iteration."""

    iteration: int
    value: float  # unscaled
    dtype: str = "float32"


@dataclass
class Buffer:
    """A buffer of a module."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    largest: float = 0.0  # |value| in the sample
    least: float = 0.0  # smallest |value| in the sample
    whole: bool = False  # all sampled values are integers
    monotone: bool = False  # one dimension, and the sample rises or falls, perhaps with equal neighbours
    distinct_lost: int = 0  # equal neighbours in a sample that rises or falls: positions that merged
    persistent: bool = True


@dataclass
class Module:
    """A module of a model that has parameters or buffers of its own."""

    name: str  # "" for the model itself
    kind: str  # class name
    line: Place = NOWHERE  # of its class
    params: dict[str, str] = field(default_factory=dict)  # own parameters: name -> type
    buffers: list[Buffer] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  # in_features, out_features, in_channels, num_embeddings, ...
    eps: float = 0.0
    training: bool = True
    norm: bool = False  # a normalization: batch, group, instance, layer, RMS


@dataclass
class Model:
    """A module that no other module contains, with parameters."""

    kind: str  # class name
    compiled: bool = False
    wrapper: str = ""  # "DistributedDataParallel", "FSDP", "fully_shard"
    params: int = 0
    elements: int = 0
    dtypes: dict[str, int] = field(default_factory=dict)  # elements by type
    modules: list[Module] = field(default_factory=list)


@dataclass
class Average:
    """A copy of a model's weights that follows them: torch's AveragedModel, or a module like a trained one that gets no
    gradients and changes, or is never changed while one of its name would be (stood is True)."""

    kind: str  # "AveragedModel", or the class of the copy
    dtype: str
    place: Place = NOWHERE  # of the update, where it is known
    model: int = -1  # index of the followed model
    updates: int = 0  # looks at which it changed
    looks: int = 0
    sampled: int = 0
    moved: int = 0  # sampled elements that ever changed, while the same element of the model did
    followed: int = 0  # sampled elements where the model changed
    worst: str = ""  # its parameter that moved least


@dataclass
class Op:
    """Calls of one op at one line and in one module, in the iterations that were watched op by op."""

    name: str  # "exp", "mm": without namespace, overload and trailing underscore
    place: Place = NOWHERE
    module: str = ""  # name of the innermost module of the model, as in Module.name
    kind: str = ""  # its class
    function: str = ""  # class of the user's autograd.Function whose forward called it
    protected: bool = False  # that Function has custom_fwd
    backward: bool = False  # called by autograd
    calls: int = 0
    autocast: str = ""  # type of the autocast that was on for its device, "" if off
    inputs: list[str] = field(default_factory=list)  # types of the tensors, of the first call
    output: str = ""  # type of the first output
    shapes: list[tuple[int, ...]] = field(default_factory=list)  # of its inputs, of the first call
    scalars: list[float] = field(default_factory=list)  # numbers among its arguments, of the first call
    inplace: bool = False
    largest: float = 0.0  # |finite output|
    nonfinite: int = 0  # calls with an inf or NaN in the output

    def add(self, largest: float) -> None:
        """Adds the largest |output| of a call, NaN if there is one."""
        if largest - largest != 0:
            self.nonfinite += 1
        else:
            self.largest = max(self.largest, largest)


@dataclass
class Cause:
    """Where an inf or NaN came from, in an iteration that was watched op by op."""

    iteration: int
    kind: str  # "batch", "weight", "op", "gradient" (an op in backward), "unknown"
    subject: str  # key of the batch, name of the weight, name of the op
    value: str = "inf"  # "NaN", "inf" or "-inf", the worst of its first appearance
    module: str = ""  # where the op ran
    module_kind: str = ""
    place: Place = NOWHERE
    input_largest: float = 0.0  # |finite input| of the op
    finite: bool = True  # all its inputs were: else one was an inf that the script wrote itself
    output_dtype: str = ""
    scalars: list[float] = field(default_factory=list)
    share: float = 0.0  # of the elements of a batch or weight that are not finite
    count: int = 0  # of them
    after: str = ""  # why the watch began: "skip" or "loss"


@dataclass
class Run:
    """Everything that was seen on one rank."""

    script: str = ""
    rank: int = 0
    ranks: int = 1
    torch: str = ""  # version
    devices: list[str] = field(default_factory=list)  # of parameters: "cpu", "cuda"
    capability: tuple[int, int] = (0, 0)  # of the GPU
    frameworks: list[str] = field(default_factory=list)  # used ones of accelerate, lightning, apex, libamp, ...
    iterations: int = 0
    backwards: int = 0
    params: list[Param] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    scalers: list[Scaler] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    schedulers: list[Scheduler] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)
    autocasts: list[Autocast] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)  # the first 200, then every 2nd, 4th, ...: at most 400
    scaled_by_hand: int = 0  # backwards of a loss that the script multiplied by 64 or more itself
    nonfinite_losses: int = 0
    first_nonfinite_loss: int = 0  # iteration, 0: none
    models: list[Model] = field(default_factory=list)
    averages: list[Average] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    watched: list[int] = field(default_factory=list)  # iterations that were watched op by op
    causes: list[Cause] = field(default_factory=list)
    compiled_before: list[str] = field(default_factory=list)  # optimizers that stepped unseen, in functions from before
    compiled: bool = False  # torch.compile was used: its ops are not seen
    unseen: list[str] = field(default_factory=list)  # what could not be looked at, and why, as sentences
    tf32: bool = False  # FP32 products may use TF32 (torch.backends.cuda.matmul)
    bf16: bool = True  # the device multiplies bf16 in hardware
    deterministic: bool = False
    seconds: float = 0.0  # from the first backward to the end of the run
    spent: float = 0.0  # of these, the doctor's
    looked: int = 0  # elements that the samples read, in all
    libamp: list[str] = field(default_factory=list)  # amp.health() of libamp's own sessions


@dataclass(frozen=True)
class Found:
    """A finding of a check."""

    code: str  # "AMP-D01", a row of _findings.py
    subject: str  # parameter, module, op or optimizer, "" for the training
    saw: str  # the observation with its number: "0 of 64 elements moved in 60 steps with gradients"
    place: Place = NOWHERE
    number: float = 0.0  # the number in saw, for order: larger is worse
    ranks: tuple[int, ...] = ()  # that have it, filled when ranks are merged
