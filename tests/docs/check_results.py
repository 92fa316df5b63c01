#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds docs/results to its JSON files, and these to the list of figures: check_results.py ROOT. Prints TAP.

Nothing is measured, and torch is not imported: this Python refuses to.
"""
import contextlib
import io
import json
import pathlib
import re
import shutil
import sys
import tempfile
import xml.etree.ElementTree

MINUTES = {("cpu", False): 40, ("cpu", True): 8, ("cuda", False): 8}  # by device, and for --quick


class NoTorch:
    """A page that needs torch could not be made, nor tested, where there is none."""

    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "libamp"):
            raise ImportError(f"{name} is for measure alone")


def different(folder, run, page):
    """Files that are not what the JSON files make, and those that nothing makes."""
    made = page.files(run.modules(), folder)
    there = {path.name: path for path in folder.iterdir()}
    stale = [name for name, text in made.items()
             if name not in there or there[name].read_text(encoding="utf-8") != text]
    extra = [name for name in there if name not in made and not name.endswith(".json")]
    return [f"{name}: not as the JSON files make it: tools/results --page" for name in stale] + [
        f"{name}: nothing makes it" for name in extra]


def planted(folder, run, page):
    """The check itself: a number that changes in a JSON file is noticed."""
    with tempfile.TemporaryDirectory() as copy:
        copied = pathlib.Path(shutil.copytree(folder, pathlib.Path(copy) / "results"))
        file = sorted(copied.glob("*.json"))[0]
        file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "date": "1999-01-01"}),
                        encoding="utf-8")
        return [] if different(copied, run, page) else [f"another date in {file.name} is not noticed"]


def records(folder, run, page):
    """Each file says by what it was measured, and beside which published figure."""
    complaints, figures = [], {module.FIGURE.name: module.FIGURE for module in run.modules()}
    for path in sorted(folder.glob("*.json")):
        record, figure = page.read_json(path), figures[path.stem]
        source = figure.source
        want = {"figure": path.stem, "title": figure.title,
                "published": {"words": source.words, "numbers": source.numbers, "reference": source.reference}}
        complaints += [f"{path.name}: {name} is {record[name]!r}" for name in want if record[name] != want[name]]
        forms = {"date": r"20\d\d-\d\d-\d\d", "commit": r"(?:.*-g)?[0-9a-f]{7,40}", "machine": r".*\w.*",
                 "device": "cpu|cuda"}
        complaints += [f"{path.name}: {name} is {record[name]!r}" for name, form in forms.items()
                       if not re.fullmatch(form, record[name])]
        complaints += [f"{path.name}: no {name}" for name in ("seeds", "steps", "versions") if not record[name]]
        complaints += [] if source.numbers and "http" in source.reference else [f"{path.name}: no published figure"]
    return complaints


def lists(root, folder, run):
    """A file in docs/results for each figure that runs on a CPU, and a module for each figure."""
    written = {path.stem for path in folder.glob("*.json")}
    modules = {path.stem for path in (root / "bench" / "papers" / "figures").glob("*.py")} - {"__init__"}
    anywhere = {module.FIGURE.name for module in run.modules() if module.FIGURE.seconds}
    listed = set(run.FIGURES)
    named = [f"{name}: its FIGURE is {module.FIGURE.name}" for name, module in zip(run.FIGURES, run.modules())
             if module.FIGURE.name != name]
    return named + [f"{name}: {why}" for names, why in (
        (modules - listed, "a module, but not in FIGURES of run.py"),
        (listed - modules, "in FIGURES of run.py, but no module"),
        (anywhere - written, "no file in docs/results"),
        (written - listed, "a file in docs/results, but no figure")) for name in sorted(names)]


def budgets(run):
    sums = {case: sum(module.FIGURE.share(*case) for module in run.modules()) for case in MINUTES}
    return [f"{device}{' --quick' if quick else ''}: all figures take {sums[device, quick]} s, at most {60 * most}"
            for (device, quick), most in MINUTES.items() if not 0 < sums[device, quick] <= 60 * most]


def pictures(folder, run, page):
    """Well-formed, with words for readers who do not see them, in both schemes."""
    complaints, seen = [], 0
    for name, text in page.files(run.modules(), folder).items():
        if name.endswith(".svg"):
            seen += 1
            tags = {element.tag.rsplit("}", 1)[-1]: element.text for element in xml.etree.ElementTree.fromstring(text)}
            complaints += [f"{name}: no <{tag}>" for tag in ("title", "desc", "style") if not tags.get(tag)]
            complaints += [] if "prefers-color-scheme: dark" in text else [f"{name}: one scheme"]
    return complaints if seen else ["no picture: the check itself is wrong"]


def labels(folder, run, page, svg):
    """Labels begin right of the margin and end inside of their picture, turned ones inside of its height."""
    complaints, seen = [], 0
    for name, text in page.files(run.modules(), folder).items():
        if not name.endswith(".svg"):
            continue
        picture = xml.etree.ElementTree.fromstring(text)
        width, height = float(picture.get("width")), float(picture.get("height"))
        for label in picture.iter("{http://www.w3.org/2000/svg}text"):
            seen += 1
            begin, end = extent(label, svg)
            least, most = (0, height) if label.get("transform") else (svg.MARGIN, width)
            if not least <= begin <= end <= most:
                complaints.append(f"{name}: '{label.text}' is from {begin:.1f} to {end:.1f}, not in {least} to {most}")
    return complaints if seen else ["no label: the check itself is wrong"]


def extent(label, svg):
    """The first and the last place of a label, along the side that it is parallel to."""
    at = float(label.get("x"))
    if label.get("transform"):
        at = float(re.fullmatch(r"translate\(\S+ (\S+)\) rotate\(-90\)", label.get("transform")).group(1))
    length = float(label.get("textLength") or svg.width_of(label.text or "", label.get("class")))
    begin = at - length * {"start": 0.0, "middle": 0.5, "end": 1.0}[label.get("text-anchor")]
    return begin, begin + length


def long_labels(svg):
    """A label that is too long, at each anchor, fits; one that fits is not touched."""
    complaints = []
    for anchor, place in (("start", 300), ("end", 300), ("middle", 300), ("middle", 700)):
        picture = svg.Picture(760, 100, "", "words")
        picture.text(place, 50, "short", "", anchor)
        picture.text(place, 50, "m" * 70, "", anchor)
        whole = xml.etree.ElementTree.fromstring(picture.svg())
        short, long = list(whole.iter("{http://www.w3.org/2000/svg}text"))[-2:]
        begin, end = extent(long, svg)
        if not svg.MARGIN <= begin < end <= 760 or svg.width_of(long.text, "") < 760 or short.get("textLength"):
            complaints.append(f"{anchor} at {place}: from {begin} to {end}")
    return complaints


def refusals(folder, run):
    """No JSON file, and one that is cut, make no page, and are named."""
    complaints, said = [], io.StringIO()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(said):
        out = pathlib.Path(name)
        if run.main(["--page", "--out", name]) != 1 or name not in said.getvalue() or list(out.iterdir()):
            complaints.append(f"an empty folder: {said.getvalue()}, {list(out.iterdir())}")
        (out / "adam.json").write_text((folder / "adam.json").read_text(encoding="utf-8")[:300], encoding="utf-8")
        try:
            run.main(["--page", "--out", name])
            complaints.append("a cut file makes a page")
        except SystemExit as end:
            complaints += [] if f"{out / 'adam.json'}: no JSON" in str(end) else [f"a cut file: {end}"]
        complaints += [f"{path.name} is made of a cut file" for path in out.iterdir() if path.name != "adam.json"]
    return complaints


def main():
    root = pathlib.Path(sys.argv[1])
    folder = root / "docs" / "results"
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, NoTorch())
    sys.path.insert(0, str(root / "bench"))
    from papers import page, run, svg

    checks = {
        "docs/results is what its JSON files make": different(folder, run, page),
        "another number would be noticed": planted(folder, run, page),
        "each file names seeds, steps, machine, date, commit, the published figure": records(folder, run, page),
        "the list of figures, their modules and docs/results agree": lists(root, folder, run),
        "the figures' shares fit in 40, 8 and 8 minutes": budgets(run),
        "no file, or a cut one, makes no page": refusals(folder, run),
        "pictures are well-formed, with words, light and dark": pictures(folder, run, page),
        "labels stay inside of their pictures": labels(folder, run, page, svg),
        "labels that are too long are made narrower": long_labels(svg),
    }
    print(f"1..{len(checks)}")
    for number, (what, complaints) in enumerate(checks.items(), 1):
        print(f"{'not ok' if complaints else 'ok'} {number} - {what}")
        for complaint in complaints:
            print(f"# {complaint}")


if __name__ == "__main__":
    main()
