#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The declarations of libamp's C API in Fortran 2008, from amp_api.json: generate.py JSON > libamp_c.f90

Pointers are type(c_ptr) and type(c_funptr). A variable of a type begins as the C macro _INIT makes it. Fortran knows no
unsigned integers: the greatest ones are negative.
"""
import json
import sys

HEAD = """! SPDX-License-Identifier: Apache-2.0
!> libamp's C API as it is: declarations alone, made from amp_api.json. The headers say what each call asks of its
!> caller.
module libamp_c
  use, intrinsic :: iso_c_binding
  implicit none
  public
"""
COLUMNS = 120
KINDS = {"char": "character(c_char)", "float": "real(c_float)", "double": "real(c_double)", "int": "integer(c_int)",
         "size_t": "integer(c_size_t)", "uintptr_t": "integer(c_intptr_t)",
         **{f"{sign}int{bits}_t": f"integer(c_int{bits}_t)" for sign in ("", "u") for bits in (8, 16, 32, 64)}}
BITS = {"c_int8_t": 8, "c_int16_t": 16, "c_int32_t": 32, "c_int64_t": 64}


class Module:
    def __init__(self, api):
        self.api = api
        self.kinds = dict(KINDS)
        for entry in api["types"]:
            self.kinds[entry["name"]] = self.spelled(entry["type"])
        for struct in api["structs"]:
            self.kinds[struct["name"]] = f"type({struct['name']})"

    def spelled(self, kind, owner=""):
        if "pointer" in kind:
            return "type(c_ptr)"
        if "function" in kind:
            return "type(c_funptr)"
        if "array" in kind:
            return self.spelled(kind["array"])
        if "struct" in kind:
            return f"type({owner})"
        return self.kinds[kind["name"]]

    def literal(self, kind, value):
        """A number of a Fortran type."""
        precision = kind[kind.index("(") + 1:-1]
        if kind.startswith("real"):
            return f"{float(value)!r}_{precision}"
        bits = BITS.get(precision, 64)
        signed = value - (1 << bits) if value >= 1 << (bits - 1) else value
        return f"{signed}_{precision}"

    def begun(self, struct, field, kind):
        """What a member begins as; nothing for members that begin by themselves."""
        value = struct.get("init", {}).get(field["name"], 0)
        if field["name"] == "struct_size":
            value = struct["size"]
        if kind in ("type(c_ptr)", "type(c_funptr)"):
            return " = c_null_ptr" if kind == "type(c_ptr)" else " = c_null_funptr"
        return "" if kind.startswith("type") else f" = {self.literal(kind, value)}"

    def structure(self, struct):
        name = struct["name"]
        for field in struct["fields"]:
            if "struct" in field["type"]:
                yield from self.structure({"name": f"{name}_{field['name']}", "fields": field["type"]["struct"]})
        yield from ["", *documented(struct), f"  type, bind(C) :: {name}"]
        for field in struct["fields"]:
            kind = self.spelled(field["type"], f"{name}_{field['name']}")
            shape = f"({field['type']['count']})" if "array" in field["type"] else ""
            yield from documented(field, "    ")
            yield f"    {kind} :: {field['name']}{shape}{self.begun(struct, field, kind)}"
        yield f"  end type {name}"

    def function(self, function):
        names = [argument["name"] for argument in function["arguments"]]
        subroutine = function["returns"] == {"name": "void"}
        word = "subroutine" if subroutine else "function"
        result = "" if subroutine else " result(returned)"
        yield from documented(function, "    ")
        yield from wrapped(f"    {word} {function['name']}({', '.join(names)}){result}",
                           f"bind(C, name=\"{function['name']}\")")
        yield "      import"
        yield from (f"      {self.spelled(argument['type'])}, value :: {argument['name']}"
                    for argument in function["arguments"])
        if not subroutine:
            yield f"      {self.spelled(function['returns'])} :: returned"
        yield f"    end {word} {function['name']}"

    def lines(self):
        yield HEAD
        enums = [{**value, "type": enum["type"]} for enum in self.api["enums"] for value in enum["values"]]
        for entry in [*self.api["constants"], *enums]:
            kind = self.spelled(entry["type"])
            yield from documented(entry)
            yield f"  {kind}, parameter :: {entry['name']} = {self.literal(kind, entry['value'])}"
        levels = ", ".join(f'"{value["name"][4:]}"' for value in enums if value["type"] == {"name": "amp_level"})
        yield from ["  !> The names of all levels.", f"  character(*), parameter :: AMP_LEVELS(*) = [{levels}]"]
        for struct in self.api["structs"]:
            yield from self.structure(struct)
        yield from ["", "  interface"]
        for function in self.api["functions"]:
            yield from self.function(function)
        yield from ["  end interface", "end module libamp_c"]


def documented(entry, indent="  "):
    return [f"{indent}!> {entry['doc']}"[:COLUMNS]] if entry.get("doc") else []


def wrapped(*parts):
    """One statement: on a line if it fits, else one part a line, and long ones at their commas."""
    if len(" ".join(parts)) <= COLUMNS:
        return [" ".join(parts)]
    lines = []
    for part in parts:
        while len(part) > COLUMNS - 2:
            end = part.rindex(",", 0, COLUMNS - 2) + 1
            lines.append(part[:end] + " &")
            part = "        " + part[end:].strip()
        lines.append(part + " &")
    lines[-1] = lines[-1][:-2]
    return [lines[0], *(f"        {line.strip()}" for line in lines[1:])]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        print("\n".join(Module(json.load(file)).lines()))


if __name__ == "__main__":
    main()
