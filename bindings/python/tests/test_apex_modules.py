# SPDX-License-Identifier: Apache-2.0
"""apex.amp's modules by the names that scripts import from them, and what those names do."""
import importlib.util
import pathlib

import extras
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import libamp  # noqa: E402
from levels import LEVELS  # noqa: E402
from libamp import apex_shim  # noqa: E402
from libamp.torch import amp  # noqa: E402
from libamp.torch.amp import _amp_state, _initialize, frontend  # noqa: E402
from libamp.torch.amp.lists import functional_overrides, tensor_overrides, torch_overrides  # noqa: E402
from libamp.torch.amp.scaler import LossScaler  # noqa: E402

IMPORTED = {
    "apex.amp":
        "_amp_state _initialize amp bfloat16_function compat frontend handle lists opt register_bfloat16_function "
        "rnn_compat scaler utils",
    "apex.amp._amp_state": "_amp_state maybe_print warn_or_err master_params",
    "apex.amp._initialize": "_initialize applier to_type check_models check_params_fp32 check_optimizers",
    "apex.amp.amp": "init half_function float_function promote_function register_half_function",
    "apex.amp.compat": "filter_attrs is_tensor_like is_floating_point scalar_python_val variable_is_tensor",
    "apex.amp.frontend": "Properties O0 O1 O2 O3 opt_levels initialize state_dict load_state_dict",
    "apex.amp.handle": "scale_loss disable_casts AmpHandle NoOpHandle",
    "apex.amp.lists": "functional_overrides torch_overrides tensor_overrides",
    "apex.amp.opt": "OptimWrapper",
    "apex.amp.rnn_compat": "has_old_rnns RNN_NAMES",
    "apex.amp.scaler": "LossScaler scale_check_overflow_python axpby_check_overflow_python",
    "apex.amp.utils": "is_fp_tensor is_nested type_string maybe_half maybe_float casted_args should_cache",
}
OVERRIDES = (functional_overrides, torch_overrides, tensor_overrides)
LISTS = ("FP16_FUNCS", "FP32_FUNCS", "CASTS", "SEQUENCE_CASTS", "BANNED_FUNCS")


@pytest.fixture(autouse=True)
def _ends():
    before = {(o.__name__, name): list(getattr(o, name)) for o in OVERRIDES for name in LISTS if hasattr(o, name)}
    yield
    for overrides in OVERRIDES:
        for name in LISTS:
            if hasattr(overrides, name):
                getattr(overrides, name)[:] = before[overrides.__name__, name]
    amp.shutdown()


def start(level="O1", **kwargs):
    model = torch.nn.Linear(2, 2)
    return amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level=level, verbosity=0, **kwargs)


def test_every_name_is_there_under_apex():
    libamp.install_apex()
    try:
        for module, names in IMPORTED.items():
            loaded = importlib.import_module(module)
            assert loaded is importlib.import_module(module.replace("apex", "libamp.torch"))
            for name in names.split():
                assert hasattr(loaded, name), f"{module}.{name}"
        # the object, whatever was imported since
        assert importlib.import_module("apex").amp._amp_state is amp._amp_state
    finally:
        apex_shim.remove()


def test_modules_of_the_folder_apex_have_one_name():
    folder = pathlib.Path(libamp.__file__).parent / "apex"
    if not (folder.parent / "libamp.so.0").exists():
        pytest.skip("an editable install finds modules without __path__")
    files = [path for path in (*folder.glob("*"), *folder.glob("amp/*")) if not path.name.startswith("__")]
    modules = [path.relative_to(folder).with_suffix("").as_posix().replace("/", ".") for path in files]
    assert len(modules) > (15 if extras.is_there("apex_layers") else 10)
    for name in modules:
        assert "." in name or importlib.util.find_spec(f"libamp.apex.{name}") is None, name
        assert name == "amp" or str(folder) in importlib.util.find_spec(f"libamp.torch.{name}").origin


@pytest.mark.parametrize("by_name", (False, True))
def test_initialize_restarts_all_scales_under_apexs_name(by_name):
    libamp.install_apex()
    try:
        if by_name:
            importlib.import_module("apex.amp")
        model, optimizer = start(num_losses=2)
        first = _amp_state.loss_scalers[1]
        for _ in range(2):
            with amp.scale_loss(model(torch.ones(2, 2)).mean() * float("inf"), optimizer, loss_id=1) as scaled:
                scaled.backward()
            optimizer.step()
        assert first.loss_scale() == 2.0**14
        with amp.scale_loss(model(torch.ones(2, 2)).mean(), optimizer, loss_id=0) as scaled:
            scaled.backward()
            start()  # within a block there is a scale in use
        assert first.loss_scale() == 2.0**14
        start()
        assert first.loss_scale() == (2.0**16 if by_name else 2.0**14)
        assert first._unskipped == 0
    finally:
        apex_shim.remove()


@pytest.mark.parametrize(
    "level, weight, scale", [("O1", torch.float32, 2.0**16), ("O2", torch.float16, 128.0), ("O5", torch.bfloat16, 1.0)]
)
def test_the_work_of_initialize_by_itself(level, weight, scale, capsys):
    """A trainer that fills in the properties by hand."""
    properties = frontend.opt_levels[level](frontend.Properties())
    if level == "O2":
        properties._update_options_dict({"loss_scale": 128.0, "keep_batchnorm_fp32": False})
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    models, same = _initialize._initialize(
        [model], optimizer, properties, num_losses=2, cast_model_outputs=torch.float64
    )
    assert models == [model] and same is optimizer and _amp_state.opt_properties is properties
    assert [scaler.loss_scale() for scaler in _amp_state.loss_scalers] == [scale] * 2
    norm = torch.float32 if level in ("O1", "O5") else torch.float16
    assert model[0].weight.dtype == weight and model[1].weight.dtype == norm
    assert model(torch.ones(3, 2)).dtype == torch.float64
    assert "optimization level" not in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="opt_level"):
        _initialize._initialize(torch.nn.Linear(2, 2), None, frontend.Properties())


# ---- lists ----


def test_lists_show_what_is_done():
    start()
    half, single = torch.ones(2, 2).half(), torch.ones(2, 2)
    assert F.linear(single, single).dtype is torch.float16
    assert {"conv2d", "linear"} <= set(functional_overrides.FP16_FUNCS)
    assert {"softmax", "cross_entropy", "layer_norm"} <= set(functional_overrides.FP32_FUNCS)
    assert [name for name, _ in functional_overrides.BANNED_FUNCS] == ["binary_cross_entropy"]
    assert {"mm", "bmm", "prelu"} <= set(torch_overrides.FP16_FUNCS)
    assert torch_overrides.SEQUENCE_CASTS == ["cat", "stack"]
    for name in ("exp", "log", "sum"):
        assert name in torch_overrides.FP32_FUNCS and name in tensor_overrides.FP32_FUNCS
        assert getattr(torch, name)(half).dtype is getattr(half, name)().dtype is torch.float32
    for name in ("add", "mul", "div", "eq"):
        assert name in torch_overrides.CASTS and name in tensor_overrides.CASTS
    assert "__matmul__" in tensor_overrides.FP16_FUNCS and "__matmul__" not in torch_overrides.FP16_FUNCS
    assert torch_overrides.MODULE is torch and tensor_overrides.MODULE is torch.Tensor


def test_what_a_script_changes_in_the_lists_holds_from_the_next_initialize_on():
    single, half = torch.ones(2, 2), torch.ones(2, 2).half()
    functional_overrides.FP32_FUNCS.remove("softmax")
    functional_overrides.FP16_FUNCS.append("softmax")
    functional_overrides.BANNED_FUNCS.clear()
    torch_overrides.FP16_FUNCS.append("outer")
    torch_overrides.FP32_FUNCS.append("no_function_of_torch")
    tensor_overrides.FP32_FUNCS.remove("sum")
    start()
    assert F.softmax(single, dim=0).dtype is torch.float16
    assert F.log_softmax(half, dim=0).dtype is torch.float32
    assert F.binary_cross_entropy(torch.ones(2).half(), torch.ones(2).half()).dtype is torch.float16
    assert torch.outer(single[0], single[0]).dtype is torch.float16
    assert half.sum().dtype is torch.float16 and torch.sum(half).dtype is torch.float32
    amp.shutdown()
    assert F.softmax(single, dim=0).dtype is torch.float32 and half.sum().dtype is torch.float16
    start("O4")
    assert F.softmax(single, dim=0).dtype is torch.bfloat16


def test_the_lists_of_torch_do_not_follow():
    torch_overrides.FP16_FUNCS.append("tanh")
    start(lists="torch")
    assert torch.tanh(torch.ones(2)).dtype is torch.float32


# ---- ROCm's names ----


def test_bfloat16_function():
    double = amp.bfloat16_function(lambda x: x * 2)
    start("O4")
    assert double(torch.ones(2)).dtype is torch.bfloat16
    amp.shutdown()
    amp.register_bfloat16_function(torch, "tanh")
    start("O4")
    assert torch.tanh(torch.ones(2)).dtype is torch.bfloat16


# ---- frontend, _initialize, utils ----


@pytest.mark.parametrize("level", LEVELS)
def test_levels_fill_properties_as_initialize_does(level):
    from libamp.torch.amp import frontend

    given = frontend.Properties()
    assert frontend.opt_levels[level](given) is given
    start(level)
    assert given.options == amp._amp_state.opt_properties.options
    assert getattr(frontend, level)()(frontend.Properties()).options == given.options


def test_applier_reaches_into_containers():
    applier, to_type = amp._initialize.applier, amp._initialize.to_type

    class Batch:
        def to(self, dtype):
            return dtype

    def half(value):
        return to_type(torch.float16, value)

    out = applier(
        [torch.ones(1), {"a": (torch.ones(2), "text", 3, None)}, Batch(), torch.ones(1, dtype=torch.long)], half
    )
    assert type(out) is list and type(out[1]["a"]) is tuple and out[1]["a"][1:] == ("text", 3, None)
    assert out[0].dtype is out[1]["a"][0].dtype is out[2] is torch.float16 and out[3].dtype is torch.long


def test_checks_of_initialize_by_themselves():
    amp._initialize.check_params_fp32([torch.nn.Linear(2, 2)])
    with pytest.raises(RuntimeError, match="weight"):
        amp._initialize.check_params_fp32([torch.nn.Linear(2, 2).half()])
    with pytest.raises(RuntimeError, match="DataParallel"):
        amp._initialize.check_models([torch.nn.DataParallel(torch.nn.Linear(2, 2))])


def test_utils():
    utils = amp.utils
    half, single = torch.ones(2).half(), torch.ones(2)
    assert utils.is_fp_tensor([half, (single,)]) and not utils.is_fp_tensor([half, 1]) and utils.is_fp_tensor([])
    assert utils.type_string(half) == "HalfTensor" and utils.type_string(single) == "FloatTensor"
    assert utils.collect_fp_tensor_types([half, [single], 3], {"x": single.double()}) == {
        "HalfTensor", "FloatTensor", "DoubleTensor",
    }
    assert utils.maybe_half(half) is half and utils.maybe_float([half])[0].dtype is torch.float32
    kwargs = {"a": single, "b": 1}
    args = utils.casted_args(utils.maybe_half, [single, 2], kwargs)
    assert args[0].dtype is kwargs["a"].dtype is torch.float16 and args[1] == 2 and kwargs["b"] == 1
    assert utils.should_cache(torch.nn.Parameter(single)) and not utils.should_cache(single)
    table = {"f": 1}
    utils.set_func(table, "f", 2)
    assert (
        utils.has_func(table, "f") and utils.get_func(table, "f") == 2 and not utils.has_func(torch, "no_such_function")
    )
    assert list(utils.as_inplace(["exp"])) == ["exp_"]
    assert amp.compat.filter_attrs(torch, ["exp", "no_such_function"]) == ["exp"]


# ---- scalers of one's own ----


def test_a_scaler_of_ones_own_follows_apexs_rule():
    scaler = LossScaler("dynamic", init_scale=8.0, scale_window=3, min_loss_scale=2.0, max_loss_scale=16.0)
    assert (scaler.loss_scale(), scaler._min_loss_scale, scaler._max_loss_scale) == (8.0, 2.0, 16.0)
    scales = []
    for overflow in (1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0):
        scaler.clear_overflow_state()
        grads, masters = [torch.tensor([scaler.loss_scale(), float("inf") if overflow else 1.0])], [torch.zeros(2)]
        scaler.unscale(grads, masters, None)
        assert masters[0][0] == 1.0
        assert scaler.update_scale() is bool(overflow) is scaler._has_overflow
        scales.append((scaler.loss_scale(), scaler._unskipped))
    assert scales == [(4, 0), (2, 0), (2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 2), (8, 0), (8, 1), (8, 2), (16, 0)]
    scaler._loss_scale, scaler._unskipped = 2.0, 1
    assert scaler.loss_scale() == 2.0 and scaler._unskipped == 1


def test_a_static_scaler_of_ones_own():
    scaler = LossScaler(4.0)
    out = [torch.zeros(2)]
    scaler.unscale_with_stashed([torch.tensor([4.0, 8.0])], [torch.ones(2)], out)
    assert out[0].tolist() == [2.0, 3.0] and not scaler.dynamic
    scaler.unscale_with_stashed([torch.ones(2)], [torch.ones(2)], out, scale_override=(2.0, 4.0, 8.0))
    assert out[0].tolist() == [6.0, 6.0]
    scaler._has_overflow = True
    assert scaler.update_scale() is False and scaler.loss_scale() == 4.0
    for _ in range(200):  # no limit of skips in a row: nobody sees the gradients
        scaler._has_overflow = True
        scaler.update_scale()


def test_unscaling_stops_after_an_overflow_until_it_is_cleared():
    scaler = LossScaler("dynamic", init_scale=2.0)
    scaler._has_overflow = True
    out = [torch.zeros(1)]
    scaler.unscale([torch.ones(1)], out)
    assert out[0].item() == 0.0
    scaler.clear_overflow_state()
    scaler.unscale([torch.ones(1)], out)
    assert out[0].item() == 0.5


def test_the_python_checks():
    from libamp.torch.amp.scaler import axpby_check_overflow_python, scale_check_overflow_python

    out, bad = torch.zeros(2), torch.tensor([1.0, float("nan")])
    assert scale_check_overflow_python(torch.ones(2).half(), out, 0.5, True) is False and out.tolist() == [0.5, 0.5]
    assert scale_check_overflow_python(bad, out, 0.5, True) is True
    assert scale_check_overflow_python(bad, out, 0.5) is False
    assert axpby_check_overflow_python(torch.ones(2), torch.ones(2), out, 2.0, 3.0, True) is False
    assert out.tolist() == [5.0, 5.0]
    assert axpby_check_overflow_python(bad, torch.ones(2), out, 2.0, 3.0, True) is True


def test_scalers_of_initialize_can_be_cleared():
    model, optimizer = start("O2")
    scaler = amp._amp_state.loss_scalers[0]
    assert isinstance(scaler, LossScaler) and scaler._max_loss_scale == 2.0**24 and scaler._scale_seq_len == 2000
    with amp.scale_loss(model(torch.ones(1, 2)).sum() * float("inf"), optimizer) as scaled:
        scaled.backward()
    assert scaler._has_overflow
    scaler.clear_overflow_state()
    assert not scaler._has_overflow


def test_a_handle_puts_back_what_a_script_saved_in_it():
    table = {"f": 1}
    handle = amp.init()
    for value in (2, 3):
        handle._save_func(table, "f", table["f"])
        table["f"] = value
    handle._deactivate()
    assert table == {"f": 1}
