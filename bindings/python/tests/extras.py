# SPDX-License-Identifier: Apache-2.0
"""What a wheel may be built without (-Dmlx=disabled and so on), by the names of Meson's options."""
import pathlib

import libamp
import pytest

FOLDER = pathlib.Path(libamp.__file__).parent

# Files in libamp/, of which a wheel has all or none; their tests, whose marker is the extra's name (the others have
# `core`).
EXTRAS = {
    "activations": (
        ("torch/amp/activations.py", "torch/amp/packed.py", "torch/amp/sensitivity.py"),
        ("test_activations*.py",),
    ),
    "apex_layers": (
        ("apex/RNN", "apex/_autocast_utils.py", "apex/contrib", "apex/fused_dense", "apex/fused_layer_norm_cuda.py",
         "apex/mlp", "apex/normalization", "apex/xentropy_cuda.py"),
        ("test_apex_attention.py", "test_apex_layers.py", "test_apex_losses.py", "test_apex_rnn.py",
         "test_distributed_optimizers.py", "test_normalization.py", "test_optimizers_arguments.py",
         "test_apex_scripts.py", "test_apex_shim.py"),  # the last two import all of Apex
    ),
    "mlx": (("mlx",), ("test_mlx*.py",)),
    "report": (("_report", "report.py"), ("test_notebooks.py", "test_report.py", "test_verdict.py")),
}


def is_there(extra):
    return (FOLDER / EXTRAS[extra][0][0]).exists()


def of_test(path):
    return next((extra for extra, (_, tests) in EXTRAS.items() for test in tests if path.match(test)), "core")


def left_out(file):
    """Does the file, named as in libamp/, belong to an extra that is not there?"""
    names = [name for extra, (files, _) in EXTRAS.items() if not is_there(extra) for name in files]
    return any(file == name or file.startswith(name + "/") for name in names)


def needs(extra):
    return pytest.mark.skipif(not is_there(extra), reason=f"a build without {extra}")
