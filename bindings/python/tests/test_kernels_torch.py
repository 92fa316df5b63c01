# SPDX-License-Identifier: Apache-2.0
"""libamp.kernels over torch's tensors: bits, layouts, version counters; and over NumPy's other arrays."""
import libamp
import numpy as np
import pytest
from libamp import kernels

torch = pytest.importorskip("torch")
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def bits(tensor):
    return tensor.detach().reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("of", DTYPES)
def test_cast_has_torchs_bits(of, to):
    source = [torch.randn(300, dtype=torch.float64).mul(10.0**power).to(of) for power in (-9, 0, 5, 39)]
    target = [torch.zeros(300, dtype=to) for _ in source]
    kernels.cast(target, source)
    for got, x in zip(target, source, strict=True):
        if of == torch.float64 and torch.finfo(to).bits == 16:  # goes through float in torch; libamp rounds once
            assert (got.double() - x).abs().le((x.to(to).double() - x).abs()).logical_or(got.isinf()).all()
        else:
            assert bits(got) == bits(x.to(to))


def test_unscale_is_torchs():
    grads = [torch.randn(shape) for shape in ((100,), (3, 7), (), (0,))]
    want = [g.clone() for g in grads]
    found = torch.zeros(1)
    try:
        torch._amp_foreach_non_finite_check_and_unscale_(want, found, torch.full((1,), 1 / 1024))
    except NotImplementedError:  # torch 2.0 has it on GPUs alone
        want = [g * (1 / 1024) for g in grads]
    assert kernels.scale(grads, grads, 1 / 1024) is False
    assert [bits(g) for g in grads] == [bits(w) for w in want]
    grads[1][2, 3] = float("inf")
    assert kernels.scale(grads, grads, torch.full((1,), 0.5)) is True
    assert kernels.scale(grads, grads, 1.0, found_inf=found) is None
    assert found.item() == 1.0


def test_permuted_memory_goes_where_both_agree():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    y = torch.zeros(2, 3, 4, 5, dtype=torch.float16).to(memory_format=torch.channels_last)
    kernels.cast(y, x)
    assert torch.equal(y, x.half())
    assert kernels.l2norm(x) == kernels.l2norm(x.permute(0, 2, 3, 1))
    with pytest.raises(libamp.ArgumentError, match="src: its elements lie in another order than dst's"):
        kernels.cast(torch.zeros(2, 3, 4, 5), x)
    fortran = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    target = torch.zeros(3, 2).t()
    kernels.copy([target], [fortran])
    assert torch.equal(target, torch.from_numpy(np.ascontiguousarray(fortran)))


@pytest.mark.parametrize("make", [lambda: torch.zeros(6)[::2], lambda: torch.zeros(1).expand(3),
                                  lambda: torch.zeros(3, 3)[:, :2], lambda: np.zeros(6, np.float32)[::-1],
                                  lambda: np.zeros((4, 4), np.float32)[::2]])
def test_gaps_are_refused(make):
    x = make()
    with pytest.raises(libamp.ArgumentError, match=r"dst\[1\]: has gaps"):
        kernels.zero([torch.zeros(3), x])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.zeros(3, dtype=torch.int64), r"src\[0\]: has a type"),
        (lambda: torch.zeros(3, dtype=torch.complex64), r"src\[0\]: has a type"),
        (lambda: torch.zeros(3, device="meta"), r"src\[0\]: is on device meta"),
        (lambda: np.zeros(3, ">f4"), r"src\[0\]: has the byte order"),
        (lambda: np.zeros(3, np.int8), r"src\[0\]: has a type"),
        (lambda: np.zeros(3, "S4"), r"src\[0\]: has a type"),
    ],
)
def test_what_is_not_floats_here_is_refused(make, words):
    with pytest.raises(libamp.ArgumentError, match=words):
        kernels.l2norm([make()])


def test_sparse_tensors_are_refused_by_torch():
    with pytest.raises(RuntimeError):
        kernels.l2norm(torch.eye(3).to_sparse())


def test_autograd_notices_what_was_written():
    w, x = torch.randn(3, requires_grad=True), torch.randn(3)
    y = (w * w).sum()
    kernels.scale(w, w, 2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    version = x._version
    kernels.l2norm(x)
    kernels.cast(torch.zeros(3), x)
    assert x._version == version, "only what is written counts"
    with torch.inference_mode():
        z = torch.ones(3)
        kernels.zero([z, torch.ones(3)])
    assert not z.any()


def test_parameters_of_a_model():
    model = torch.nn.Linear(4, 2)
    half = [torch.zeros_like(p, dtype=torch.bfloat16) for p in model.parameters()]
    kernels.cast(half, model.parameters())
    assert all(torch.equal(h, p.bfloat16()) for h, p in zip(half, model.parameters(), strict=True))


def test_bfloat16_of_numpy():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = np.linspace(-3, 3, 99, dtype=np.float32)
    y = np.zeros(99, bfloat16)
    kernels.cast(y, x)
    assert y.tobytes() == x.astype(bfloat16).tobytes()
    z = np.asfortranarray(np.zeros((9, 11), bfloat16))
    kernels.copy(z, np.asfortranarray(y.reshape(9, 11)))
    assert (z == y.reshape(9, 11)).all()


def test_read_only_arrays():
    x = np.ones(4, np.float32)
    x.flags.writeable = False
    assert kernels.l2norm(x) == 2.0
    for call in (lambda: kernels.zero(x), lambda: kernels.scale([x], [x], 2.0), lambda: kernels.check(x, norm=x[:1])):
        with pytest.raises(libamp.ArgumentError, match="is read-only"):
            call()
    assert x.all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestCuda:
    def test_lists_have_the_cpus_bits(self):
        x = [torch.randn(size) for size in (1000, 3, 0)]
        there = [t.cuda() for t in x]
        half, half_there = [t.half() for t in x], [torch.zeros_like(t, dtype=torch.float16) for t in there]
        kernels.cast(half_there, there)
        assert [bits(t.cpu()) for t in half_there] == [bits(t) for t in half]
        assert kernels.scale(there, there, 0.5) is kernels.scale(x, x, 0.5) is False
        assert [bits(t.cpu()) for t in there] == [bits(t) for t in x]
        assert kernels.l2norms(there) == kernels.l2norms(x)
        assert kernels.clip_norm(there, there, 0.1) == kernels.clip_norm(x, x, 0.1)
        assert [bits(t.cpu()) for t in there] == [bits(t) for t in x]
        kernels.zero(there)
        assert not any(t.any() for t in there)

    def test_results_may_stay_on_the_device(self):
        x, found, norm = torch.full((8,), float("inf")).cuda(), torch.zeros(1).cuda(), torch.zeros(1).cuda()
        assert kernels.scale(x, x, 1.0, found_inf=found) is None and found.item() == 1.0
        assert kernels.l2norm(x, norm=norm, stream=torch.cuda.current_stream()) is None and norm.item() == float("inf")

    @pytest.mark.parametrize("rule", ["sgd", "adam", "adamw", "lamb", "novograd", "adagrad", "larc"])
    def test_steps_have_the_cpus_bits(self, rule):
        names = {"sgd": [], "larc": [], "adagrad": ["sum"]}.get(rule, ["exp_avg", "exp_avg_sq"])
        torch.manual_seed(1)
        values = [torch.randn(100), torch.randn(7)], [torch.randn(100), torch.randn(7)]
        ends = []
        for device in ("cpu", "cuda"):
            params, grads = ([t.clone().to(device) for t in list_] for list_ in values)
            state = {name: [torch.zeros(1 if (rule, name) == ("novograd", "exp_avg_sq") else t.numel(), device=device)
                            for t in params] for name in names}
            steps = [0, 0]
            for _ in range(3):
                assert kernels.optimizer_step(rule, params, grads, state, steps=steps, lr=0.1, inv_scale=0.25) is True
            assert steps == [3, 3]
            ends.append([bits(t.cpu()) for t in params])
        assert ends[0] == ends[1]
