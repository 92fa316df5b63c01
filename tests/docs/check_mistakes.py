#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/reference/mistakes.md and docs/guide/choose-a-level.md say what the library says: check_mistakes.py ROOT
[--write]

Codes, titles, reasons and mends of findings stand once, in src/context/findings.inc and, for those that only scripts
can make, in bindings/python/libamp/_findings.py; those of advice in src/survey/advice.inc. --write makes the pages of
them.
"""
import ast
import pathlib
import re
import sys
import textwrap

WIDTH = 128
HEAD = """# Mistakes

libamp finds these mistakes in a program that uses it. Each has a code, with which its messages begin. An error fails
its call, and nothing has changed. A warning comes once, as `AMP_EVENT_WARNING`, or on standard error for a host without
the hook `event` (`AMP_LOG=error|warn|info|trace|off`). `amp_get_findings` returns them as data. The last line of
`amp_health` is `sound`, or their number. A message reports the observation, and this page gives the reason.

This page is generated from `src/context/findings.inc` and `bindings/python/libamp/_findings.py`
(`tests/docs/check_mistakes.py . --write`).

"""
SCRIPTS = """libamp finds these in Python scripts, in addition to those above. Each is a `libamp.FindingWarning`, once,
with the line of the script. [python.md](python.md#mistakes) has details. `python -m libamp.run --check script.py`
looks for them.

"""
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
ROW = re.compile(r'^(?:FINDING|ADVICE)\((\w+), (".*?)\)\n', re.MULTILINE | re.DOTALL)
SPOKEN = re.compile(r'\{ "((?:\\.|[^"\\])*)",\s+"((?:\\.|[^"\\])*)" \}')
STRING = re.compile(r'"((?:\\.|[^"\\])*)"')


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
    return [arguments(row) for _, row in ROW.findall(path.read_text(encoding="utf-8"))]


def library_rows(root):
    return rows_of(root / "src" / "context" / "findings.inc")


def advice_rows(root):
    return rows_of(root / "src" / "survey" / "advice.inc")


def script_table(root, name):
    path = root / "bindings" / "python" / "libamp" / "_findings.py"
    if not path.exists():
        return {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        assigned = node.targets[0] if isinstance(node, ast.Assign) else None
        target = node.target if isinstance(node, ast.AnnAssign) else assigned
        if isinstance(target, ast.Name) and target.id == name:
            return ast.literal_eval(node.value)
    raise SystemExit(f"{path}: there is no {name}")


def script_rows(root):
    return [[code, *texts] for code, texts in script_table(root, "FINDINGS").items()]


def unspoken(root):
    """Advice that scripts would hear in C."""
    path = root / "bindings" / "python" / "src" / "errors.c"
    mends = [row[3] for row in advice_rows(root)]
    for old, new in SPOKEN.findall(path.read_text(encoding="utf-8")) if path.exists() else [("amp_", ""), ("AMP_", "")]:
        mends = [mend.replace(old, new) for mend in mends]
    return [mend for mend in mends if re.search(r"\bamp_|\bAMP_", mend)]


def page(root):
    text = HEAD
    for title, words, rows in (("Programs", "", library_rows(root)), ("Scripts", SCRIPTS, script_rows(root))):
        if not rows:
            continue
        text += f"## {title}\n\n{words}| code | mistake | reason | remedy |\n| --- | --- | --- | --- |\n"
        for code, what, why, mend in rows:
            cells = (cell.replace("|", "\\|") for cell in (what, why, mend[0].upper() + mend[1:]))
            text += "| " + " | ".join([f"`{code}`", *cells]) + " |\n"
        text += "\n"
    return text.rstrip("\n") + "\n"


def advice_page(root):
    text = ADVICE_HEAD
    for code, title, why, mend in advice_rows(root):
        paragraphs = (f"## {code}", f"**{title[0].upper() + title[1:]}.** {why}", f"Remedy: {mend}.")
        text += "".join(textwrap.fill(paragraph, WIDTH, break_on_hyphens=False) + "\n\n" for paragraph in paragraphs)
    return text.rstrip("\n") + "\n"


def main():
    root = pathlib.Path(sys.argv[1])
    path, wanted = root / "docs" / "reference" / "mistakes.md", page(root)
    advice_path, advice = root / "docs" / "guide" / "choose-a-level.md", advice_page(root)
    if "--write" in sys.argv[2:]:
        path.write_text(wanted, encoding="utf-8")
        advice_path.write_text(advice, encoding="utf-8")
        return 0
    mends = {row[0]: row[3] for row in library_rows(root)}
    replaced = script_table(root, "MENDS").items()
    codes = [row[0] for row in library_rows(root) + script_rows(root)]
    points = [
        ("the page is made of the table", path.read_text(encoding="utf-8") == wanted),
        ("each code stands once", len(codes) == len(set(codes)) and len(codes) > 20),
        ("codes are AMP-M and two digits", all(re.fullmatch(r"AMP-M\d\d", code) for code in codes)),
        ("what scripts hear in the place of a mend is of one",
         all(mends[code].startswith(old) for code, (old, _) in replaced)),
        ("the page of advice is made of its table", advice_path.read_text(encoding="utf-8") == advice),
        ("each advice has a code of its own, and four texts",
         [row[0] for row in advice_rows(root)] == [f"AMP-A{n:02}" for n in range(1, len(advice_rows(root)) + 1)] and
         all(len(row) == 4 and all(row) for row in advice_rows(root))),
        ("advice has words of Python's for all that C alone has", unspoken(root) == []),
        ("each row has four texts", all(len(row) == 4 and all(row) for row in library_rows(root) + script_rows(root))),
    ]
    print(f"1..{len(points)}")
    for number, (name, passed) in enumerate(points, 1):
        print(f"{'ok' if passed else 'not ok'} {number} - {name}")
    return 0 if all(passed for _, passed in points) else 1


if __name__ == "__main__":
    sys.exit(main())
