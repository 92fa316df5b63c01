# SPDX-License-Identifier: Apache-2.0
"""Parameters that are buffers: params(host, prefix) -> where the program's weights are described."""
from c_types import declared
from frame import start_arguments
from parts import part
from structs import size_of, trained_pairs

EMPTY = "    n_params = 0, undescribed = 0;\n"


def params(host, prefix):
    if host.layers:
        layer = host.table
        return part("numbered") + part("params", prefix=prefix,
                                       params_args=f"{layer.spelling} *layers, size_t n_layers",
                                       params_body=EMPTY + layer_params(layer) + part("no_params"))
    given = start_arguments(host)
    unused = f"    {', '.join(f'(void){name}' for _, name in given)};\n" if given else ""
    arguments = ", ".join(declared(kind, name) for kind, name in given) or "void"
    return part("params", prefix=prefix, params_args=arguments, params_body=EMPTY + unused + part("no_params"))


def layer_params(layer):
    """A line for each pair of a weight and its gradient; their number is asked."""
    lines = "".join(f'        param(numbered(i, "{name}"), x->{name}, x->{gradient}, 0{size_of(layer, name)}, '
                    "AMP_MODULE_OTHER);\n" for name, gradient in trained_pairs(layer))
    return part("layer_params", type=layer.spelling, lines=lines) if lines else "    (void)layers, (void)n_layers;\n"
