# SPDX-License-Identifier: Apache-2.0
"""_core.Policy, the lists' decisions without a model: what libamp.mlx asks."""
import libamp
import pytest
from libamp import _core

LOWER, FP32, PROMOTE, PROMOTE_SEQUENCE, BANNED, LEAVE = range(1, 7)


def wanted(op_class, given, low):
    """One type comes in: promoted it is what it was."""
    target = {LOWER: low, FP32: "float32"}.get(op_class)
    return None if target == given else target


@pytest.mark.parametrize(("level", "low", "column"), [("O1", "float16", 2), ("O4", "bfloat16", 3)])
@pytest.mark.parametrize(("lists", "number"), [("apex", 1), ("torch", 2)])
def test_every_name_of_the_lists(level, low, column, lists, number):
    policy = _core.Policy(level, {"lists": lists})
    for row in _core.list_ops(number):
        for given in ("float32", low):
            if row[column] == BANNED and given == low:
                with pytest.raises(NotImplementedError, match=row[0]):
                    policy.target(row[0], (given,))
            else:
                assert policy.target(row[0], (given,)) == wanted(row[column], given, low), row
    assert policy.target("add", (low, "float32")) == ("float32" if lists == "apex" else None)
    assert policy.target("no op of any list", ("float32",)) is None
    assert policy.target("no op of any list", ("float32",), LOWER) == low


@pytest.mark.parametrize("level", ["O0", "O2", "O3", "O5"])
def test_levels_that_cast_no_ops(level):
    policy = _core.Policy(level, {})
    assert {policy.target(row[0], ("float32", "float16")) for row in _core.list_ops(1) if row[2] != BANNED} == {None}


def test_what_is_refused():
    with pytest.raises(libamp.ArgumentError, match="O1"):
        _core.Policy("01", {})
    policy = _core.Policy("O1", {})
    with pytest.raises(ValueError, match="float32, float16, bfloat16"):
        policy.target("matmul", ("int8",))
    with pytest.raises(ValueError, match="9 types"):
        policy.target("matmul", ("float32",) * 9)
    with pytest.raises(libamp.ArgumentError, match="77"):
        policy.target("matmul", ("float32",), 77)
    with pytest.raises(TypeError):
        policy.target("matmul", ["float32"])
