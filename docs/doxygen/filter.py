#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Doxygen's view of a public header: filter.py HEADER, which is written to stdout with its comments marked.

The headers are written for those who read them; Doxygen wants its marks. The rules by which it gets them:

- the comment at the head describes the file, and amp.h's also the library;
- `---- Title ----` begins a section, a page of its own (a group);
- a comment before a declaration describes it and what follows it without a blank line;
- a comment behind something, on its line, describes that;
- a comment with a blank line after it belongs to its section or, where there is none, to its file;
- what comes after a section's title "... nothing below is for use by itself" is left out;
- functions, structures and constants of headers whose names end in an underscore are left out;
- lines indented by four are code;
- what is said once for all structures (STANDARD), the _INIT macros and amp_api's members need no comment.

Everything else without a comment stays undocumented, and Doxygen warns of it.
"""
import pathlib
import re
import sys

# Members that mean the same in every structure.
STANDARD = {
    "struct_size": "sizeof the structure as the caller knows it; the _INIT macro sets it.",
    "reserved": "0.",
    "priv": "libamp's own.",
}
# Members of amp_api whose name is not their function's without amp_.
API_NAMES = {"library_version": "amp_version", "register_op": "amp_register"}

SPDX = re.compile(r"/\* SPDX-License-Identifier: [^*]*\*/\n")
SECTION = re.compile(r"/\* -{4} (.*?) -+ \*/$")
GUARD = re.compile(r"#ifndef (\w+_H)\n#define \1\n(.*)#endif /\* \1 \*/\n$", re.DOTALL)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
PRIVATE = re.compile(r"(?:^/\*(?:[^*]|\*(?!/))*\*/\n)?(?:^#ifdef __GNUC__\n__attribute__.*\n#endif\n)?"
                     r"^(?:static inline [^\n(]*\b\w+_\(|struct \w+_ \{)(?:.|\n)*?^\};?\n"
                     r"|^enum \{ \w+_ = [^\n]*\n", re.MULTILINE)
ENTRY = re.compile(r'X\((\w+), (-?\w+), "([^"]*)"[,)]')


def plain(text):
    """Doxygen's special characters have no meaning in the headers' comments. `code` is code."""
    return re.sub(r"`([^`]+)`", r"<tt>\1</tt>", re.sub(r"([\\@<>#%$&])", r"\\\1", text))


def body(comment):
    """The comment's text without its frame, each line as far indented as its author meant."""
    lines = [re.sub(r"^\s*\* ?", "", line) for line in comment[2:-2].split("\n")]
    lines[0] = comment[2:-2].split("\n")[0].lstrip()
    # A comment that begins on its first line has continuation lines aligned with " * ", stripped above.
    return [line.rstrip() for line in lines]


def marked_up(lines):
    """Paragraphs as they are, indented lines as code."""
    output, code = [], False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not code:
            output.append("@code{.c}")
        elif code and line and not indented:
            output.append("@endcode")
        code = indented or (code and not line)
        output.append(line[4:] if indented else plain(line) if not code else "")
    return output + ["@endcode"] if code else output


def documentation(comment, command="", end=""):
    return "/** " + command + "\n" + "\n".join(marked_up(body(comment))).strip("\n") + "\n" + end + "*/"


def behind(comment):
    return "/**< " + plain(" ".join(" ".join(body(comment)).split())) + " */"


def declarations(line):
    """`int a, b;` is two members, of which Doxygen would document the last."""
    several = re.match(r"(\s+)((?:const )?\w+) ([*\w]+(?:, [*\w]+)+);$", line)
    return [f"{several[1]}{several[2]} {name};" for name in several[3].split(", ")] if several else [line]


class Header:
    def __init__(self, name):
        self.name, self.output, self.section = name, [], None
        self.depth, self.open = 0, False  # braces and parentheses; inside a statement
        self.paragraph = None             # the comment that holds for the declarations of this paragraph
        self.fresh = False                # it was just written, for the line that follows
        self.end = ""                     # of what was opened
        self.continued = False            # the line before ended in a backslash
        self.structure = None

    def close_section(self):
        if self.section:
            self.output.append("/** @} */")

    def begin_section(self, title):
        self.close_section()
        if "nothing below is for use" in title:
            self.section, self.end = None, "/** @endcond */"
            self.output.append("/** @cond */")
            return
        self.section = re.sub(r"\W+", "_", f"{self.name} {title}").lower()
        self.output.append(f"/** @defgroup {self.section} {plain(title)}\n@{{ */")
        self.paragraph = None

    def comment(self, text, next_line):
        """A comment on lines of its own."""
        title = SECTION.match(text)
        if title:
            self.begin_section(title.group(1))
        elif not next_line.strip() and self.depth == 0:
            if self.section:
                self.output.append("/** @} */")
                self.output.append(documentation(text, f"@addtogroup {self.section}", "@{"))
            else:
                self.output.append(documentation(text, "@file"))
        else:
            self.output.append(documentation(text))
            self.fresh = True
            if self.depth == 0:
                self.paragraph = text

    def standard(self, code):
        """The documentation of a member or macro that needs no comment, or None."""
        initial = re.match(r"#define (AMP_\w+)_INIT\b", code)
        if initial:
            return f"/** An @ref {initial.group(1).lower()} with struct_size set and all else at its default. */"
        entry = re.match(r"\s+.*?\(\*(\w+)\)\(", code)
        if entry and self.structure == "amp_api":
            function = API_NAMES.get(entry.group(1), "amp_" + entry.group(1))
            return f"/** The function @ref {function}. */"
        member = re.match(r"\s+[\w ]+[ *](\w+)(\[\d+\])?;", code)
        if member and self.depth == 1 and member.group(1) in STANDARD:
            return f"/** {STANDARD[member.group(1)]} */"
        return None

    def code(self, line, trailing):
        """A line of code and the comment behind it, or None."""
        directive = line.startswith("#") or self.continued
        if self.continued:
            pass
        elif not line.strip():
            if self.depth == 0:
                self.paragraph = None
        elif not self.fresh and not trailing:
            text = self.standard(line)
            if text:
                self.output.append(text)
            elif self.depth == 0 and not self.open and self.paragraph and not line.startswith(("}", "#undef", "#e")):
                self.output.append(documentation(self.paragraph))
        if not directive and line.strip():
            started = re.match(r"typedef struct (\w+) \{", line)
            self.structure = started.group(1) if started else self.structure
            self.depth += line.count("{") + line.count("(") - line.count("}") - line.count(")")
            self.open = self.depth > 0 or not line.rstrip().endswith(";")
        if line.startswith("} // namespace") and not self.depth:
            self.close_section()
            self.section = None
        mark = " " + behind(trailing) if trailing and not line.startswith("#endif") else ""
        self.output += [one + mark for one in declarations(line)]
        self.fresh, self.continued = False, line.endswith("\\")


def enumerators(text):
    """An enum made from a list of X(name, value, "text", ...) becomes one that Doxygen can read."""
    def expand(match):
        map_name = match.group(2)
        entries = re.search(r"#define " + map_name + r"\(X\)(.*?[^\\])\n", text, re.DOTALL).group(1)
        return "".join(f"    {name} = {value}, /* {words}. */\n" for name, value, words in ENTRY.findall(entries))

    return re.sub(r"#define (\w+)\(name, value, text(?:, \.\.\.)?\) [^\n]*\n\s*(\w+)\(\1\)\n#undef \1\n", expand, text)


def filtered(path):
    name = path.name.replace(".", "_")
    text = GUARD.sub(r"\2", SPDX.sub("", path.read_text(encoding="utf-8"), count=1), count=1)
    text = re.sub(r"#ifdef __cplusplus\n.*?#endif\n", "", enumerators(text), flags=re.DOTALL)
    text = PRIVATE.sub("", text)
    head = COMMENT.match(text)
    header = Header(name)
    if path.name == "amp.h":
        header.output.append(documentation(head.group(0), "@mainpage libamp"))
        header.output.append("/** @file\nThe policy: everything but the kernels. */")
    else:
        header.output.append(documentation(head.group(0), "@file"))
    position = head.end() + 1
    while position < len(text):
        end = text.find("\n", position)
        line = text[position:end]
        found = COMMENT.search(text, position)
        if found and found.start() <= end:
            before, position = text[position:found.start()], found.end()
            rest_end = text.find("\n", position)
            rest = text[position:rest_end]
            position = rest_end + 1
            if before.strip():
                if rest.strip():
                    header.code(f"{before.rstrip()} {behind(found.group(0))}{rest}", None)
                else:
                    header.code(before.rstrip(), found.group(0))
            else:
                header.comment(found.group(0), text[position:text.find("\n", position)])
        else:
            header.code(line, None)
            position = end + 1
    header.close_section()
    return "\n".join([*header.output, header.end]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(filtered(pathlib.Path(sys.argv[1])))
