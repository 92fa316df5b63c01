#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds docs/ to the code.

check_docs.py ROOT               tables of docs/ against headers and tests; prints TAP
check_docs.py --run ROOT NAME EXE           runs a program of examples/hosts: it trains, and prints the lines that
                                            docs/start/c-host.md shows
check_docs.py --page ROOT PAGE COMMAND...   runs a command: the page has the lines that it prints
check_docs.py --head ROOT                   prints the program of include/amp.h, for tests/docs/head.c
"""
import os
import pathlib
import re
import subprocess
import sys

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def read(root, path):
    return (root / path).read_text(encoding="utf-8")


def rows(text, heading):
    """Cells of the tables between `## heading` and the next one."""
    section = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    lines = section.group(1).splitlines() if section else []
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
    return [row for row in cells if not set("".join(row)) <= set("-| ")]


def both(left, left_name, right, right_name):
    return [f"{name}: {left_name}, but not {right_name}" for name in sorted(left - right)] + [
        f"{name}: {right_name}, but not {left_name}" for name in sorted(right - left)]


def some(names, what):
    return [] if names else [f"no {what} found: the check itself is wrong"]


def differences(root):
    text = read(root, "docs/internals/apex-differences.md")
    rows_of = [line for line in text.splitlines() if re.match(r"\| (?!Apex \||---)", line)]
    listed = [re.findall(r"`(\w+)`", line.rstrip(" |").rsplit("|", 1)[-1]) for line in rows_of]
    written = [name for path in (root / "tests").rglob("*.c")
               for name in re.findall(r"^DIFFERENCE(?:_TIMES)?\((\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)]
    bare = [f"no test: {line}" for line, names in zip(rows_of, listed) if not names]
    twice = [f"{name}: two tests" for name in sorted(set(written)) if written.count(name) > 1]
    named = {name for names in listed for name in names}
    return some(named, "rows") + bare + twice + both(named, "a row", set(written), "a test")


def python_differences(root):
    """The pytests that rows name."""
    text = read(root, "docs/internals/apex-differences-python.md")
    rows_of = [line for line in text.splitlines() if re.match(r"\| (?!(?:Apex|torch\.autocast) \||---)", line)]
    listed = re.findall(r"`(?:(\w+\.py)::)?(test_\w+)`", "\n".join(line.rsplit(" | ", 1)[-1] for line in rows_of))
    bare = [f"no test: {line}" for line in rows_of if not re.search(r"`(?:\w+\.py::)?test_\w+` \|$", line)]
    written = [(path.name, name) for path in (root / "bindings" / "python" / "tests").glob("*.py")
               for name in re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)]
    of_name = {}
    for file, name in written:
        of_name.setdefault(name, []).append(file)
    return some(listed, "rows") + bare + [
        f"{file or 'a file'}::{name} is not there, or there twice" for file, name in listed
        if not ((file, name) in written if file else len(of_name.get(name, ())) == 1)]


def statuses(root):
    code = set(re.findall(r'X\((AMP_\w+), (-?\d+), "([^"]+)"\)', read(root, "include/amp_types.h")))
    row = r"^\| `(AMP_(?:OK|ERR_\w+))` \| (-?\d+) \| (.+?) \|$"
    docs = set(map(" ".join, re.findall(row, read(root, "docs/reference/abi.md"), re.MULTILINE)))
    return some(code, "statuses") + both(set(map(" ".join, code)), "in amp_types.h", docs, "in abi.md")


def structures(root):
    sized = set()
    for header in sorted((root / "include").glob("*.h")):
        code = COMMENT.sub("", header.read_text(encoding="utf-8"))
        sized |= {name for body, name in re.findall(r"typedef struct \w+ \{((?:[^{}]|\{[^{}]*\})*)\} (\w+);", code)
                  if "uint32_t struct_size" in body}
    table = rows(read(root, "docs/reference/abi.md"), "Structures")
    listed = {name for row in table for name in re.findall(r"`(amp_\w+)`", row[0])}
    return some(sized, "structures") + both(sized - {"amp_api"}, "in the headers", listed, "in abi.md")


def hooks(root):
    code = COMMENT.sub("", read(root, "include/amp.h"))
    body = re.search(r"typedef struct amp_host \{(.*?)\} amp_host;", code, re.DOTALL).group(1)
    names = set(re.findall(r"\(\*(\w+)\)", body))
    table = rows(read(root, "docs/reference/hooks.md"), "Which level needs which")
    listed = {name for row in table for name in re.findall(r"`(\w+)`", row[0])}
    return some(names, "hooks") + both(names, "in amp_host", listed, "in hooks.md")


def quoted(root, heading):
    """What docs/reference/messages.md says that calls say, under a heading."""
    return {row[-1].rstrip(" |").strip("`") for row in rows(read(root, "docs/reference/messages.md"), heading)[1:]}


def messages(root, test="tests/badinput/test_messages.c"):
    listed = quoted(root, "All hosts")
    provoked = set(re.findall(r'^    \{ \w+, AMP_ERR_\w+, "(.+)" \},$', read(root, test), re.MULTILINE))
    return some(listed, "messages") + both(listed, "in messages.md", provoked, f"in {test}")


def code(root):
    """A block that starts with a file's name has lines of that file, in their order. All of the guide's do, and each
    program has one."""
    complaints, named, found = [], set(), 0
    for page in sorted((root / "docs").rglob("*.md")):
        for block in re.findall(r"^```c\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            head = re.match(r"/\* (\S+/\S+) \*/\n", block)
            if not head:
                complaints += [f"a block of c-host.md names no file: {block}"] if page.name == "c-host.md" else []
                continue
            found += 1
            named |= {head.group(1)} if page.name == "c-host.md" else set()
            lines = iter([line.strip() for line in read(root, head.group(1)).splitlines()])
            wanted = filter(None, map(str.strip, block[head.end():].splitlines()))
            missing = next((line for line in wanted if line not in lines), None)
            if missing:
                complaints.append(f"{page.name}: {head.group(1)}: not there, or not in this order: {missing}")
    name, shown = quick_start(root)
    if shown != read(root, name).split("*/\n", 2)[2]:
        complaints.append(f"README.md: its quick start in C is not {name}")
    named.add(name)
    programs = {f"examples/hosts/{path.name}" for path in (root / "examples" / "hosts").glob("*.c*")}
    return ([] if found > 10 else ["hardly any code was found"]) + complaints + [
        f"c-host.md shows nothing of {name}" for name in sorted(programs - named)]


def quick_start(root):
    """README.md's program, and its file."""
    return "examples/hosts/scaler.c", re.search(r"^```c\n(.*?)^```$", read(root, "README.md"),
                                                re.MULTILINE | re.DOTALL).group(1)


def guide(root):
    """Short, and it shows what some programs print: --run compares."""
    text = read(root, "docs/start/c-host.md")
    shown = re.findall(r"^`(\w+)` prints\n\n    ", text, re.MULTILINE)
    return [f"{text.count(chr(10))} lines"] if text.count("\n") > 600 else both(
        {"tape", "raw"}, "a program", set(shown), "shown with what it prints")


def manual(root):
    """libamp(7) against the levels of amp.h; check_settings.py has the environment."""
    page = read(root, "docs/man/libamp.7.in")
    levels = set(re.findall(r'X\(AMP_(O\d), \d, "([^"]+)"', read(root, "include/amp.h")))
    told = set(re.findall(r"^\.TP 4\n\.B (O\d)\n(.+)$", page, re.MULTILINE))
    return some(levels, "levels") + both(set(map(" ".join, levels)), "in amp.h", set(map(" ".join, told)),
                                         "in libamp(7)")


def adapt_manual(root):
    command = [sys.executable, "-B", root / "tools" / "amp-adapt", "--help"]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    options = set(re.findall(r"(?<!\S)--[a-z-]+", said.split("optional arguments:")[-1].split("\noptions:")[-1]))
    page = read(root, "docs/man/amp-adapt.1").replace("\\-", "-")
    listed = set(re.findall(r"--[a-z-]+", page.split(".SH OPTIONS")[1].split(".SH EXIT")[0]))
    return some(options, "options") + both(options, "in --help", listed, "in amp-adapt(1)")


def anchors(text):
    """What GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def pages(root):
    """The pages of the site."""
    folders = ("docs", "bench", "bindings", "demo", "examples")
    return [root / "CONTRIBUTING.md", root / "README.md",
            *(path for folder in folders for path in sorted((root / folder).rglob("*.md")))]


def indexed(root):
    """Each page of docs/ is in docs/README.md, and in the list of the site, by its folder or by its name."""
    index = read(root, "docs/README.md")
    listed = re.findall(r"^\.\./([\w/*-]+)$", read(root, "docs/site/index.md"), re.MULTILINE)
    written = {str(path.relative_to(root / "docs")) for path in (root / "docs").glob("[!s]*/*.md")}
    written |= {f"start/{path.name}" for path in (root / "docs" / "start").glob("*.md")}
    return some(written, "pages") + [
        f"{page} is not in {where}" for page in sorted(written) for where, there in (
            ("docs/README.md", f"]({page}" in index),
            ("docs/site/index.md", {page[:-3], page.split("/")[0] + "/*"} & set(listed))) if not there]


def links(root):
    complaints = []
    for path in pages(root):
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", path.read_text(encoding="utf-8")):
            file = path.parent / target if target else path
            if not file.exists():
                complaints.append(f"{path.relative_to(root)}: {target} is not there")
            elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
                complaints.append(f"{path.relative_to(root)}: {target} has no heading {anchor}")
    return complaints


def mentions(root):
    """Every page that code, a header, a message or a manual names is there."""
    complaints, found = [], 0
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in {".git", "build", "subprojects", "__pycache__", "shared"}
                    and not os.path.exists(os.path.join(folder, name, "meson-private"))]
        for path in (pathlib.Path(folder) / name for name in files):
            if path.suffix in {".png", ".gz", ".ipynb"} or not path.is_file():
                continue
            for page in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.(?:md|json)", path.read_text("utf-8", "ignore")):
                found += 1
                complaints += [] if (root / page).is_file() else [f"{path.relative_to(root)}: {page} is not there"]
    return ([] if found > 100 else ["hardly any was found"]) + complaints


def readme(root):
    """It is two screens; the rest has pages of its own."""
    text = read(root, "README.md")
    lines, words = text.count("\n"), len(text.split())
    python = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL).group(1)
    limits = ((lines, 120, "lines"), (words, 900, "words"), (python.count("\n"), 12, "lines of Python"),
              (quick_start(root)[1].count("\n"), 20, "lines of C"))
    return [f"{n} {what}, {most} at most" for n, most, what in limits if n > most]


def indexes(root):
    """libamp is on no index: whoever asks one for that name gets nothing, or somebody else's package."""
    texts = [root / "README.md", root / "NEWS", *(path for folder in ("docs", "bindings", "demo", "examples")
                                                  for kind in ("md", "py", "ipynb", "1", "7")
                                   for path in (root / folder).rglob(f"*.{kind}"))]
    asking = re.compile(r"pip3? "
                        r"(?:install|download)\b[^\n|`]*?[\s'\"]libamp(?:\[[^\n]*|[=<>~][^\n]*)?(?=[\s'\"`),.;]|$)",
                        re.MULTILINE)
    return [f"{path.relative_to(root)}: {found.group()}" for path in texts
            for found in asking.finditer(path.read_text(encoding="utf-8"))]


def support(root):
    """The versions in the table of install.md against the files that have them."""
    table = {}
    for name, *cells in rows(read(root, "docs/start/install.md"), "Tested versions"):
        table[name] = " ".join([table.get(name, ""), *cells])
    tool, project = read(root, "tools/wheels"), read(root, "pyproject.toml")
    oldest, newest = re.search(r"^TORCH = \(\((.*?)\), \((.*?)\)\)",
                               read(root, "bindings/python/libamp/torch/_tested_versions.py"), re.MULTILINE).groups()
    capabilities = re.search(r"^cuda_archs='(.*?)'", tool, re.MULTILINE).group(1).split()
    wanted = [("GPU", f"{name[:-1]}.{name[-1]}") for name in capabilities]
    wanted.append(("system", "glibc " + re.search(r"^glibc=([\d.]+)", tool, re.MULTILINE).group(1)))
    wanted.append(("Python", "CPython " + re.search(r'requires-python = ">= (.*?)"', project).group(1)))
    wanted.append(("PyTorch", re.search(r'"torch >= (.*?)"', project).group(1)))
    wanted += [("PyTorch", ".".join(version.split(", "))) for version in (oldest, newest)]
    return [f"install.md: {name} without {words}" for name, words in wanted
            if not re.search(rf"(?<![\d.]){re.escape(words)}(?![\d.]*\d)", table.get(name, ""))]


def citation(root):
    """The version of CITATION.cff, and the keys that its format demands."""
    text = read(root, "CITATION.cff")
    version = re.search(r"^  version: '(.*)'", read(root, "meson.build"), re.MULTILINE).group(1)
    wanted = ["cff-version: 1.2.0", "message: ", "title: ", "authors:", f"version: {version}"]
    return [f"CITATION.cff has no line '{line}'" for line in wanted
            if not re.search(rf"^{re.escape(line)}", text, re.MULTILINE)]


CHECKS = {
    "every difference has a row and a test": differences,
    "rows about Python name tests that are there": python_differences,
    "abi.md lists every status": statuses,
    "abi.md lists every structure with a size": structures,
    "hooks.md lists every hook": hooks,
    "messages that are quoted are provoked": messages,
    "code that is shown is compiled": code,
    "the guide has at most 600 lines, and what programs print": guide,
    "libamp(7) has the levels": manual,
    "amp-adapt(1) has the options": adapt_manual,
    "README.md and its quick starts are short": readme,
    "each page is in both indexes": indexed,
    "links lead somewhere": links,
    "pages that are named are there": mentions,
    "nobody is told to install libamp from an index": indexes,
    "the table of support has the versions of the tools": support,
    "CITATION.cff has the version": citation,
}


def page_runs(root, page, *command):
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    text = read(root, page)
    return [(f"the program of {page.removeprefix('docs/')} prints what is said",
             some(printed, "output") + [line for line in printed if f"    {line}\n" not in text])]


def program_runs(root, name, executable):
    """A program says by its status that it trained. Where the guide shows what it prints, that is what it prints."""
    ran = subprocess.run([executable], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    shown = re.search(rf"`{name}` prints\n\n((?:    .*\n)+)", read(root, "docs/start/c-host.md"))
    wanted = re.sub("^    ", "", shown.group(1), flags=re.MULTILINE) if shown else ran.stdout
    if quick_start(root)[0] == f"examples/hosts/{name}.c":
        wanted = re.search(r"^It prints `(.+?)`", read(root, "README.md"), re.MULTILINE).group(1) + "\n"
    return [(f"{name} trains", [] if ran.returncode == 0 else [f"status {ran.returncode}", *ran.stdout.splitlines()]),
            (f"{name} prints what the guide says", [] if ran.stdout == wanted else ran.stdout.splitlines())]


def head(root):
    """Its functions as they stand, and what follows the line of dots as one; what is behind a wide gap is no code."""
    comment = re.search(r"^ \*\n((?: \*     .*\n| \*\n)+)", read(root, "include/amp.h"), re.MULTILINE).group(1)
    lines = [line.removeprefix(" *").removeprefix("     ") for line in comment.splitlines()]
    code = [re.sub(r"(?<=\S) {3,}.*", "", line) for line in lines]
    dots = code.index("...")
    return "\n".join([*code[:dots], "static int program(void) {", *code[dots + 1:], "}"]) + "\n"


def tap(checks):
    for number, (what, complaints) in enumerate(checks, 1):
        print(f"{'not ok' if complaints else 'ok'} {number} - {what}")
        for complaint in complaints:
            print(f"# {complaint}")
    print(f"1..{number}")


def main():
    if sys.argv[1] == "--page":
        tap(page_runs(pathlib.Path(sys.argv[2]), *sys.argv[3:]))
    elif sys.argv[1] == "--head":
        sys.stdout.write(head(pathlib.Path(sys.argv[2])))
    elif sys.argv[1] == "--run":
        tap(program_runs(pathlib.Path(sys.argv[2]), *sys.argv[3:]))
    else:
        root = pathlib.Path(sys.argv[1])
        tap((what, check(root)) for what, check in CHECKS.items())


if __name__ == "__main__":
    main()
