# SPDX-License-Identifier: Apache-2.0
"""LARC around optimizers, against its formula; the launcher."""

import pickle

import forks
import pytest
import torch
from libamp.torch.parallel import LARC as module
from torch import nn

LARC = module.LARC


def parameters(dtype=torch.float32):
    torch.manual_seed(1)
    params = [nn.Parameter(torch.randn(size, dtype=dtype)) for size in ((4, 5), (5,), (2, 2))]
    params[2].data.zero_()  # a norm of 0
    for param in params:
        param.grad = torch.randn_like(param)
    return [*params, nn.Parameter(torch.ones(2, dtype=dtype))]  # the last one has no gradient


def by_formula(param, lr, decay, clip, tc=0.02, eps=1e-8):
    p, g = param.detach().double(), param.grad.double()
    p_norm, g_norm = float(p.norm()), float(g.norm())
    ratio = 1.0
    if p_norm != 0 and g_norm != 0:
        ratio = tc * p_norm / (g_norm + decay * p_norm + eps)
        ratio = min(ratio / lr, 1) if clip else ratio
    return p - lr * ratio * (g + decay * p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize(("lr", "decay"), [(0.1, 0.0), (0.1, 0.01), (1e-4, 0.5)])
def test_step_is_the_formula(dtype, clip, lr, decay):
    params = parameters(dtype)
    optimizer = LARC(torch.optim.SGD(params, lr=lr, weight_decay=decay), clip=clip)
    wanted = [by_formula(param, lr, decay, clip) for param in params[:3]]
    optimizer.step()
    for param, w in zip(params[:3], wanted, strict=True):
        # three roundings of the gradient and one of the parameter, in its type
        bound = 4 * torch.finfo(dtype).eps * max(float(w.abs().max()), lr * 4)
        assert float((param.detach().double() - w).abs().max()) <= bound
    assert torch.equal(params[3].detach(), torch.ones(2, dtype=dtype))
    assert optimizer.param_groups[0]["weight_decay"] == decay


def test_norms_of_half_do_not_overflow():
    param = nn.Parameter(torch.full((8192,), 1000.0, dtype=torch.float16))
    param.grad = torch.full_like(param, 1000.0)  # the norm is beyond fp16
    LARC(torch.optim.SGD([param], lr=1.0)).step()
    assert float(param.detach()[0]) == 1000 - 20


def test_it_has_what_an_optimizer_has():
    params = parameters()
    inner = torch.optim.SGD(params[:2], lr=0.1, momentum=0.9)
    optimizer = LARC(inner)
    assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state
    assert repr(optimizer) == repr(inner) and optimizer.defaults is inner.defaults
    optimizer.add_param_group({"params": params[2:], "lr": 0.5})
    assert len(inner.param_groups) == 2
    optimizer.step()
    state = optimizer.state_dict()
    optimizer.zero_grad(set_to_none=True)
    assert all(param.grad is None for param in params)
    other = LARC(torch.optim.SGD([{"params": parameters()[:2]}, {"params": parameters()[2:]}], lr=1.0, momentum=0.9))
    other.load_state_dict(state)
    assert other.param_groups[1]["lr"] == 0.5 and len(other.state) == 3
    again = pickle.loads(pickle.dumps(optimizer))
    assert again.trust_coefficient == 0.02 and again.param_groups[1]["lr"] == 0.5
    with pytest.raises(AttributeError):
        optimizer.no_such_thing  # noqa: B018


def test_closures():
    def run(closure_of):
        params = parameters()
        optimizer = closure_of(params)
        x = params[0].detach().clone()

        def closure():
            optimizer.zero_grad()
            loss = ((params[0] - 2 * x) ** 2).sum()
            loss.backward()
            return loss

        return optimizer.step(closure), params[0].detach()

    loss, new = run(lambda params: LARC(torch.optim.SGD(params, lr=0.1, weight_decay=0.1)))
    param = parameters()[0]
    param.grad = -2 * param.detach()
    torch.testing.assert_close(new.double(), by_formula(param, 0.1, 0.1, True), rtol=1e-6, atol=1e-6)
    assert float(loss) == pytest.approx(float(parameters()[0].detach().square().sum()), rel=1e-6)
    run(lambda params: LARC(torch.optim.LBFGS(params[:1], max_iter=3)))


def test_a_step_that_fails_keeps_the_weight_decay():
    optimizer = LARC(torch.optim.SGD(parameters(), lr=0.1, weight_decay=0.3))

    def fail():
        raise KeyError("mine")

    with pytest.raises(KeyError):
        optimizer.step(fail)
    assert optimizer.param_groups[0]["weight_decay"] == 0.3


SCRIPT = """
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int)
parser.add_argument("--world-size", type=int)
parser.add_argument("--fail", action="store_true")
args = parser.parse_args()
if args.fail:
    time.sleep(0 if args.rank else 100)  # until the launcher ends it
    os._exit(7)
import torch, torch.distributed as dist
dist.init_process_group("gloo")
assert (args.rank, args.world_size) == (dist.get_rank(), dist.get_world_size())
assert int(os.environ["LOCAL_RANK"]) == args.rank
total = torch.tensor(args.rank + 1)
dist.all_reduce(total)
print("total", int(total), flush=True)
dist.barrier()
os._exit(0)  # not through Python's end, where torch's own threads may end it otherwise
"""


def test_launcher(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = ["-m", "libamp.torch.parallel.multiproc", "script.py", "--world-size", "2"]
    done = forks.run(*command, cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "total 3"), done.stderr
    assert (tmp_path / "GPU_1.log").read_text().strip() == "total 3"
    failed = forks.run(*command, "--fail", cwd=tmp_path)
    assert failed.returncode == 7, failed.stderr
