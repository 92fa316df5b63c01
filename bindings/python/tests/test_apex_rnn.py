# SPDX-License-Identifier: Apache-2.0
"""apex.RNN against torch's recurrent layers with the same weights, and against the multiplicative LSTM's formula."""

import pytest

torch = pytest.importorskip("torch")

from levels import LEVELS  # noqa: E402
from libamp.torch import RNN, amp  # noqa: E402
from libamp.torch.RNN.models import RNNCell, bidirectionalRNN, stackedRNN  # noqa: E402

STEPS, BATCH, WIDTH, HIDDEN, LAYERS = 5, 3, 4, 6, 2
TORCHS = {
    "LSTM": torch.nn.LSTM,
    "GRU": torch.nn.GRU,
    "ReLU": lambda *args, **kwargs: torch.nn.RNN(*args, nonlinearity="relu", **kwargs),
    "Tanh": torch.nn.RNN,
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


def twins(name, bias=True, **kwargs):
    mine = getattr(RNN, name)(WIDTH, HIDDEN, LAYERS, bias, **kwargs)
    reference = TORCHS[name](WIDTH, HIDDEN, LAYERS, bias=bias)
    for layer, cell in enumerate(mine.rnns):
        for kind, ours in (("weight", "w"), ("bias", "b"))[: 1 + bias]:
            for part in ("ih", "hh"):
                getattr(reference, f"{kind}_{part}_l{layer}").data = getattr(cell, f"{ours}_{part}").detach().clone()
    return mine, reference


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", TORCHS)
def test_layers_are_torchs(name, bias):
    mine, reference = twins(name, bias)
    x = torch.randn(STEPS, BATCH, WIDTH, requires_grad=True)
    (y, states), (wanted, last) = mine(x), reference(x)
    torch.testing.assert_close(y, wanted)
    for state, right in zip(states, last if isinstance(last, tuple) else [last], strict=True):
        torch.testing.assert_close(state, right)
    pairs = ((y, mine), (wanted, reference))
    grads = [torch.autograd.grad(out.square().sum(), [x, *module.parameters()]) for out, module in pairs]
    assert len(grads[0]) == len(grads[1]) == 1 + LAYERS * (2 + 2 * bias)
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_states_live_until_they_are_detached_or_reset():
    mine, reference = twins("LSTM")
    x = torch.randn(2 * STEPS, BATCH, WIDTH)
    wanted = reference(x)[0]
    mine(x[:STEPS])
    mine.detach_hidden()
    torch.testing.assert_close(mine(x[STEPS:])[0], wanted[STEPS:])
    mine.reset_hidden(BATCH)
    torch.testing.assert_close(mine(x)[0], wanted)
    torch.testing.assert_close(mine(x[:, :2])[0], wanted[:, :2])  # another batch
    with pytest.raises(RuntimeError, match="no hidden state"):
        RNN.GRU(2, 2, 1).detach_hidden()


def test_bidirectional_is_two_of_which_one_goes_from_the_end():
    both = RNN.LSTM(WIDTH, HIDDEN, LAYERS, bidirectional=True)
    assert isinstance(both, bidirectionalRNN) and isinstance(both.fwd, stackedRNN)
    x = torch.randn(STEPS, BATCH, WIDTH)
    y, states = both(x)
    both.reset_hidden(BATCH)
    ahead, ahead_states = both.fwd(x)
    back, back_states = both.bckwrd(x.flip(0))
    torch.testing.assert_close(y, torch.cat([ahead, back.flip(0)], -1))
    for state, pair in zip(states, zip(ahead_states, back_states), strict=True):
        torch.testing.assert_close(state, torch.cat(pair, -1))
    both.reset_hidden(BATCH)
    _, (hidden, cells) = both(x, collect_hidden=True)
    assert len(hidden) == len(cells) == STEPS and hidden[0].shape == (LAYERS, BATCH, 2 * HIDDEN)
    torch.testing.assert_close(torch.stack([step[-1] for step in hidden]), y)
    both.detach_hidden()


def test_mlstm_is_the_formula_with_a_projection():
    rnn = RNN.mLSTM(WIDTH, HIDDEN, 1, output_size=5)
    cell = rnn.rnns[0]
    assert list(cell.state_dict()) == ["w_ih", "w_hh", "w_ho", "b_ih", "b_hh", "w_mih", "w_mhh"]
    x = torch.randn(STEPS, BATCH, WIDTH)
    h, c, outs = torch.zeros(BATCH, 5), torch.zeros(BATCH, HIDDEN), []
    for step in x:
        m = (step @ cell.w_mih.t()) * (h @ cell.w_mhh.t())
        i, f, g, o = (step @ cell.w_ih.t() + cell.b_ih + m @ cell.w_hh.t() + cell.b_hh).split(HIDDEN, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = (o.sigmoid() * c.tanh()) @ cell.w_ho.t()
        outs.append(h)
    torch.testing.assert_close(rnn(x)[0], torch.stack(outs))
    assert RNN.mLSTM(WIDTH, HIDDEN, 2, output_size=5).rnns[1].w_ih.shape == (4 * HIDDEN, 5)


def test_dropout_is_between_the_layers_in_training_alone():
    rnn = RNN.Tanh(WIDTH, HIDDEN, 2, dropout=1.0)
    x = torch.randn(1, BATCH, WIDTH)
    top = rnn.rnns[1]
    assert torch.equal(rnn(x)[0][0], torch.tanh(top.b_ih + top.b_hh).expand(BATCH, -1))
    rnn.eval().reset_hidden(BATCH)
    assert not torch.equal(rnn(x)[0][0], torch.tanh(top.b_ih + top.b_hh).expand(BATCH, -1))


def test_mistakes_are_said():
    with pytest.raises(ValueError, match=r"transpose\(0, 1\)"):
        RNN.LSTM(2, 2, 1, batch_first=True)
    with pytest.raises(ValueError, match="num_layers=2"):
        stackedRNN([RNNCell(1, 2, 2, lambda: None, 1)], 2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["LSTM", "GRU", "mLSTM"])
def test_they_train_at_every_level(name, level):
    model = getattr(RNN, name)(WIDTH, HIDDEN, LAYERS)
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), 0.2), opt_level=level, verbosity=0)
    x, y = torch.randn(STEPS, BATCH, WIDTH), torch.rand(STEPS, BATCH, HIDDEN) / 2
    losses = []
    for _ in range(6):
        model.reset_hidden(BATCH)
        loss = (model(x)[0].float() - y).square().mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
