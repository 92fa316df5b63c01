#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts words that make prose hard to read: check_words.py ROOT [--list]. Prints TAP.

Per 1,000 words of each area, "what", "who, whose, whom" and semicolons stay below LIMITS, which only ever fall. A page
of docs/ is at most PAGE bytes, all of them DOCS. The counts are an alarm, not the aim: CONTRIBUTING.md says how to
write. --list prints the counts of every file.
"""
import ast
import io
import pathlib
import re
import sys
import tokenize

GOALS = {"what": 3, "who, whose": 2, "semicolons": 5}
LIMITS = {  # per 1,000 words: what; who, whose; semicolons. Lower them with every rewrite, down to GOALS
    "README.md": (3, 2, 5),
    "docs": (0.9, 0.4, 1.2),
    "include": (1, 0.5, 5),
    "src": (1, 0.5, 5),
    "bindings/python": (1, 1, 1),
    "messages": (1, 0.5, 5.3),
}
MESSAGES = ("src", "bindings/python")  # their string literals
SENTENCE = 4  # words of a string that is counted as a message
PAGE = 24 * 1024
DOCS = 457650  # all pages together. Lower it with every cut, down to 280,000. 28,000: the doctor, ggml, BLAS

PATTERNS = {"what": r"\bwhat\b", "who, whose": r"\bwho(?:se|m)?\b", "semicolons": ";"}
BLOCK = re.compile(r"^(?:```.*?^```$|(?:    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
CODE = re.compile(r"^ *\* {5,}[^\n]*[;{}][^\n]*$", re.MULTILINE)  # of an example in a comment
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.DOTALL)


def docstrings(tree):
    """The docstrings of a module, its classes and functions, as nodes."""
    places = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, places))
    return [body[0].value for body in bodies if body and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str)]


def prose(path):
    """A page without blocks of code, inline code and targets of links; a source file's comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return INLINE.sub("`", BLOCK.sub("", text))
    if path.suffix == ".py":
        comments = [token.string for token in tokenize.generate_tokens(io.StringIO(text).readline)
                    if token.type == tokenize.COMMENT and "type:" not in token.string and "noqa" not in token.string]
        return "\n".join(comments + [node.value for node in docstrings(ast.parse(text))])
    comments = (comment for comment in COMMENT.findall(text) if not comment.startswith('"'))
    return CODE.sub("", "\n".join(comments))


def messages(path):
    """The string literals of a source file that are sentences."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tree = ast.parse(text)
        known = {id(node) for node in docstrings(tree)}
        texts = [node.value for node in ast.walk(tree)
                 if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in known]
    else:
        text = re.sub(r"/\*.*?\*/|//[^\n]*|^#include[^\n]*", "", text, flags=re.DOTALL | re.MULTILINE)
        texts = re.findall(r'"((?:\\.|[^"\\\n])*)"', re.sub(r'"\s*\n\s*"', "", text))
    return "\n".join(text for text in texts if len(re.findall(r"[A-Za-z]{2,}", text)) >= SENTENCE
                     and not re.search(r"[;{}]\s*$|</|^\s*(?:def|import|from) ", text))


def files_of(root, area):
    if area.endswith(".md"):
        return [root / area]
    if area == "messages":
        return [path for area in MESSAGES for path in files_of(root, area)]
    kinds = {"docs": {".md"}}.get(area, {".c", ".h", ".hpp", ".cu", ".cuh", ".inc", ".py"})
    return sorted(path for path in (root / area).rglob("*") if path.suffix in kinds and "tests" not in path.parts)


def text_of(path, area):
    return messages(path) if area == "messages" else prose(path)


def counts(text):
    """Words, and how many of each kind."""
    words = re.findall(r"[A-Za-z0-9][\w'-]*", text)
    return len(words), [len(re.findall(kind, text, re.IGNORECASE)) for kind in PATTERNS.values()]


def area_complaints(root, area):
    files = {path: counts(text_of(path, area)) for path in files_of(root, area)}
    words = sum(count for count, _ in files.values())
    complaints = [] if words > 300 else [f"only {words} words: the check itself is wrong"]
    for index, (kind, limit) in enumerate(zip(PATTERNS, LIMITS[area])):
        rate = 1000 * sum(found[index] for _, found in files.values()) / max(words, 1)
        print(f"# {area}: {kind} {rate:.2f} (limit {limit}, goal {GOALS[kind]})")
        if rate > limit:
            worst = sorted(files, key=lambda path: -files[path][1][index])[:5]
            complaints.append(f"{kind}: {rate:.2f} per 1,000 words, limit {limit}; most in " + ", ".join(
                f"{path.relative_to(root)} ({files[path][1][index]})" for path in worst))
    return complaints


def pages(root):
    """Pages above the limit, and all of them."""
    sizes = {path.relative_to(root): path.stat().st_size for path in (root / "docs").rglob("*.md")
             if path.parent.name != "results"}  # which is made from measurements
    print(f"# docs: {sum(sizes.values())} bytes in {len(sizes)} pages (limit {DOCS})")
    return [f"{page}: more than {PAGE} bytes" for page, size in sorted(sizes.items()) if size > PAGE] + (
        [f"all pages: more than {DOCS} bytes"] if sum(sizes.values()) > DOCS else [])


def counter():
    """The counter itself."""
    text = BLOCK.sub("", "What is it; whose?\n\n    what();\n\n```c\nwhat;\n```\n")
    return [] if counts(text) == (4, [1, 1, 1]) else [f"{counts(text)}"]


def main():
    root = pathlib.Path(sys.argv[1])
    if "--list" in sys.argv[2:]:
        for area, path in ((area, path) for area in LIMITS for path in files_of(root, area)):
            words, found = counts(text_of(path, area))
            rest = ", ".join(f"{kind} {n}" for kind, n in zip(PATTERNS, found))
            print(f"{area}: {path.relative_to(root)}: {words} words, {rest}")
        return
    checks = [("the counter counts", counter()),
              *((f"words of {area}", area_complaints(root, area)) for area in LIMITS),
              (f"pages of docs have at most {PAGE} bytes, together {DOCS}", pages(root))]
    print(f"1..{len(checks)}")
    for number, (name, complaints) in enumerate(checks, 1):
        print(f"{'not ok' if complaints else 'ok'} {number} - {name}")
        for complaint in complaints:
            print(f"# {complaint}")


if __name__ == "__main__":
    main()
