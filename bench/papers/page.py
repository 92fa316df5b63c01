# SPDX-License-Identifier: Apache-2.0
"""docs/results/README.md, from the JSON files of a folder alone."""
from __future__ import annotations

import json
import pathlib
import textwrap

from .figure import PROVENANCE, Data, Figure, Module

HEAD = """# Results

Pictures and numbers of papers and posts, measured with libamp in small copies of large experiments, each beside the
published figure.

`tools/results` measures all of them in at most {minutes} minutes on two cores, `tools/results --quick` in {quick}, with
fewer steps, into build/results. `--device cuda` takes those that use a GPU, `--slow` the long trainings and the soak as
long as the papers' (hours), `--only NAME` one. This page is made from the JSON files beside it.
"""
UNTRIED = "Not measured so far: {names}. --device cuda is experimental: nothing of it ran on a GPU.\n"


def write_json(path: pathlib.Path, record: Data) -> None:
    """Writes a record, a line for each member. Numbers that are not finite are an error: JSON has none."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in record.items())
    whole = path.with_suffix(".part")
    whole.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    whole.replace(path)


def read_json(path: pathlib.Path) -> Data:
    try:
        record: Data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SystemExit(f"{path}: no JSON: {error}") from None
    missing = [name for name in (*PROVENANCE, "seeds", "steps") if name not in record]
    if missing:
        raise ValueError(f"{path.name} has no {', '.join(missing)}")
    return record


def wrapped(text: str) -> str:
    """Breaks paragraphs into lines, but not tables, pictures and headings."""
    return "\n\n".join(
        part if part.startswith(("|", "!", "#")) else textwrap.fill(part, 120, break_long_words=False,
                                                                    break_on_hyphens=False)
        for part in text.strip().split("\n\n")) + "\n"


def listed(values: object) -> str:
    """Returns seeds or numbers of steps in words."""
    if isinstance(values, list):
        return ", ".join(str(value) for value in values)
    if isinstance(values, dict):
        return ", ".join(f"{value:,} ({name})" for name, value in values.items())
    return f"{values:,}" if isinstance(values, int) else str(values)


def where(data: Data) -> str:
    return f"{data['date']}, {data['machine']}, torch {data['versions']['torch']}"


def section(module: Module, data: Data, common: str) -> str:
    figure, source = module.FIGURE, module.FIGURE.source
    pictures = "\n".join(f"![{figure.title}]({name})" for name in module.draw(data))
    quick = "a quick run; " if data["quick"] else ""
    place = "" if where(data) == common else f"{where(data)}, "
    told = (f"{quick}{place}commit {data['commit']}, {data['seconds']:.0f} s, "
            f"seeds {listed(data['seeds'])}, steps {listed(data['steps'])}")
    stopped = f"\n\nThe run stopped early: {data['stopped']}" if data.get("stopped") else ""
    return (f"## {figure.title}\n\n{pictures}\n\nPublished: {source.words} ({source.reference})\n\n"
            f"Here: {module.words(data).strip()}{stopped}\n\n[JSON]({figure.name}.json): {told}.\n")


def page(modules: list[Module], folder: pathlib.Path) -> str:
    """Returns the page of the figures whose JSON files are in the folder, and the names of the others."""
    figures = [module.FIGURE for module in modules]
    minutes = [-(-sum(figure.share("cpu", quick) for figure in figures) // 60) for quick in (False, True)]
    parts = [HEAD.format(minutes=minutes[0], quick=minutes[1])]
    paths = {figure.name: file_of(folder, figure) for figure in figures}
    places = [where(read_json(path)) for path in paths.values() if path.exists()]
    common = max(sorted(set(places)), key=places.count, default="")
    parts.append(f"Where nothing else is said: {common}.\n" if common else "")
    absent = [name for name, path in paths.items() if not path.exists()]
    parts.append(UNTRIED.format(names=", ".join(f"`{name}`" for name in absent)) if absent else "")
    for module in modules:
        if module.FIGURE.name not in absent:
            parts.append(section(module, read_json(paths[module.FIGURE.name]), common))
    return "\n".join(wrapped(part) for part in parts if part)


def file_of(folder: pathlib.Path, figure: Figure) -> pathlib.Path:
    return folder / f"{figure.name}.json"


def files(modules: list[Module], folder: pathlib.Path) -> dict[str, str]:
    """Returns all that is made from the JSON files of a folder: pictures and page, by name."""
    made = {"README.md": page(modules, folder)}
    for module in modules:
        path = file_of(folder, module.FIGURE)
        if path.exists():
            made |= module.draw(read_json(path))
    return made
