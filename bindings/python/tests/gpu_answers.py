# SPDX-License-Identifier: Apache-2.0
"""What torch answers on the CPU to a script for GPUs; test_gpu_scripts runs it under libamp.run --cpu."""
import importlib
import io
import pickle
import warnings

import torch
import torch.distributed as dist
from torch import nn

warnings.simplefilter("ignore")
x, gpu = torch.ones(2, 3), torch.device("cuda:0")

for device in ("cuda", "cuda:0", gpu, 0):  # wherever a device is named
    made = [torch.zeros(2, device=device), torch.tensor([1.0], device=device), x.new_tensor([1.0], device=device),
            torch.randn_like(x, device=device), x.to(device), x.to(device, torch.half), x.to(device=device),
            nn.Linear(3, 3).to(device).weight, torch.tril_indices(3, 3, device=device)]
    assert {tensor.device.type for tensor in made} == {"cpu"}
with gpu:
    assert torch.zeros(1).device.type == "cpu"
with torch.device("meta"):
    assert torch.zeros(1).is_meta
host = torch.zeros(3)
for there in (host.cuda(), host.to("cuda"), host.cuda().cpu()):
    there += 1  # memory of its own, as a GPU's
assert host.sum() == 0 and not x.cuda().is_cuda
assert x.type("torch.cuda.HalfTensor").dtype == torch.half and isinstance(x, torch.cuda.FloatTensor)
assert x.pin_memory() is x and torch.zeros(3, pin_memory=True).sum() == 0
generator = torch.Generator(device="cuda").manual_seed(3)
assert torch.rand(2, device="cuda", generator=generator).shape == (2,) and isinstance(generator, torch.Generator)
assert pickle.loads(pickle.dumps([torch.zeros, torch.Tensor.to])) == [torch.zeros, torch.Tensor.to]

torch.cuda.manual_seed_all(7)
first = torch.rand(3, device="cuda")
torch.cuda.manual_seed(7)
assert torch.equal(first, torch.rand(3, device="cuda"))
state = torch.cuda.get_rng_state()
second = torch.rand(3)
torch.cuda.set_rng_state(state)
torch.cuda.set_rng_state(torch.zeros(16, dtype=torch.uint8))  # a GPU's, of a checkpoint
assert torch.equal(second, torch.rand(3))

file = io.BytesIO()
torch.save(x, file)
for where in ("cuda", gpu, lambda storage, location: storage.cuda(0), {"cpu": "cuda:1"}):
    file.seek(0)
    assert torch.equal(torch.load(file, map_location=where), x)

module = nn.DataParallel(nn.Linear(3, 3), device_ids=[0, 1]).cuda()
assert module(x).shape == nn.parallel.data_parallel(module.module, x, [0]).shape == (2, 3)
with torch.cuda.device(1):
    assert torch.cuda.current_device() == 1
assert torch.cuda.current_device() == 0 and torch.cuda.device_count() == 1
with torch.autocast("cuda"):
    assert (x @ x.t()).dtype in (torch.float16, torch.bfloat16)
with torch.autocast("cuda", dtype=torch.bfloat16), torch.cuda.stream(torch.cuda.Stream()):
    assert (x @ x.t()).dtype == torch.bfloat16


def function(x):
    y = x.cuda() + torch.zeros(2, 3, device="cuda") + x.to("cuda")
    if torch.cuda.is_available():
        y = y + torch.zeros_like(x, device="cuda:0") + x.to(torch.device("cuda"))
    return y


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.device = gpu

    def forward(self, x):
        return x.to(self.device) + torch.ones(2, 3, device=self.device)


def compiled(x):
    torch.cuda.synchronize()
    return function(x) + x.new_zeros(3, device=gpu) + x.type("torch.cuda.FloatTensor") + torch.tensor(1.0, device=0)


assert torch.equal(torch.jit.script(function)(x), 3 * x)
assert torch.equal(torch.jit.script(Module())(x), 2 * x)
file = io.BytesIO()
torch.jit.save(torch.jit.script(Module()), file)
file.seek(0)
assert torch.equal(torch.jit.load(file, map_location="cuda")(x), 2 * x)
importlib.import_module("torch._inductor")
quick = {"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}  # else inductor compiles for half a minute
quick = {name: value for name, value in quick.items() if name in torch._inductor.list_options()}
assert torch.equal(torch.compile(compiled, fullgraph=True, options=quick)(x), 5 * x)
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=gpu)
group = dist.new_group([0], backend="nccl")
dist.all_reduce(x.cuda(), group=group)
dist.barrier(device_ids=[0])
assert dist.get_backend(group) == "gloo"
dist.destroy_process_group()
print("done")
