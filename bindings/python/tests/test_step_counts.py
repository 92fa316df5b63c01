# SPDX-License-Identifier: Apache-2.0
"""What a step at O4 takes beside torch.autocast: casts, bytes kept for backward, calls. Nothing is timed.

The lists are those of CUDA's autocast, by torch's names. What autocast has for CUDA devices and not for CPUs is taken
off by name: these ops run as they come."""
import contextlib
import functools
import pathlib
import re
import sys
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional
if tuple(int(number) for number in torch.__version__.split(".")[:2]) < (2, 5):
    pytest.skip("autocast's lists for CPUs were others before torch 2.5", allow_module_level=True)
from libamp import _core  # noqa: E402
from libamp.torch import amp  # noqa: E402
from libamp.torch.amp import registry, report  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

LEAVE = 6
LISTS = ("apex", "torch")
CUDA_ONLY = ("layer_norm", "pow")  # of CUDA's autocast; that of CPUs leaves them
APEX_ONLY = ("gelu",)              # of Apex's lists; no autocast has it
NORM_AND_GELU = frozenset(("layer_norm", "gelu"))
MATTER = {"gpt2": frozenset(("pow",)), "bert": NORM_AND_GELU, "mlp": NORM_AND_GELU, "resnet18": frozenset()}


class Counts(NamedTuple):
    casts: int
    kept: int   # bytes for backward, each storage once, parameters apart
    aten: int   # calls of ATen's ops, forward and backward
    python: int  # calls from Python in forward


def gpt2():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    off = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "use_cache": False, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, **off)
    words = torch.randint(0, 64, (2, 8))
    return transformers.GPT2LMHeadModel(config), lambda model: model(input_ids=words, labels=words).loss


def bert():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    words = torch.randint(0, 64, (2, 8))
    given = {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}
    return transformers.BertForMaskedLM(config), lambda model: model(**given).loss


def mlp():
    layers = [(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.GELU()) for _ in range(3)]
    x = torch.randn(8, 16)
    return torch.nn.Sequential(*[layer for each in layers for layer in each]), lambda model: F.mse_loss(model(x), x)


def resnet18():
    torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
    x, label = torch.randn(2, 3, 16, 16), torch.tensor([1, 2])
    return torchvision.models.resnet18(num_classes=8), lambda model: F.cross_entropy(model(x), label)


MODELS = [gpt2, bert, mlp, resnet18]


class Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.casts = self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_cast = func is torch.ops.aten._to_copy.default and args[0].is_floating_point()
        self.casts += is_cast and kwargs.get("dtype", args[0].dtype) is not args[0].dtype
        self.n += 1
        return func(*args, **kwargs)


class Python:
    def __enter__(self):
        self.n = 0
        sys.setprofile(self._see)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)

    def _see(self, frame, event, arg):
        self.n += event in ("call", "c_call")


class Kept(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self, model):
        self._own = {param.untyped_storage().data_ptr() for param in model.parameters()}
        self._held = {}
        super().__init__(self._save, lambda tensor: tensor)

    def _save(self, tensor):
        storage = tensor.untyped_storage()
        self._held[storage.data_ptr()] = storage  # held: no other takes its address
        return tensor

    @property
    def bytes(self):
        return sum(storage.nbytes() for address, storage in self._held.items() if address not in self._own)


@contextlib.contextmanager
def left(names):
    """Ops of these names run as they come, wherever a list has them."""
    handles = []
    for module in (F, torch, torch.Tensor, torch._C._nn):
        for name in (spelt for each in names for spelt in (each, f"__{each}__")):
            if hasattr(module, name):
                handles.append(registry._register(module, name, LEAVE))
    yield
    for handle in handles:
        handle.remove()


@functools.cache
def counted(make, lists=None, names=frozenset()):
    """One step, after some others: under amp with these lists, or under torch.autocast."""
    torch.manual_seed(0)
    model, loss_of = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with left(names) if lists else contextlib.nullcontext():
        if lists:
            model, optimizer = amp.initialize(model, optimizer, opt_level="O4", verbosity=0, lists=lists)

        def forward():
            with contextlib.nullcontext() if lists else torch.autocast("cpu", torch.bfloat16):
                return loss_of(model)

        def step():
            optimizer.zero_grad()
            with amp.scale_loss(forward(), optimizer) if lists else contextlib.nullcontext(forward()) as loss:
                loss.backward()

        try:
            for _ in range(3):  # the first ones look for mistakes of the script
                step()
                optimizer.step()
            with Calls() as calls:
                step()
            kept = Kept(model)
            with kept:
                forward()
            with Python() as python:
                forward()
        finally:
            amp.shutdown()
    return Counts(calls.casts, kept.bytes, calls.n, python.n)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_torchs_lists_take_no_more_than_autocast(make):
    ours, theirs = counted(make, "torch", frozenset(CUDA_ONLY)), counted(make)
    assert all(mine <= other for mine, other in zip(ours, theirs, strict=True)), (ours, theirs)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_apexs_lists_take_more_by_name(make):
    """Without the ops of CUDA_ONLY and APEX_ONLY nothing is left of the difference; each that matters has its share."""
    names = frozenset((*CUDA_ONLY, *APEX_ONLY))
    ours, theirs = counted(make, "apex", names), counted(make)
    assert all(mine <= other for mine, other in zip(ours, theirs, strict=True)), (ours, theirs)
    matter = MATTER[make.__name__]
    took = {name: counted(make, "apex", names - {name}) for name in matter}
    assert all(each.casts > ours.casts and each.kept >= ours.kept for each in took.values()), (ours, took)
    assert counted(make, "apex", matter)[:3] == ours[:3], "another op has a share"


# ---- the table of prices ----

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "reference" / "python-casts.md"
DOCS = PAGE.read_text().split("## The cost of Apex's lists\n", 1)[1]
PRICED = {
    "gelu": F.gelu,
    "std": lambda h: h.std(-1, keepdim=True),
    "var": lambda h: h.var(-1, keepdim=True),
    "multilabel_soft_margin_loss": lambda h: F.multilabel_soft_margin_loss(h, torch.ones_like(h)),
    "local_response_norm": lambda h: F.local_response_norm(h[None], 2)[0],
    "normalize": lambda h: F.normalize(h, dim=-1),
    "layer_norm": lambda h: F.layer_norm(h, (16,)),
    "pow": lambda h: h.pow(3),
    "exp": torch.exp,
    "softmax": lambda h: F.softmax(h, -1),
}


class Between(torch.nn.Module):
    """An op between two linear layers; one whose result is no such layer's argument is the last."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x, op):
        h = op(self.first(x))
        return (self.last(h) if h.shape == x.shape else h).float().mean()


def taken(lists):
    """name: casts of forward and backward, bytes kept."""
    x, model = torch.randn(8, 16), amp.initialize(Between(), opt_level="O4", verbosity=0, lists=lists)
    found = {}
    try:
        for name, op in PRICED.items():
            kept = Kept(model)
            with Calls() as calls, kept:
                model(x, op).backward()
            found[name] = calls.casts, kept.bytes // x.numel()
    finally:
        amp.shutdown()
    return found


def test_the_table_of_docs_has_the_prices_and_explain_says_them():
    table = next(block for block in DOCS.split("\n\n") if block.startswith("| op |"))
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    told = {name: (int(casts), int(size)) for names, casts, size, _ in rows for name in re.findall(r"`(\w+)`", names)}
    apexs, torchs = (taken(lists) for lists in LISTS)
    assert told == {name: tuple(a - b for a, b in zip(apexs[name], torchs[name], strict=True)) for name in PRICED}
    assert {name: price for name, price in told.items() if price != (0, 0)} == report.PRICES
    model = amp.initialize(torch.nn.Linear(2, 2), opt_level="O4", verbosity=0)
    try:
        for name, (casts, size) in told.items():
            said = amp.explain(model, name)
            price = f"casts a call: {casts:+d}, bytes an element for backward: {size:+d}\n"
            assert ("on CUDA devices" in said) if casts == size == 0 else said.endswith(price), said
        assert "torch's own promotion" in amp.explain(model, "__add__")
        assert amp.explain(model, "linear") == "linear: lower (linear, in the apex lists)\n"
    finally:
        amp.shutdown()


@pytest.mark.parametrize("lists", LISTS)
def test_explain_names_autocast_where_it_has_a_kernel(lists):
    """Of the ops that are FP32 in both lists."""
    has, schemas = torch._C._dispatch_has_kernel_for_dispatch_key, torch._C._jit_get_all_schemas()
    ruled = {"CUDA": set(), "CPU": set()}
    for each in schemas:
        op = f"{each.name}.{each.overload_name}".rstrip(".")
        if op.startswith("aten::") and torch._C._dispatch_has_kernel(op):
            for device, names in ruled.items():
                names |= {each.name.removeprefix("aten::")} if has(op, f"Autocast{device}") else set()
    apexs, torchs = ({name for name, _, fp16, _ in _core.list_ops(number) if fp16 == 2} for number in (1, 2))
    through = {"__pow__": "pow", "__rpow__": "pow", "linalg_norm": "linalg_vector_norm"}
    model = amp.initialize(torch.nn.Linear(2, 2), opt_level="O4", verbosity=0, lists=lists)
    try:
        for name in sorted((apexs & torchs) - {"cross_entropy", *report.PRICES}):
            said, rule = amp.explain(model, name), through.get(name, name)
            assert (", as under torch.autocast on CUDA devices\n" in said) is (rule in ruled["CUDA"]), said
            leaves = "; on CUDA devices torch.autocast has no rule for it" in said
            assert leaves is (rule not in ruled["CUDA"]), said
            on_cpus = leaves and rule in ruled["CPU"]
            assert ("as under torch.autocast on CPUs" in said) is on_cpus, said
        assert "on CPUs; on CUDA" in amp.explain(model, "avg_pool3d")
        assert "no rule" in amp.explain(model, "matrix_power")
        assert "log_softmax in the type that arrives" in amp.explain(model, "cross_entropy")
    finally:
        amp.shutdown()


def test_the_names_are_those_of_the_lists():
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    overloads = {"pow": "pow.Tensor_Scalar"}
    for name in (*CUDA_ONLY, *APEX_ONLY):
        op = f"aten::{overloads.get(name, name)}"
        assert has(op, "AutocastCUDA") is (name in CUDA_ONLY) and not has(op, "AutocastCPU"), name


def test_what_autocast_leaves_on_cpus():
    """As the last row of the table has it."""
    h = torch.ones(2, 16, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        for name in ("layer_norm", "pow", "exp", "softmax", "normalize"):
            assert PRICED[name](h).dtype == torch.bfloat16, name
        assert h.norm().dtype == h.sum().dtype == torch.bfloat16
