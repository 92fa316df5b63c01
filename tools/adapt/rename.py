# SPDX-License-Identifier: Apache-2.0
"""The adapter's own names, where the host's header has taken them."""
import re

DECLARED = re.compile(r"^(?:__attribute__\(\(\w+\)\)\s+)?static ([^;={(]+)", re.MULTILINE)
OTHERS = re.compile(r"^#define (\w+)|^enum \{ (\w+)|^\} (\w+)\[", re.MULTILINE)
# What is no name of the file's: comments, strings, members, tags, what stands for the host's own function.
TOKEN = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^#include[^\n]*|offsetof\([^)]*\)|^TRAMPOLINE\(\w+|'
                   r"(?:struct|enum) \w+|(?:->|\.)\s*\w+|\w+|\W", re.DOTALL | re.MULTILINE)


def own_names(text):
    """What the adapter declares for itself alone, at file scope."""
    lists = [re.sub(r"\[.*?\]", "", each).split(",") for each in DECLARED.findall(text)]
    names = {each.split()[-1].lstrip("*") for parts in lists for each in parts}
    return names | {name for groups in OTHERS.findall(text) for name in groups if name}


def avoid(text, taken):
    """`text` with each of its own names that is among `taken` called own_NAME."""
    clash = own_names(text) & set(taken)
    return "".join(f"own_{word}" if word in clash else word for word in TOKEN.findall(text))
