# SPDX-License-Identifier: Apache-2.0
"""Any object with __dlpack__: what is read from its capsule, and that each export ends exactly once."""
import gc
import sys

import libamp
import numpy as np
import pytest
from libamp import kernels
from producer import Producer


@pytest.fixture(autouse=True)
def exports_end():
    before = Producer.exports
    yield
    gc.collect()
    assert Producer.alive == 0, "an export has not ended"
    assert Producer.exports > before, "nothing was exported: the test tests nothing"


def sample(*shape):
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("how", [{"version": (1, 0)}, {"version": (1, 7)}, {"version": None}, {"compact": True},
                                 {"offset": 64}, {"device": (3, 0)}])
def test_read_and_write_in_place(how):
    x, y = sample(3, 4), np.zeros((3, 4), np.float32)
    kernels.copy([Producer(y, **how)], [Producer(x, **how)])
    assert y.tobytes() == x.tobytes()


def test_a_list_of_all_kinds():
    kernels.l2norm(Producer(sample(2)))
    torch = pytest.importorskip("torch")
    source = [torch.randn(4), sample(5), Producer(sample(6)), torch.randn(2, 2, requires_grad=True),
              np.asarray(sample())]
    target = [Producer(np.zeros(4, np.float16)), torch.zeros(5), np.zeros(6), np.zeros((2, 2), np.float32),
              torch.zeros(())]
    kernels.cast(target, source)
    assert target[0].array.tobytes() == source[0].half().numpy().tobytes()
    assert target[1].numpy().tobytes() == source[1].tobytes()
    assert (target[2] == source[2].array).all()
    assert target[3].tobytes() == source[3].detach().numpy().tobytes()
    assert target[4].item() == source[4]


def test_read_only_and_copied_memory_is_read_but_not_written():
    x = sample(9)
    for flags in (1, 2):
        assert kernels.l2norm(Producer(x, flags=flags)) == kernels.l2norm(x)
        with pytest.raises(libamp.ArgumentError, match=r"dst\[1\]: is read-only"):
            kernels.zero([Producer(x), Producer(x, flags=flags)])
    assert x.all()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"version": (2, 0)}, r"src\[1\]: speaks DLPack 2.0"),
        ({"lanes": 4}, r"src\[1\]: has a type"),
        ({"bits": 8}, r"src\[1\]: has a type"),
        ({"code": 5}, r"src\[1\]: has a type"),
        ({"ndim": 65}, r"src\[1\]: has 65 dimensions"),
        ({"ndim": -1}, r"src\[1\]: has -1 dimensions"),
        ({"device": (10, 1)}, r"src\[1\]: is on a device of DLPack's type 10"),
        ({"device": (2, 0)}, r"src\[1\]: is on another device than those before it"),
        ({"data": None}, r"src\[1\]: has no memory"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(how, words):
    x, y = sample(6), np.ones(6, np.float32)
    with pytest.raises(libamp.ArgumentError, match=words):
        kernels.cast([y, y], [Producer(x), Producer(x, **how)])
    assert y.all(), "nothing is written before all was read"


def test_strange_producers():
    class Strange:
        def __init__(self, answer):
            self.answer = answer

        def __dlpack__(self, **how):
            if isinstance(self.answer, BaseException):
                raise self.answer
            return self.answer

    x = sample(3)
    kernels.l2norm(Producer(x))
    with pytest.raises(libamp.ArgumentError, match="src: its __dlpack__ gave no fresh DLPack capsule"):
        kernels.l2norm(Strange(17))
    with pytest.raises(libamp.ArgumentError, match="src: its __dlpack__ failed: cannot export that"):
        kernels.l2norm(Strange(BufferError("cannot export that")))
    with pytest.raises(KeyboardInterrupt):
        kernels.l2norm(Strange(KeyboardInterrupt()))


def test_a_gpu_that_is_not_there_is_said_in_words():
    x = sample(3)
    with pytest.raises(libamp.Error, match=r"cuda|CUDA"):
        kernels.zero(Producer(x, device=(2, 99)))
    with pytest.raises(libamp.ArgumentError, match="first_nonfinite works on the CPU only"):
        kernels.first_nonfinite(Producer(x, device=(2, 0)))
    assert x.all()


def test_a_thousand_calls_leave_nothing_behind():
    x, y = Producer(sample(50)), Producer(np.zeros(50, np.float32))
    bad = Producer(sample(50), lanes=2)
    arguments = [x, y, [x, y], 2.0]

    def round_of_calls():
        kernels.cast([y, y], [x, x])
        kernels.scale(y, x, 2.0)
        kernels.l2norms(arguments[2])
        kernels.check(arguments[2], 0.5)
        for call in (lambda: kernels.cast([y, y], [x, bad]), lambda: kernels.cast([y], [x, x]),
                     lambda: kernels.zero([y, 3]),
                     lambda: kernels.optimizer_step("adam", [y], [x], {"exp_avg": [y, y]}, steps=[0])):
            try:
                call()
            except (ValueError, TypeError):
                continue
            raise AssertionError("it was not refused")
        for producer in (x, y, bad):
            producer.kept.clear()

    for _ in range(100):  # what is cached is cached by then
        round_of_calls()
    gc.collect()
    counts = [sys.getrefcount(argument) for argument in arguments]
    blocks = sys.getallocatedblocks()
    for _ in range(1000):
        round_of_calls()
    gc.collect()
    assert [sys.getrefcount(argument) for argument in arguments] == counts
    assert sys.getallocatedblocks() - blocks < 500
