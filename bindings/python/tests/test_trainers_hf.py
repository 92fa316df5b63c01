# SPDX-License-Identifier: Apache-2.0
"""libamp.accelerate under the packages of PyPI, unedited: accelerate, transformers, sentence-transformers. Models are
tiny and made from configurations; nothing is downloaded."""
from __future__ import annotations

import os
import pathlib
import warnings
from typing import Any

import pytest
import torch
from torch import nn

os.environ["HF_HUB_OFFLINE"] = "1"
accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import libamp.accelerate  # noqa: E402
from levels import CASTS_MODEL, DYNAMIC, LEVELS  # noqa: E402
from libamp.torch import amp  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch.manual_seed(0)
    yield
    amp.shutdown()
    accelerate.state.AcceleratorState._reset_state(True)


def bits(tensors: Any) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def same(one: Any, other: Any) -> bool:
    return len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# ---- rotary embeddings ----


@pytest.mark.parametrize("level", CASTS_MODEL)
def test_llama_beyond_position_3000(level: str) -> None:
    """Cosines beside FP64, with inv_freq in 16 bits and in FP32."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=4096)
    positions, errors = torch.arange(3000, 3016)[None], []
    for keep in (False, ["*inv_freq"]):
        model = transformers.LlamaModel(config)
        exact = positions[..., None].double() * 10000.0 ** (-torch.arange(0, 16, 2).double() / 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            amp.initialize(model, optimizer, opt_level=level, verbosity=0, keep_buffers_fp32=keep)
        heard = [str(each.message) for each in seen if "AMP-M50" in str(each.message)]
        assert [("inv_freq" in each and "keep_buffers_fp32=" in each) for each in heard] == ([] if keep else [True])
        cosines = model.rotary_emb(torch.zeros(1, 16, 32, dtype=next(model.parameters()).dtype), positions)[0]
        errors.append((cosines.double() - torch.cat([exact, exact], -1).cos()).abs().max().item())
        out = model(torch.randint(64, (1, 16)), position_ids=positions).last_hidden_state
        with amp.scale_loss(out.float().pow(2).mean(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        amp.shutdown()
    low, high = errors
    assert low > 0.1 and high < 2**-8  # a cosine in bf16: 2^-9; fp16: 2^-12


# ---- plain scripts of accelerate's ----


def small() -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return model, [(torch.randn(8, 8), torch.randint(4, (8,))) for _ in range(6)]


class Script:
    """Two batches a step, clipped, with a scheduler; `overflow`: of which batches the loss is infinite."""

    def __init__(self, level: str, overflow: tuple[int, ...] = (), **settings: Any) -> None:
        self.model, self.batches = small()
        self.overflow = overflow
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, eps=1e-4)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        self.accelerator = libamp.accelerate.initialize(
            accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True), level, verbosity=0, **settings
        )
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(self.model, optimizer, scheduler)
        self.skipped: list[bool] = []

    def run(self, batches: range) -> list[torch.Tensor]:
        for i in batches:
            x, y = self.batches[i]
            with self.accelerator.accumulate(self.model):
                loss = nn.functional.cross_entropy(self.model(x), y)
                self.accelerator.backward(loss * float("inf") if i in self.overflow else loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 0.1)
                self.optimizer.step()
                self.scheduler.step()
                self.skipped.append(self.accelerator.optimizer_step_was_skipped)
                self.optimizer.zero_grad()
        return bits(self.model.state_dict().values())


def by_hand(level: str, **settings: Any) -> list[torch.Tensor]:
    model, batches = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **settings)
    for i, (x, y) in enumerate(batches):
        with amp.scale_loss(nn.functional.cross_entropy(model(x), y) / 2, optimizer) as scaled:
            scaled.backward()
        if i % 2:
            nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.1)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return bits(model.state_dict().values())


@pytest.mark.parametrize("level", LEVELS)
def test_a_script_is_the_plain_loop(level: str) -> None:
    settings = {"init_scale": 1024.0} if level in DYNAMIC else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", libamp.FindingWarning)
        found = Script(level, **settings).run(range(6))
    amp.shutdown()
    assert same(found, by_hand(level, **settings))
    assert all(value.isfinite().all() for value in found)


def test_an_overflow_skips_step_and_scheduler() -> None:
    script = Script("O2", overflow=(2,), init_scale=1024.0)
    script.run(range(2))
    before = bits(script.model.state_dict().values())
    assert script.optimizer.param_groups[0]["lr"] == 5e-3
    assert same(script.run(range(2, 4)), before)
    assert script.skipped == [False, False, False, True]
    assert script.optimizer.param_groups[0]["lr"] == 5e-3
    assert script.accelerator.scaler.get_scale() == 512.0
    assert not same(script.run(range(4, 6)), before)
    assert script.skipped[-1] is False


def test_save_state_and_load_state(tmp_path: Any) -> None:
    whole = Script("O2", overflow=(0,), init_scale=1024.0)
    whole.run(range(4))
    whole.accelerator.save_state(str(tmp_path))
    rng = torch.get_rng_state()
    end = whole.run(range(4, 6))
    resumed = Script("O2")
    resumed.accelerator.load_state(str(tmp_path))
    assert resumed.accelerator.scaler.get_scale() == 512.0
    assert torch.equal(torch.get_rng_state(), rng)
    assert same(resumed.run(range(4, 6)), end)
    assert resumed.accelerator.scaler.state_dict() == whole.accelerator.scaler.state_dict()


def test_clip_grad_value_is_on_masters() -> None:
    script = Script("O2", init_scale=1024.0)
    x, y = script.batches[0]
    script.accelerator.backward(nn.functional.cross_entropy(script.model(x), y))
    script.accelerator.clip_grad_value_(script.model.parameters(), 1e-3)
    masters = amp.master_params(script.optimizer.optimizer)
    assert max(float(param.grad.abs().max()) for param in masters) == pytest.approx(1e-3)


def test_what_cannot_work_is_said() -> None:
    model, _ = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"trainer\.accelerator"):
        libamp.accelerate.initialize(model)
    with pytest.raises(RuntimeError, match="opt_level is 'O9'"):
        libamp.accelerate.initialize(accelerate.Accelerator(cpu=True), "O9")
    accelerator = libamp.accelerate.initialize(accelerate.Accelerator(cpu=True), "O2", verbosity=0)
    with pytest.raises(RuntimeError, match="prepare the model and its optimizer before loading"):
        accelerator.scaler.load_state_dict({})
    with pytest.raises(RuntimeError, match="in one call"):
        accelerator.prepare(optimizer)
    accelerator.prepare(model, optimizer)
    with pytest.raises(RuntimeError, match="has prepared"):
        libamp.accelerate.initialize(accelerator, "O1")
    other, _ = small()
    with pytest.raises(RuntimeError, match=r"to one accelerator\.prepare"):
        accelerator.prepare(other, torch.optim.SGD(other.parameters(), lr=0.1))
    accelerate.state.AcceleratorState._reset_state(True)
    with pytest.raises(ValueError, match="mixed_precision='bf16' of its own"):
        libamp.accelerate.initialize(accelerate.Accelerator(cpu=True, mixed_precision="bf16"))


# ---- transformers.Trainer ----


def bert() -> Any:
    torch.manual_seed(2)
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForSequenceClassification(config)


def texts(count: int = 16) -> list[dict[str, torch.Tensor]]:
    made = torch.Generator().manual_seed(3)
    ids = [torch.randint(16 * (i % 2), 16 + 16 * (i % 2), (6,), generator=made) for i in range(count)]
    return [{"input_ids": row, "labels": torch.tensor(i % 2)} for i, row in enumerate(ids)]


def trainer(folder: Any, level: str | None, callbacks: Any = (), settings: Any = None, **arguments: Any) -> Any:
    given: dict[str, Any] = {
        "output_dir": str(folder), "max_steps": 8, "per_device_train_batch_size": 4, "learning_rate": 5e-3,
        "logging_steps": 1, "max_grad_norm": 0.5, "report_to": [], "use_cpu": True, "save_strategy": "no",
        "disable_tqdm": True, "lr_scheduler_type": "linear", **arguments,
    }
    made = transformers.Trainer(
        model=bert(), args=transformers.TrainingArguments(**given), train_dataset=texts(), eval_dataset=texts(),
        callbacks=list(callbacks),
    )
    if level is not None:
        libamp.accelerate.initialize(made.accelerator, level, **{"verbosity": 0, **(settings or {})})
    return made


def losses(made: Any) -> list[float]:
    return [line["loss"] for line in made.state.log_history if "loss" in line]


@pytest.mark.parametrize("level", LEVELS)
def test_trainer_trains(level: str, tmp_path: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", libamp.FindingWarning)
        made = trainer(tmp_path, level, settings={"init_scale": 1024.0} if level in DYNAMIC else None)
        before = made.evaluate()["eval_loss"]
        made.train()
    seen = losses(made)
    assert len(seen) == 8 and all(0 < loss < 10 for loss in seen)
    assert made.evaluate()["eval_loss"] < before
    answer = made.predict(texts(4)).predictions
    assert answer.dtype == "float32" or level == "O3"
    kinds = {"O2": torch.float16, "O3": torch.float16, "O5": torch.bfloat16}
    assert made.model.classifier.weight.dtype == kinds.get(level, torch.float32)
    assert all(value.dtype == torch.float32 for value in made.model.state_dict().values() if value.is_floating_point())


def test_trainer_is_the_plain_loop(tmp_path: Any) -> None:
    made = trainer(
        tmp_path, "O2", settings={"init_scale": 1024.0}, gradient_accumulation_steps=2, max_steps=2,
        per_device_train_batch_size=2, lr_scheduler_type="constant", optim="adamw_torch", weight_decay=0.01,
    )
    made.model_accepts_loss_kwargs = False  # it divides the loss of each batch
    order: list[Any] = []
    hook = made.model.register_forward_pre_hook(lambda module, args, kwargs: order.append(kwargs), with_kwargs=True)
    made.train()
    hook.remove()
    found = bits(made.model.state_dict().values())
    amp.shutdown()
    model = bert()
    decayed = [p for name, p in model.named_parameters() if "bias" not in name and "LayerNorm" not in name]
    others = [p for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=5e-3)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0, init_scale=1024.0)
    model.train()
    assert len(order) == 4
    for i, batch in enumerate(order):
        with amp.scale_loss(model(**batch).loss / 2, optimizer) as scaled:
            scaled.backward()
        if i % 2:
            nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    assert same(found, bits(model.state_dict().values()))


def infinite(module: Any, args: Any, out: Any) -> Any:
    return type(out)(loss=out.loss * float("inf"), logits=out.logits)


class Poison(transformers.TrainerCallback):
    """The third step's loss is infinite."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.handle: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
        if state.global_step == 2:
            self.handle = model.register_forward_hook(infinite)

    def on_step_end(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **rest: Any) -> None:
        self.rates.append(lr_scheduler.get_last_lr()[0])
        if self.handle is not None:
            self.handle.remove()


def test_trainer_recovers_from_an_overflow(tmp_path: Any) -> None:
    poison = Poison()
    made = trainer(tmp_path, "O2", [poison], {"init_scale": 1024.0}, max_steps=5)
    made.train()
    assert made.accelerator.scaler.get_scale() == 512.0
    assert poison.rates == pytest.approx([4e-3, 3e-3, 3e-3, 2e-3, 1e-3])
    assert all(value.isfinite().all() for value in made.model.state_dict().values())


@pytest.mark.parametrize("level", DYNAMIC)
def test_trainer_resumes(level: str, tmp_path: Any) -> None:
    settings = {"init_scale": 1024.0, "window": 3}
    kept: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4}
    whole = trainer(tmp_path / "a", level, settings=settings, **kept)
    whole.train()
    scale = whole.accelerator.scaler.state_dict()
    resumed = trainer(tmp_path / "b", level, settings={"init_scale": 2.0, "window": 3}, **kept)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-4"))
    assert same(bits(whole.model.state_dict().values()), bits(resumed.model.state_dict().values()))
    assert resumed.accelerator.scaler.state_dict() == scale
    assert scale["loss_scaler0"]["loss_scale"] == 4096.0


def test_trainer_twice(tmp_path: Any) -> None:
    made = trainer(tmp_path, "O2", settings={"init_scale": 1024.0}, max_steps=2)
    made.train()
    first = bits(made.model.state_dict().values())
    made.train()
    assert not same(first, bits(made.model.state_dict().values()))


def test_amp_may_be_switched_off(tmp_path: Any) -> None:
    """enabled=False, as of amp.initialize: accelerate alone, saved and loaded."""
    script = Script("O2", enabled=False)
    accelerator, (x, _) = script.accelerator, script.batches[0]
    accelerator.backward(script.model(x).pow(2).sum())
    assert accelerator.clip_grad_norm_(script.model.parameters(), 1.0) > 0
    script.optimizer.step()
    assert not script.optimizer.step_was_skipped and accelerator.scaler.get_scale() == 1.0
    accelerator.save_state(str(tmp_path))
    accelerator.load_state(str(tmp_path))
    assert {param.dtype for param in script.model.parameters()} == {torch.float32}


def test_backward_without_an_optimizer_says_what_to_do() -> None:
    accelerator = libamp.accelerate.initialize(accelerate.Accelerator(cpu=True), "O1", verbosity=0)
    model = accelerator.prepare(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match=r"the model and its optimizer to one call of accelerator\.prepare"):
        accelerator.backward(model(torch.ones(1, 2)).sum())


def test_trainers_own_precision_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="mixed_precision='bf16' of its own: leave fp16 and bf16 out"):
        trainer(tmp_path, "O2", bf16=True)


# ---- sentence-transformers ----


def test_sentence_transformer_trainer(tmp_path: Any) -> None:
    st = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "blue", "cat", "dog"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    bert().bert.save_pretrained(tmp_path)
    from sentence_transformers.sentence_transformer import losses as kinds
    from sentence_transformers.sentence_transformer import modules as layers

    model = st.SentenceTransformer(modules=[layers.Transformer(str(tmp_path)), layers.Pooling(16)], device="cpu")
    rows = {"a": ["red cat", "blue dog"] * 8, "b": ["red", "blue"] * 8, "label": [0.9, 0.1] * 8}
    arguments = st.SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=8, per_device_train_batch_size=4, learning_rate=5e-3,
        logging_steps=1, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
    )
    made = st.SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=datasets.Dataset.from_dict(rows),
        loss=kinds.CosineSimilarityLoss(model),
    )
    libamp.accelerate.initialize(made.accelerator, "O2", verbosity=0, init_scale=1024.0)
    made.train()
    seen = losses(made)
    assert len(seen) == 8 and sum(seen[4:]) < sum(seen[:4])
    assert next(model.parameters()).dtype == torch.float16
    assert model.encode(["red cat"]).dtype == "float32"


def test_the_page_runs() -> None:
    page = (pathlib.Path(__file__).parents[3] / "docs" / "start" / "trainers.md").read_text()
    exec(page.split("## accelerate")[1].split("```python\n")[1].split("```")[0], {"__name__": "page"})
