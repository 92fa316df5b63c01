# SPDX-License-Identifier: Apache-2.0
"""torch.cuda's functions for one pretended GPU (as many as CUDA_VISIBLE_DEVICES names, or ranks of this machine), with
the time and memory of this process. Functions that return numbers are annotated because torch.jit.script compiles
them."""

from __future__ import annotations

import contextlib
import os
import platform
import time
import types
from typing import Any

import torch

TYPES = (
    "BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short",
)  # fmt: skip
CAPABILITY = (8, 0)  # a GPU with both 16-bit types
_current = 0


def is_available() -> bool:
    return True


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def device_count() -> int:
    named = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip() not in ("", "-1")]
    return max(len(named), int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


def current_device() -> int:
    return _current


def _number(device: Any) -> int:
    if device is None:
        return _current
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return _current if index is None else int(index)


def set_device(device: Any) -> None:
    global _current
    if _number(device) >= 0:
        _current = _number(device)


class device:
    """torch.cuda.device and device_of, as blocks without effect."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if isinstance(device, torch.Tensor) else _number(device)

    def __enter__(self) -> None:
        self.prev_idx = _current
        set_device(self.idx)

    def __exit__(self, *raised: Any) -> None:
        set_device(self.prev_idx)


device_of = device


# ---- the device ----


def get_device_name(device: Any = None) -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def get_device_capability(device: Any = None) -> tuple[int, int]:
    return CAPABILITY


def get_device_properties(device: Any = None) -> Any:
    return types.SimpleNamespace(
        name=get_device_name(),
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        multi_processor_count=os.cpu_count() or 1,
        is_integrated=True,
        is_multi_gpu_board=False,
        gcnArchName="",
    )


# ---- memory of the process ----


def _status(name: str) -> int:
    """Returns bytes from a line of /proc/self/status."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith(name):
                return int(line.split()[1]) << 10
    return 0


def memory_allocated(device: Any = None) -> int:
    return _status("VmRSS")


def max_memory_allocated(device: Any = None) -> int:
    return _status("VmHWM")


def reset_peak_memory_stats(device: Any = None) -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def mem_get_info(device: Any = None) -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def memory_stats(device: Any = None) -> dict[str, int]:
    now = {"current": memory_allocated(), "peak": max_memory_allocated(), "allocated": 0, "freed": 0}
    kinds = ("allocated_bytes", "active_bytes", "reserved_bytes")
    counts = {"num_alloc_retries": 0, "num_ooms": 0}
    return {f"{kind}.all.{which}": number for kind in kinds for which, number in now.items()} | counts


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    now, peak = memory_allocated() >> 20, max_memory_allocated() >> 20
    return f"memory of the process: {now} MiB, at most {peak} MiB\n"


def memory_snapshot(*args: Any, **kwargs: Any) -> list[Any]:
    return []


memory_reserved = memory_cached = memory_allocated
max_memory_reserved = max_memory_cached = max_memory_allocated
reset_max_memory_allocated = reset_max_memory_cached = reset_accumulated_memory_stats = reset_peak_memory_stats


# ---- random numbers: the CPU's generator ----


def manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def initial_seed() -> int:
    return int(torch.default_generator.initial_seed())


def seed() -> None:
    torch.default_generator.seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    return torch.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    if new_state.numel() == get_rng_state().numel():  # a GPU's state has no meaning here
        torch.default_generator.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state()] * device_count()


def set_rng_state_all(new_states: Any) -> None:
    for state in new_states:
        set_rng_state(state)


manual_seed_all, seed_all = manual_seed, seed


# ---- streams: work ends at its call ----


class Stream:
    """torch.cuda.Stream."""

    cuda_stream = 0
    priority = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device, self.priority = torch.device("cuda", _number(device)), priority

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    wait_stream = wait_event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *raised: Any) -> None:
        pass


class Event:
    """torch.cuda.Event. elapsed_time uses the clock of the process."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.time: float | None = None

    def record(self, stream: Any = None) -> None:
        self.time = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        if self.time is None or end_event.time is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event.time - self.time) * 1000

    def query(self) -> bool:
        return True

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass


ExternalStream = Stream
_stream = Stream(0)


def current_stream(device: Any = None) -> Stream:
    return _stream


default_stream = current_stream


class StreamContext:
    """torch.cuda.stream(s), a block without effect."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: Any) -> None:
        pass


def stream(stream: Any) -> StreamContext:
    return StreamContext(stream)


def make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:
    return callables


def is_current_stream_capturing() -> bool:
    return False


def nothing(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""


NOTHING = (
    "synchronize", "empty_cache", "ipc_collect", "init", "_lazy_init", "set_stream",
    "set_per_process_memory_fraction", "set_sync_debug_mode", "_sleep",
)  # fmt: skip
ZERO = (
    "utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "get_sync_debug_mode",
)  # fmt: skip


def zero(*args: Any, **kwargs: Any) -> int:
    return 0


def install() -> None:
    own = {name: value for name, value in globals().items() if getattr(value, "__module__", None) == __name__}
    hidden = ("install", "nothing", "zero")
    answers = {name: value for name, value in own.items() if name[0] != "_" and name not in hidden}
    answers |= dict.fromkeys(NOTHING, nothing) | dict.fromkeys(ZERO, zero)
    places = (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.graphs)
    for name, answer in answers.items():
        for place in places:
            if hasattr(place, name):
                setattr(place, name, answer)
    for kind in TYPES:
        setattr(torch.cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))
    torch.cuda.default_generators = (torch.default_generator,)
    if hasattr(torch, "accelerator"):  # implemented below Python, and called by optimizers and torch.compile
        torch.accelerator.is_available = lambda: False
        torch.accelerator.current_accelerator = nothing
        torch.accelerator.device_count = zero
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(torch.cuda.nvtx, name, zero)
    for name in ("init", "start", "stop"):
        setattr(torch.cuda.profiler, name, nothing)
