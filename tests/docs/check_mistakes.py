#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/reference/mistakes.md, doctor-findings.md beside it and docs/guide/choose-a-level.md say what the library says:
check_mistakes.py ROOT [--write]

Codes, titles, reasons and remedies of findings are in src/context/findings.inc and, for mistakes of scripts only, in
bindings/python/libamp/_findings.py, for any training in PyTorch in _doctor_findings.py beside it; those of advice are
in src/survey/advice.inc. --write makes the pages of them.
A remedy for C names C's functions, one for Python Python's.
"""
import ast
import pathlib
import re
import sys
import textwrap

WIDTH = 128
HEAD = """# Mistakes

libamp finds these mistakes. A message has the code, the observation and the remedy, in the words of the host's
language, and this page adds the reason. The [glossary](glossary.md) explains words such as *bracket* and *slot*. An
error fails its call and changes nothing. A warning comes once, as `AMP_EVENT_WARNING`, or on standard error for a host
without the hook `event` (`AMP_LOG=error|warn|info|trace|off`). `amp_get_findings` returns them as data. The last line
of `amp_health` is `sound`, or their number.

This page is generated from `src/context/findings.inc` and `bindings/python/libamp/_findings.py`
(`tests/docs/check_mistakes.py . --write`).

"""
SCRIPTS = """In Python scripts libamp also finds these. Each is a `libamp.FindingWarning`, once, with the line of the
script ([python.md](python.md#mistakes)). `python -m libamp.run --check script.py` looks for them.

"""
DOCTOR_HEAD = """# Findings of the doctor

`python -m libamp.doctor train.py` finds these in any training in PyTorch, with or without libamp. The remedies here are
plain PyTorch's. The doctor prints those of the framework that the script uses (accelerate, Lightning, transformers,
libamp, Apex).

This page is generated from `bindings/python/libamp/_doctor_findings.py` (`tests/docs/check_mistakes.py . --write`).

"""
SPEED = "Speed alone. These are no faults, and `--strict` does not count them.\n\n"
ADVICE_HEAD = """# Choose a level

`amp_survey` ([amp_observe.h](../../include/amp_observe.h)) examines a training in FP32 and names the level that fits,
with the reasons against the others. Each reason has a code, explained below. Messages name the op, argument or
parameter, and the share of its values. libamp counts lost values exactly, as a cast would lose them. Another batch may
have larger values.

```c
config.observe = AMP_ON;                                  /* ops that the level leaves alone are seen too */
amp_initialize_many(models, 1, optimizers, 1, &config, &context);          /* AMP_O0: FP32, as it is */
amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
options.every = 1;
amp_observe(context, &options);
/* some iterations of the training */
amp_survey_result survey = AMP_SURVEY_RESULT_INIT;
if (amp_survey(context, &survey) == AMP_OK) puts(survey.text);
```

In Python call `amp.observe(model, every=1)` after `amp.initialize`, and `print(amp.survey(model))` after some steps
([python.md](../reference/python.md)). Its advice names Python functions.

Without a line of code: `AMP_OBSERVE=every=1 AMP_TRACE=run.jsonl ./trainer`, then `python -m libamp.report run.jsonl`.

This page is generated from `src/survey/advice.inc` (`tests/docs/check_mistakes.py . --write`).

"""
ROW = re.compile(r'^(?:FINDING|ADVICE)\(\w+, (".*?(?:"|SAME|C_ONLY))\)\n', re.MULTILINE | re.DOTALL)
STRING = re.compile(r'"((?:\\.|[^"\\])*)"')
VARIABLES = r"OBSERVE|LOG|TRACE|VERIFY"  # environment variables, which both languages set
C_WORDS = re.compile(rf"\bamp_\w|\bAMP_(?!(?:{VARIABLES})\b)|\bslot|\bhook|\bschema")
PYTHON_WORDS = re.compile(r"\bamp\.\w|\btorch\b|\boptimizer\.\w|\bmodel\(x\)|\bscript\b")


def arguments(text):
    """The string literals of a row: neighbours without a comma between them are one."""
    found, end = [], None
    for match in STRING.finditer(text):
        literal = match.group(1).replace('\\"', '"').replace("\\\\", "\\")
        if end is not None and not text[end:match.start()].strip():
            found[-1] += literal
        else:
            found.append(literal)
        end = match.end()
    return found


def rows_of(path):
    """[code, title, reason, remedy in C, remedy in Python]: None where a script cannot get it."""
    rows = []
    for row in ROW.findall(path.read_text(encoding="utf-8")):
        texts, last = arguments(row), re.search(r"(SAME|C_ONLY)$", row)
        rows.append(texts + ([texts[3] if last.group() == "SAME" else None] if last else []))
    return rows


def library_rows(root):
    return rows_of(root / "src" / "context" / "findings.inc")


def advice_rows(root):
    return rows_of(root / "src" / "survey" / "advice.inc")


def literal(root, file, name):
    """The dictionary of this name in a module of the package, which is not imported."""
    path = root / "bindings" / "python" / "libamp" / file
    if not path.exists():
        return {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target = getattr(node, "target", None) or (getattr(node, "targets", None) or [None])[0]
        if getattr(target, "id", "") == name:
            return ast.literal_eval(node.value)
    raise SystemExit(f"{path}: there is no {name}")


def script_rows(root):
    found = literal(root, "_findings.py", "FINDINGS").items()
    return [[code, title, why, None, mend] for code, (title, why, mend) in found]


def doctor_rows(root, table):
    """As script_rows, with plain PyTorch's remedy."""
    listed = literal(root, "_doctor_findings.py", table).items()
    return [[code, title, why, None, mends["torch"]] for code, (title, why, mends) in listed]


def doctor_remedies(root):
    """[code, "", "", None, remedy] for the remedies of all frameworks."""
    tables = (literal(root, "_doctor_findings.py", table) for table in ("FAULTS", "ADVICE"))
    return [[code, "", "", None, mend] for table in tables for code, row in table.items() for mend in row[2].values()]


def mixed(rows):
    """Codes with a remedy in the words of the other language."""
    return [row[0] for row in rows if C_WORDS.search(row[4] or "") or PYTHON_WORDS.search(row[3] or "")]


def sentence(text):
    return text[0].upper() + text[1:] + "."


def remedies(c, python):
    if not c or not python or c == python:
        return sentence(c or python)
    return f"C: {c}. Python: {python}."


def tables(*parts):
    text = ""
    for title, words, rows in parts:
        if not rows:
            continue
        text += f"## {title}\n\n{words}| code | mistake | reason | remedy |\n| --- | --- | --- | --- |\n"
        for code, title, why, *mends in rows:
            cells = (cell.replace("|", "\\|") for cell in (title, why, remedies(*mends)))
            text += "| " + " | ".join([f"`{code}`", *cells]) + " |\n"
        text += "\n"
    return text.rstrip("\n") + "\n"


def page(root):
    return HEAD + tables(("Programs", "", library_rows(root)), ("Scripts", SCRIPTS, script_rows(root)))


def doctor_page(root):
    return DOCTOR_HEAD + tables(
        ("Faults", "", doctor_rows(root, "FAULTS")), ("Advice", SPEED, doctor_rows(root, "ADVICE"))
    )


def advice_page(root):
    text = ADVICE_HEAD
    for code, title, why, *mends in advice_rows(root):
        paragraphs = (f"## {code}", f"**{sentence(title)}** {why}", remedies(*mends))
        text += "".join(textwrap.fill(paragraph, WIDTH, break_on_hyphens=False) + "\n\n" for paragraph in paragraphs)
    return text.rstrip("\n") + "\n"


def main():
    root = pathlib.Path(sys.argv[1])
    pages = {
        root / "docs" / "reference" / "mistakes.md": page(root),
        root / "docs" / "reference" / "doctor-findings.md": doctor_page(root),
        root / "docs" / "guide" / "choose-a-level.md": advice_page(root),
    }
    if "--write" in sys.argv[2:]:
        for path, wanted in pages.items():
            path.write_text(wanted, encoding="utf-8")
        return 0
    library, advised = library_rows(root), advice_rows(root)
    scripts = script_rows(root) + doctor_rows(root, "FAULTS") + doctor_rows(root, "ADVICE")
    codes = [row[0] for row in library + scripts]
    mixed_codes = mixed(library + scripts + doctor_remedies(root) + advised)
    stale = [path.name for path, wanted in pages.items() if path.read_text(encoding="utf-8") != wanted]
    points = [
        (f"pages are made of their tables {' '.join(stale)}".strip(), not stale),
        ("each code stands once", len(codes) == len(set(codes)) and len(codes) > 20),
        ("codes are AMP-M or AMP-D and two digits", all(re.fullmatch(r"AMP-[MD]\d\d", code) for code in codes)),
        ("each advice has a code of its own",
         [row[0] for row in advised] == [f"AMP-A{n:02}" for n in range(1, len(advised) + 1)]),
        ("each row has its texts",
         all(len(row) == 5 and all(row[:3]) and (row[3] or row[4]) for row in library + scripts + advised)),
        ("each advice has a remedy in Python", all(row[4] for row in advised)),
        (f"remedies are in the words of their language {' '.join(mixed_codes)}".strip(), not mixed_codes),
        ("the check of words finds both",
         mixed([["a", "", "", "call amp.f", "y"], ["b", "", "", "x", "amp_f"]]) == ["a", "b"]),
    ]
    print(f"1..{len(points)}")
    for number, (name, passed) in enumerate(points, 1):
        print(f"{'ok' if passed else 'not ok'} {number} - {name}")
    return 0 if all(passed for _, passed in points) else 1


if __name__ == "__main__":
    sys.exit(main())
