# SPDX-License-Identifier: Apache-2.0
"""The gauges that read a training step. On a GPU: its kernels and their time, by torch's profiler, and clocks. On the
CPU aten calls are counted in the place of kernels, and the bytes that are kept for backward in that of memory."""
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

Step = Callable[[], torch.Tensor]
Record = dict[str, float | None]

ANNOTATIONS = ("Optimizer.", "ProfilerStep", "Torch-Compiled Region", "## ", "nccl:", "DataParallel", "autograd::")
COPIES = ("_to_copy", "copy_")


def is_work(event: Any) -> bool:
    """A kernel, a copy or a fill. The profiler draws ranges of the host on the GPU's line too."""
    if event.device_type != torch.autograd.DeviceType.CUDA or getattr(event, "is_user_annotation", False):
        return False
    annotation = "annotation" in (getattr(event, "activity_type", None) or "")
    return not annotation and not event.name.startswith(ANNOTATIONS)


def is_copy(name: str) -> bool:
    """A kernel that only copies, or casts."""
    name = name.lower()
    if name.startswith("triton"):  # named for all that inductor fused
        return name.split("fused_", 1)[-1].strip("_0123456789") in ("to_copy", "copy", "clone")
    return "copy" in name or "memcpy" in name or "cast" in name


class Gpu:
    """warm, steps: how many before and while clocks run."""

    def __init__(self, warm: int = 4, steps: int = 8) -> None:
        self.warm, self.steps = warm, steps

    def read(self, step: Step, compiled: bool) -> Record:
        for _ in range(self.warm):
            loss = step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        host, events = [], []
        for _ in range(3):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            loss = step()
            host.append(1e3 * (time.perf_counter() - begin))
        torch.cuda.synchronize()
        for _ in range(self.steps):
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            loss = step()
            pair[1].record()
            events.append(pair)
        torch.cuda.synchronize()
        record: Record = {"host_ms": statistics.median(host),
                          "step_ms": statistics.median(a.elapsed_time(b) for a, b in events),
                          "mib": torch.cuda.max_memory_allocated() / 2**20, "loss": float(loss.detach())}
        return self._work(step) | record

    def _work(self, step: Step) -> Record:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
            step()
            torch.cuda.synchronize()
        work = [(event.name, event.time_range.elapsed_us() / 1e3) for event in trace.events() if is_work(event)]
        if not work:
            print("the profiler saw no kernel: does CUPTI work here?", file=sys.stderr)
            return dict.fromkeys(("kernels", "gpu_ms", "copies", "copies_ms"))
        return {"kernels": len(work), "gpu_ms": sum(ms for _, ms in work),
                "copies": sum(is_copy(name) for name, _ in work),
                "copies_ms": sum(ms for name, ms in work if is_copy(name))}


class Counts(TorchDispatchMode):
    """aten calls but views, and of them the copies and casts. What libamp's kernels do is no aten call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not getattr(func, "is_view", False):
            self.calls += 1
            self.copies += func.overloadpacket.__name__ in COPIES
        return func(*args, **(kwargs or {}))


class Cpu:
    """The steps whose number is a power of two look for averages: neither the median nor the counted step is one."""

    def __init__(self, warm: int = 3, steps: int = 5) -> None:
        self.warm, self.steps = warm, steps

    def read(self, step: Step, compiled: bool) -> Record:
        for _ in range(self.warm):
            loss = step()
        host, wall = [], []
        for _ in range(self.steps):
            begin, thread = time.perf_counter(), time.thread_time()
            loss = step()
            host.append(1e3 * (time.thread_time() - thread))
            wall.append(1e3 * (time.perf_counter() - begin))
        record: Record = {"kernels": None, "gpu_ms": None, "copies": None, "copies_ms": None, "mib": None,
                          "host_ms": statistics.median(host), "step_ms": statistics.median(wall),
                          "loss": float(loss.detach())}
        return record if compiled else record | self._counted(step)  # a compiled model would run eagerly under a mode

    def _counted(self, step: Step) -> Record:
        kept: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), Counts() as counts:
            step()
        return {"kernels": counts.calls, "copies": counts.copies, "mib": sum(kept.values()) / 2**20}


def gauge_of(device: str, quick: bool = False) -> Gpu | Cpu:
    if device == "cuda":
        return Gpu(3, 5) if quick else Gpu()
    return Cpu(4, 1) if quick else Cpu()
