# SPDX-License-Identifier: Apache-2.0
"""What was found, as data, as a report, and by `python -m libamp.run --check`."""
import gc
import os
import sys
import textwrap
import warnings

import forks
import pytest

torch = pytest.importorskip("torch")

import libamp  # noqa: E402
from levels import LEVELS  # noqa: E402
from libamp.torch import amp  # noqa: E402
from torch import nn  # noqa: E402
from training import backward, batches, net  # noqa: E402


def trained(level, n=2, clip=None):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    for batch in batches(n):
        optimizer.zero_grad()
        backward(model, optimizer, batch)
        if clip is not None:
            nn.utils.clip_grad_norm_(clip(model), 1.0)
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("level", LEVELS)
def test_a_right_script_is_sound(level):
    model, optimizer = trained(level)
    text = amp.health()
    assert text.startswith(f"level {level}") and text.endswith("\nsound\n")
    assert text == amp.health(model) == amp.health(optimizer)
    assert amp.findings() == []


def test_a_finding_is_told_once_and_listed_with_its_line():
    with pytest.warns(libamp.FindingWarning) as told:
        model, _ = trained("O2", 3, nn.Module.parameters)
    assert len(told) == 1 and told[0].filename == __file__ and str(told[0].message).startswith("AMP-M32 ")
    (finding,) = amp.findings()
    assert (finding.code, finding.filename, finding.lineno) == ("AMP-M32", __file__, told[0].lineno)
    assert finding.message == str(told[0].message) and finding.times >= 2
    assert amp.health(model).endswith(f"{__file__}:{finding.lineno}: {finding.message}\n1 finding\n")


def test_the_librarys_findings_come_with_the_scripts_line():
    model = net()
    model.extra = nn.Linear(2, 2)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    with pytest.warns(libamp.FindingWarning, match=r"AMP-M08 .*extra\.weight") as told:
        backward(model, optimizer, batches(1)[0])
    (finding,) = amp.findings()
    assert (finding.code, finding.subject, finding.lineno) == ("AMP-M08", "optimizer 0", told[0].lineno)
    assert f":{finding.lineno}: AMP-M08" in amp.health() and amp.health().endswith("\n1 finding\n")


@pytest.mark.parametrize("level", ["O0", "O1", "O4", "O5"])
def test_the_librarys_findings_tell_a_script_what_a_script_can_do(level):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    anew = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.warns(libamp.FindingWarning) as told:
        for batch in batches(3):
            anew.zero_grad()
            backward(model, optimizer, batch)
            anew.step()
    (message,) = (str(each.message) for each in told if str(each.message).startswith("AMP-M05"))
    assert "amp.initialize returned" in message and "amp_" not in message
    assert message in amp.health() and message in [finding.message for finding in amp.findings()]
    assert "amp_optimizer" not in amp.health()


def test_what_is_frozen_needs_no_gradient():
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    backward(model, optimizer, batches(1)[0])
    assert amp.findings() == [] and amp.health().endswith("\nsound\n")


def test_health_of_what_amp_does_not_know():
    with pytest.raises(RuntimeError, match="went through no amp"):
        amp.health(net())
    assert amp.health() == "" and amp.findings() == []


def tapped():
    hooks = sys.modules[torch.optim.Optimizer.__module__]._global_optimizer_pre_hooks
    return [torch.autograd.backward, nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_, len(hooks)]


def test_torchs_functions_are_tapped_for_two_iterations_of_each_optimizer():
    own = tapped()
    model, optimizer = trained("O1", 1)
    assert all(a is not b for a, b in zip(own, tapped()))
    for batch in batches(1):
        backward(model, optimizer, batch)
        optimizer.step()
    assert tapped() == own


@pytest.mark.parametrize("end", ["shutdown", "collected", "refused"])
def test_and_no_longer_than_a_session_lives(end):
    own = tapped()
    if end == "refused":
        with pytest.raises(TypeError):
            amp.initialize(net(), 5, verbosity=0)
    else:
        pair = trained("O2", 1)
        assert tapped() != own
        if end == "shutdown":
            amp.shutdown(pair[0])
        del pair
        gc.collect()
    assert tapped() == own


def test_as_errors_they_end_the_call():
    with warnings.catch_warnings():
        warnings.simplefilter("error", libamp.FindingWarning)
        with pytest.raises(libamp.FindingWarning, match="AMP-M32"):
            trained("O2", 1, nn.Module.parameters)


def test_a_block_that_ends_in_such_an_error_is_over():
    """Gradients are as they were before it, and the next one works."""
    model, optimizer = trained("O1", 1)
    optimizer.zero_grad()
    bare = nn.functional.mse_loss(model(batches(1)[0][0]).float(), batches(1)[0][1])
    with warnings.catch_warnings():
        warnings.simplefilter("error", libamp.FindingWarning)
        with pytest.raises(libamp.FindingWarning) as told, amp.scale_loss(bare, optimizer):
            bare.backward()
    assert str(told.value).startswith("AMP-M31")  # and its traceback is kept until the end
    assert all(param.grad is None for param in model.parameters())
    backward(model, optimizer, batches(1)[0])
    optimizer.step()
    assert amp.stepped(optimizer)


# ---- python -m libamp.run --check ----

SCRIPT = """
    import sys
    import torch
    from apex import amp

    def main():
        model = torch.nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = amp.initialize(model, optimizer, opt_level="O5", verbosity=0)
        for step in range(4):
            loss = model(torch.randn(4, 8)).float().mean()
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            wrong = "wrong" in sys.argv and step == 3
            torch.nn.utils.clip_grad_norm_(model.parameters() if wrong else amp.master_params(optimizer), 1.0)
            optimizer.step()
        print("done", flush=True)
        if "raise" in sys.argv:
            raise ValueError("the script's own")
        if "exit" in sys.argv:
            sys.exit(7)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(
    "args,status,last",
    [
        ([], 0, "no finding"),
        (["exit"], 7, "no finding"),
        (["wrong"], 1, "1 finding"),
        (["wrong", "exit"], 7, "1 finding"),
        (["wrong", "raise"], 1, "1 finding"),
    ],
)
def test_a_check_looks_until_the_script_ends(tmp_path, args, status, last):
    """Also where the models are gone by then."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    command = ["-m", "libamp.run", "--check", "script.py", *args]
    result = forks.run(*command, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert (result.returncode, result.stdout) == (status, "done\n"), result.stderr
    assert ("\nsound\n" in result.stderr) == ("wrong" not in args)
    assert f"libamp.doctor: {last} in 4 steps of 2 parameters\n" in result.stderr and "\nlevel O5" in result.stderr
    assert ("script.py:15: AMP-M32 " in result.stderr) == ("wrong" in args)
    assert ("ValueError: the script's own" in result.stderr) == ("raise" in args)


@pytest.mark.parametrize("check", [(), ("-m", "libamp.run", "--check")])
@pytest.mark.parametrize("wrong", [False, True])
def test_standard_error_that_nobody_reads(tmp_path, check, wrong):
    """The script runs on, and the status is what it would be."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT).replace("from apex", "from libamp.torch"))
    closes = "r, w = os.pipe(); os.close(r); os.dup2(w, 2); sys.argv.append('wrong')"
    closes = closes if wrong else closes.rpartition(";")[0]
    own = f"import os, runpy, sys; {closes}; runpy.run_path('script.py', run_name='__main__')"
    (tmp_path / "closed.py").write_text(own)
    result = forks.run(*check, "closed.py", cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert (result.returncode, result.stdout) == (int(wrong and bool(check)), "done\n")


def test_a_check_of_a_script_without_amp(tmp_path):
    result = forks.run("-m", "libamp.run", "--check", "-c", "print(5)", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "5\n") and "looked at nothing: no step of" in result.stderr
