# SPDX-License-Identifier: Apache-2.0
"""What libamp has run with, and where it says that it has not: libamp.torch._tested_versions."""
import pathlib
import types
import warnings

import pytest

torch = pytest.importorskip("torch")
from libamp import _check  # noqa: E402
from libamp.torch import _tested_versions, amp, parallel  # noqa: E402

ROOT = pathlib.Path(__file__).parents[3]
GPU = types.SimpleNamespace(type="cuda")


@pytest.fixture
def untold(monkeypatch):
    monkeypatch.setattr(_tested_versions, "_told", set())


def test_the_range_of_versions_is_what_the_documentation_says():
    oldest, newest = (".".join(map(str, version)) for version in _tested_versions.TORCH)
    said = " ".join((ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8").split())
    assert f"from {oldest} to {newest}" in said
    for version in (f"{oldest}.1", f"{newest}.0+cu132", f"{newest}.0a0+git123", "2.9.1"):
        assert not _tested_versions.outside(version)
    for version in ("1.13.1", "2.99.0.dev1", "3.0", "x"):
        assert version in _tested_versions.outside(version)


def test_health_names_a_torch_that_was_not_tried(monkeypatch):
    model = amp.initialize(torch.nn.Linear(2, 2), opt_level="O4", verbosity=0)
    tried = amp.health(model)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    said = amp.health(model)
    assert said == f"{_tested_versions.outside('2.99.0')}\n{tried}" and "this is 2.99.0" in said


def test_the_report_of_a_check_begins_with_it_too(monkeypatch):
    model = amp.initialize(torch.nn.Linear(2, 2), opt_level="O4", verbosity=0)
    try:
        tried, _ = _check.sessions()
        monkeypatch.setattr(torch, "__version__", "2.99.0")
        assert tried[0].startswith("amp.initialize 1 of ") and amp.health(model).endswith("\nsound\n")
        assert _check.sessions()[0] == [f"{_tested_versions.outside('2.99.0')}\n", *tried]
    finally:
        amp.shutdown()


def test_several_gpus_are_experimental_once(untold):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _tested_versions.several_gpus("SyncBatchNorm", torch.device("cpu"), 8)
        _tested_versions.several_gpus("SyncBatchNorm", GPU, 1)
    with pytest.warns(RuntimeWarning, match="experimental: SyncBatchNorm on several GPUs") as told:
        _tested_versions.several_gpus("SyncBatchNorm", GPU, 2)
        _tested_versions.several_gpus("libamp.torch.parallel", GPU, 2)
    assert len(told) == 1


@pytest.mark.parametrize("what", ["ranks that decide together", "SyncBatchNorm", "libamp.torch.parallel"])
def test_who_says_so(untold, monkeypatch, what):
    """Ranks and their device are made up: each of these asks before anything is sent."""
    from libamp.torch.amp import sharding
    from libamp.torch.parallel import flat, sync_batchnorm

    def told(asked, device, ranks):
        raise InterruptedError(asked, ranks)

    monkeypatch.setattr(_tested_versions, "several_gpus", told)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 2)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda group=None: "gloo")
    monkeypatch.setattr(sync_batchnorm, "_world_size", lambda group: 2)
    work = {
        "ranks that decide together": lambda: sharding.Ranks([None], torch.device("cpu"))(1, [0.0]),
        "SyncBatchNorm": lambda: parallel.SyncBatchNorm(2)(torch.ones(4, 2, 1, 1)),
        "libamp.torch.parallel": lambda: flat.flat_dist_call([torch.ones(2)], torch.distributed.all_reduce),
    }
    with pytest.raises(InterruptedError) as raised:
        work[what]()
    assert raised.value.args == (what, 2)


def test_headers_and_documentation_say_so():
    """Until a machine with several GPUs has run libamp, whoever reads of them is told."""
    assert not _tested_versions.SEVERAL_GPUS
    pages = [f"docs/{page}.md" for page in ("guide/gpus", "start/install", "reference/python-apex")]
    for name in ["include/amp_nccl.h", "include/amp_ranks.h", *pages]:
        assert "xperimental" in (ROOT / name).read_text(encoding="utf-8"), name
