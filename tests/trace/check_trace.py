#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What libamp traces is what docs/reference/trace.schema.json and docs/reference/trace.md say: check_trace.py SOURCE
PROGRAM. Prints TAP.

PROGRAM is test_trace, which leaves files in a folder. The schema is applied by `jsonschema` where that is installed,
and always by the few words of it that are spelled out here.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

TYPES = {"string": str, "number": (int, float), "integer": int, "boolean": bool, "null": type(None), "object": dict,
         "array": list}

OPTIONAL = {"fp16", "bf16", "lost_fp16", "lost_bf16", "e4m3", "e5m2", "product", "mxfp8", "line", "value",
            "about"}  # a reader may do without


def is_of(value, name):
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def complaint(schema, value, where="line"):
    """None, or what does not fit."""
    types = schema.get("type")
    if types and not any(is_of(value, name) for name in ([types] if isinstance(types, str) else types)):
        return f"{where} is {value!r}, not {types}"
    if "const" in schema and value != schema["const"]:
        return f"{where} is {value!r}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is {value!r}"
    if is_of(value, "number") and (value < schema.get("minimum", value)
                                   or value <= schema.get("exclusiveMinimum", value - 1)):
        return f"{where} is {value}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return f"{where} is {value!r}"
    if isinstance(value, dict):
        members = schema.get("properties", {})
        missing = set(schema.get("required", [])) - set(value)
        more = set(value) - set(members) if schema.get("additionalProperties") is False else set()
        if missing or more:
            return f"{where}: missing {sorted(missing)}, unknown {sorted(more)}"
        for name in members.keys() & value.keys():
            said = complaint(members[name], value[name], name)
            if said:
                return said
    if isinstance(value, list) and "items" in schema:
        return next((said for item in value for said in [complaint(schema["items"], item, where)] if said), None)
    if "oneOf" in schema and sum(complaint(one, value, where) is None for one in schema["oneOf"]) != 1:
        return next((said for one in schema["oneOf"] if value.get("kind") == one["properties"]["kind"]["const"]
                     for said in [complaint(one, value, where)]), f"{where}: no such kind")
    return None


def broken(line):
    """Lines like it that must not pass."""
    for name in line:
        if name not in OPTIONAL:
            yield {key: value for key, value in line.items() if key != name}
        yield {**line, name: [{"unheard": 1}]}
    yield {**line, "unheard": 1}


class Tap:
    number = 0

    def point(self, what, complaints):
        self.number += 1
        print(f"{'not ok' if complaints else 'ok'} {self.number} - {what}")
        for said in list(complaints)[:10]:
            print(f"# {said}")


def main():
    source, program, tap = pathlib.Path(sys.argv[1]), sys.argv[2], Tap()
    schema = json.loads((source / "docs" / "reference" / "trace.schema.json").read_text(encoding="utf-8"))
    guide = (source / "docs" / "reference" / "trace.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run([program, folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        failed = [line for line in made.stdout.splitlines() if line.startswith("not ok") or ":F:" in line
                  or ":E:" in line]
        tap.point("test_trace passes", failed or ([] if made.returncode == 0 else [made.stdout[-2000:]]))
        files = sorted(pathlib.Path(folder).glob("*.jsonl"))
        lines = [(f"{file.name}:{number}", json.loads(text)) for file in files
                 for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)]
    tap.point("it leaves files and lines", [] if len(files) > 10
              and len(lines) > 300 else [f"{len(files)}, {len(lines)}"])
    tap.point("each line is what the schema says",
              [f"{where}: {said}" for where, line in lines for said in [complaint(schema, line)] if said])
    kinds = {one["properties"]["kind"]["const"]: one["required"][2:] for one in schema["oneOf"]}
    samples = {line["kind"]: line for _, line in lines}
    tap.point("each kind was seen", sorted(set(kinds) ^ set(samples)))
    tap.point("what is broken is found out", [f"{bad} passes" for line in samples.values() for bad in broken(line)
                                              if complaint(schema, bad) is None])
    tap.point("the guide has each kind and member",
              [f"{kind}: {name}" for kind, members in kinds.items() for name in members
               if not re.search(rf"^\| `{kind}` \|.*\b{name}\b", guide, re.MULTILINE)])
    try:
        import jsonschema
    except ModuleNotFoundError:
        print(f"ok {tap.number + 1} - jsonschema agrees # SKIP Python has no jsonschema\n1..{tap.number + 1}")
        return
    validator = jsonschema.Draft202012Validator(schema)
    tap.point("jsonschema agrees", [f"{where}: {error.message}" for where, line in lines
                                    for error in validator.iter_errors(line)] +
              [f"{bad} passes" for line in samples.values() for bad in broken(line) if validator.is_valid(bad)])
    print(f"1..{tap.number}")


if __name__ == "__main__":
    main()
