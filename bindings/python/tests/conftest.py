# SPDX-License-Identifier: Apache-2.0
"""What the tests share. They test the libamp that is installed, wherever they lie."""
import contextlib
import gc
import sys

import extras
import pytest

try:
    from half import LACKS_HALF, MISSING, half_on_cpu
except ModuleNotFoundError:  # no torch
    LACKS_HALF, MISSING, half_on_cpu = False, "", contextlib.nullcontext


# pytest-xdist's --dist loadfile begins with the files that have the most tests; these have few, and take longest. But
# for the first: torch's engine of backward knows the devices that were registered before its first run.
LONGEST = ["test_toydevice", "test_run", "test_apex_scripts", "test_apex_shim", "test_findings", "test_examples",
           "test_o1", "test_amp_compile", "test_bench"]

collect_ignore_glob = [
    test for extra, (_, tests) in extras.EXTRAS.items() if not extras.is_there(extra) for test in tests]


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(extras.of_test(item.path))
    places = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


@pytest.fixture(autouse=True, scope="module")
def _earlier_objects():
    """Searches for tensors and collections are to look at this file's objects: what was imported, and what other files
    have left, is a quarter of a million more."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # extension modules look for leaks at exit


@pytest.fixture(autouse=True)
def _half_on_cpu(request):
    with contextlib.nullcontext() if request.node.get_closest_marker("plain_half") else half_on_cpu():
        yield


@pytest.fixture(autouse=True)
def _products_by_torch(request, monkeypatch):
    """Most tests compare with torch's 16-bit products to the bit. The gate, which depends on the CPU, has its own."""
    rules = sys.modules.get("libamp.torch.amp.product_rules")
    if rules is not None and not request.path.stem.startswith("test_product"):
        monkeypatch.setattr(rules, "least_edge", lambda kind, dtype: 0)


@pytest.fixture(autouse=True)
def _amp_ends(_half_on_cpu):
    """What a test has initialised ends with it."""
    yield
    amp = sys.modules.get("libamp.torch.amp")
    if amp is not None:
        amp.shutdown()


@pytest.fixture(autouse=True)
def _no_registrations():
    """amp.register_...'s hold for all later initializes of the process, and other files run in it."""
    yield
    registry = sys.modules.get("libamp.torch.amp.registry")
    if registry is not None:
        registry._registered.clear()


def pytest_runtest_makereport(item, call):
    """Where HalfOnCPU is not (other processes, `plain_half`) what torch refuses says nothing about libamp."""
    if LACKS_HALF and call.excinfo is not None and MISSING in str(call.excinfo.value):
        try:
            pytest.skip(next(line for line in str(call.excinfo.value).splitlines() if MISSING in line))
        except pytest.skip.Exception:
            call.excinfo = pytest.ExceptionInfo.from_current()
