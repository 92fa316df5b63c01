# SPDX-License-Identifier: Apache-2.0
"""A run that is resumed from state_dicts is the uninterrupted one, bit for bit, whatever is loaded first, and whichever
release saved them."""
import copy
import io
import itertools
import json
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")

from levels import DYNAMIC, LEVELS, WITH_MASTERS  # noqa: E402
from libamp.torch import amp  # noqa: E402

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"
sys.path.insert(0, str(GOLDEN))
import state_dicts  # noqa: E402

RELEASES = sorted(GOLDEN.glob("*/python"))
assert RELEASES, f"{GOLDEN} has no release"


def _model():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)
    )


def _optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)


def _train(model, optimizer, steps):
    for i in steps:
        generator = torch.Generator().manual_seed(i)
        x, y = torch.randn(16, 6, generator=generator), torch.randn(16, 2, generator=generator)
        optimizer.zero_grad()
        with amp.scale_loss((model(x).float() - y).pow(2).mean(), optimizer) as scaled:
            (scaled * float("inf") if i == 2 and amp._amp_state.loss_scalers[0].dynamic else scaled).backward()
        optimizer.step()


def _values(model, optimizer):
    state = optimizer.state_dict()["state"]
    moments = [value for key in sorted(state) for _, value in sorted(state[key].items())]
    return [t.detach().clone() for t in [*amp.master_params(optimizer), *model.state_dict().values(), *moments]]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "order",
    [
        *itertools.permutations(("model", "optimizer", "amp")),
        ("before initialize",),
        ("model before", "optimizer", "amp"),
    ],
)
def test_resume_is_bit_exact(level, order):
    model, optimizer = _model(), None
    optimizer = _optimizer(model)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    _train(model, optimizer, range(6))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "amp": amp.state_dict()}, file)
    _train(model, optimizer, range(6, 10))
    expected, scales = _values(model, optimizer), amp.state_dict()
    amp.shutdown()

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert all(t.dtype is not torch.float16 for t in saved["model"].values())
    model = _model()
    with torch.no_grad():
        for param in model.parameters():
            param.add_(1.0)
    optimizer = _optimizer(model)
    if order[0].startswith(("model before", "before")):
        model.load_state_dict(saved["model"])
    if order == ("before initialize",):
        optimizer.load_state_dict(saved["optimizer"])
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    for what in order if order != ("before initialize",) else ("amp",):
        if what == "model":
            model.load_state_dict(saved["model"])
        elif what == "optimizer":
            optimizer.load_state_dict(saved["optimizer"])
        elif what == "amp":
            amp.load_state_dict(saved["amp"])
    _train(model, optimizer, range(6, 10))
    if level in DYNAMIC:
        assert amp.state_dict() == scales
    for found, wanted in zip(_values(model, optimizer), expected, strict=True):
        assert found.dtype is wanted.dtype
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_a_model_loaded_mid_run_reaches_the_masters(level):
    """In Apex the next step writes the old masters over it."""
    model = _model()
    optimizer = _optimizer(model)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    _train(model, optimizer, range(3))
    fresh = {name: torch.randn_like(t) if t.is_floating_point() else t for name, t in _model().state_dict().items()}
    model.load_state_dict(fresh)
    names = [name for name, _ in model.named_parameters()]
    for name, master in zip(names, amp.master_params(optimizer), strict=True):
        assert torch.equal(master, fresh[name])
    with torch.no_grad():  # and what is written into a parameter is the master's at the next step
        model[0].bias.fill_(2.0)
    _train(model, optimizer, range(1))
    assert torch.allclose(model[0].bias.float(), torch.full((8,), 2.0), atol=0.01)


@pytest.mark.parametrize("level", ("O0", "O1", "O2", "O3"))
@pytest.mark.parametrize("other", ("O0", "O1", "O2", "O3"))
def test_states_fit_every_level(level, other):
    model = _model()
    optimizer = _optimizer(model)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    _train(model, optimizer, range(4))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), amp.state_dict()))
    amp.shutdown()
    model = _model()
    optimizer = _optimizer(model)
    amp.initialize(model, optimizer, opt_level=other, verbosity=0)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    amp.load_state_dict(saved[2])
    _train(model, optimizer, range(4, 6))
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_apexs_form_and_its_errors(capsys):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert amp.state_dict() == {}  # Apex: AttributeError
    amp.load_state_dict({})
    amp.initialize(model, optimizer, opt_level="O2", num_losses=2, verbosity=1)
    capsys.readouterr()
    state = amp.state_dict()
    assert dict(state) == {f"loss_scaler{i}": {"loss_scale": 65536.0, "unskipped": 0} for i in range(2)}
    state["loss_scaler0"] = {"loss_scale": 8.0, "unskipped": 3}
    state["loss_scaler1"] = {"loss_scale": 16.0, "unskipped": 4}
    amp.load_state_dict(state)
    assert amp.state_dict() == state
    with pytest.raises(RuntimeError, match="another"):
        amp.load_state_dict({"loss_scaler7": {"loss_scale": 4.0, "unskipped": 1}, "another": 1})
    # by position, and applied all the same
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 4.0, "unskipped": 1}
    assert "has 1 loss scaler, and in use are 2" in capsys.readouterr().out


# ---- files of releases ----


def _same(was, now, exact=True):
    """Equal in structure, types and values; not exact: a later torch may have more keys."""
    if isinstance(was, dict):
        assert was.keys() == now.keys() if exact else was.keys() <= now.keys(), f"{was.keys()}, {now.keys()}"
        return all(_same(was[key], now[key], exact) for key in was)
    if isinstance(was, (list, tuple)):
        return len(was) == len(now) and all(map(_same, was, now, itertools.repeat(exact)))
    if isinstance(was, torch.Tensor):
        return was.dtype is now.dtype and torch.equal(was, now)
    return type(was) is type(now) and was == now


def _compare(found, wanted, exact):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if exact or name == "amp":
            assert found[name] == value, name
        else:  # a dozen roundings a step of 2^-24 each, in sums of the tensor's elements
            assert found[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("release", RELEASES, ids=[folder.parent.name for folder in RELEASES])
@pytest.mark.parametrize("name", state_dicts.CASES)
def test_the_state_dicts_of_a_release(release, name):
    """They load, train on to the numbers of then, and are saved again as they were."""
    wanted = json.loads((release / "numbers.json").read_text(encoding="utf-8"))[name]
    exact = name not in state_dicts.CLOSE
    loaded, trained, again = state_dicts.resume(release, name)
    _compare(loaded, wanted[0], True)
    _compare(trained, wanted[1], exact)
    for key, state in state_dicts.saved(release, name).items():
        assert _same(state, again[key], exact), key


@pytest.mark.parametrize("release", RELEASES, ids=[folder.parent.name for folder in RELEASES])
def test_a_damaged_state_dict_of_a_release_is_refused(release, tmp_path):
    raw = (release / "states.pt").read_bytes()
    for size in (0, 100, len(raw) // 2, len(raw) - 1):
        (tmp_path / "states.pt").write_bytes(raw[:size])
        with pytest.raises(RuntimeError, match=r"states\.pt cannot be read: "):
            state_dicts.saved(tmp_path, "O2")
    model, _ = state_dicts.start("O2")
    values, scales = state_dicts.saved(release, "O2")["model"], amp.state_dict()
    for broken in ({"loss_scaler0": {"scale": 1.0, "unskipped": 0}}, {"loss_scaler0": 65536.0}):
        with pytest.raises(ValueError, match=r"loss_scaler0 is .* must be"):
            amp.load_state_dict(broken)
        assert amp.state_dict() == scales
    with pytest.raises(RuntimeError, match=r"linear\.weight"):
        model.load_state_dict({key: value[:1] if value.dim() == 2 else value for key, value in values.items()})
