#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The declarations of libamp's C API in Rust, from amp_api.json: generate.py JSON > libamp_sys.rs"""
import json
import sys

HEAD = """// SPDX-License-Identifier: Apache-2.0
//! libamp's C API as it is: declarations alone, made from amp_api.json. The headers say what each call asks of its
//! caller.
#![allow(non_camel_case_types)]

use std::os::raw::{c_char, c_void};
"""
NAMES = {"char": "c_char", "void": "c_void", "float": "f32", "double": "f64", "size_t": "usize", "uintptr_t": "usize",
         **{f"{sign}int{bits}_t": f"{sign or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}}
KEYWORDS = set("""abstract as async await become box break const continue crate do dyn else enum extern final fn for if
impl in let loop macro match mod move mut override priv pub ref return self static struct super trait try type typeof
unsafe unsized use virtual where while yield""".split())
COPIED = "#[repr(C)]\n#[derive(Clone, Copy)]"


def identifier(name):
    return name + "_" if name in KEYWORDS else name


def documented(entry, indent=""):
    return [f"{indent}/// {entry['doc']}"] if entry.get("doc") else []


def spelled(kind, owner=""):
    """A type; `owner` names a struct that has no name."""
    if "pointer" in kind:
        target = kind["pointer"]
        return f"*{'const' if target.get('const') else 'mut'} {spelled(target)}"
    if "array" in kind:
        return f"[{spelled(kind['array'])}; {kind['count']}]"
    if "function" in kind:
        return f"Option<unsafe extern \"C\" fn{signature(kind['function'])}>"
    if "struct" in kind:
        return owner
    return NAMES.get(kind["name"], kind["name"])


def signature(function):
    arguments = ", ".join(f"{identifier(each['name'])}: {spelled(each['type'])}" for each in function["arguments"])
    result = spelled(function["returns"])
    return f"({arguments})" + ("" if result == "c_void" else f" -> {result}")


def structure(struct):
    name = struct["name"]
    for field in struct["fields"]:
        if "struct" in field["type"]:
            yield from structure({"name": f"{name}_{field['name']}", "fields": field["type"]["struct"]})
    yield from ["", *documented(struct), COPIED, f"pub struct {name} {{"]
    for field in struct["fields"]:
        yield from documented(field, "    ")
        yield f"    pub {identifier(field['name'])}: {spelled(field['type'], name + '_' + field['name'])},"
    yield "}"
    if "size" in struct:
        yield f"const _: () = assert!(std::mem::size_of::<{name}>() == {struct['size']});"
    if "init" in struct:
        yield from initial(struct)


def initial(struct):
    kinds = {field["name"]: spelled(field["type"]) for field in struct["fields"]}
    yield from [f"impl {struct['name']} {{",
                f"    /// {struct['name'].upper()}_INIT: struct_size is set, the rest has its default.",
                "    pub fn init() -> Self {",
                "        // Integers, numbers and pointers, for which zero bits are a value",
                "        let mut made: Self = unsafe { std::mem::zeroed() };",
                "        made.struct_size = std::mem::size_of::<Self>() as u32;"]
    for name, value in struct["init"].items():
        yield f"        made.{identifier(name)} = {value}{'' if kinds[name] in ('f32', 'f64') else ' as _'};"
    yield from ["        made", "    }", "}"]


def module(api):
    yield HEAD
    for entry in api["types"]:
        yield from [*documented(entry), f"pub type {entry['name']} = {spelled(entry['type'])};"]
    for entry in api["opaque"]:
        yield from ["", *documented(entry), "#[repr(C)]", f"pub struct {entry['name']} {{", "    hidden: [u8; 0],", "}"]
    yield ""
    named = [{**value, "type": enum["type"]} for enum in api["enums"] for value in enum["values"]]
    for entry in [*api["constants"], *named]:
        kind = spelled(entry["type"])
        yield from [*documented(entry), f"pub const {entry['name']}: {kind} = {entry['value']};"]
    for struct in api["structs"]:
        yield from structure(struct)
    yield from ["", '#[link(name = "amp")]', 'extern "C" {']
    for function in api["functions"]:
        yield from [*documented(function, "    "), f"    pub fn {function['name']}{signature(function)};"]
    yield "}"
    levels = [value["name"] for value in named if value["type"] == {"name": "amp_level"}]
    yield from ["", "/// Gives all levels to a macro.", "#[macro_export]", "macro_rules! amp_levels {",
                f"    ($with:ident) => {{ $with! {{ {', '.join(f'{name[4:]} = {name}' for name in levels)} }} }};", "}"]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        print("\n".join(module(json.load(file))))


if __name__ == "__main__":
    main()
