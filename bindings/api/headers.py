# SPDX-License-Identifier: Apache-2.0
"""The declarations of a public header, with the first sentence of what the reference says of each.

Reads what docs/doxygen/filter.py makes of a header for Doxygen: there each declaration has its comment, and enums
made from a list are written out. The headers use a small part of C, and so does this parser; what it does not know is
an error.

A type is one of
    {"name": "float", "const": true}                 const only where it is
    {"pointer": type, "const": true}
    {"array": type, "count": 4}
    {"function": {"returns": type, "arguments": [...]}}     a pointer to a function
    {"struct": [field, ...]}                         a struct without a name, inside another
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "doxygen"))
from filter import filtered  # noqa: E402

TOKEN = re.compile(
    r"/\*\*<(?P<behind>.*?)\*/|/\*\*(?P<before>.*?)\*/|/\*.*?\*/"
    r"|^#define (?P<constant>AMP_\w+) (?P<value>[^\n/\\]+)(?=/|\n)|^#(?:[^\n]*\\\n)*[^\n]*"
    r"|(?P<word>\w+)|(?P<mark>\S)|\s+", re.DOTALL | re.MULTILINE)
HIDDEN = re.compile(r"/\*\* @cond \*/.*?/\*\* @endcond \*/", re.DOTALL)
LITERAL = re.compile(r"\(?(-?[\d.]+)(f?)\)?$|UINT(\d+)_C\((\w+)\)$|UINT(\d+)_MAX$")
EXPRESSION = re.compile(r"[-\du<()| ]+$")


def first_sentence(text):
    """Of a comment that was marked up for Doxygen."""
    words = " ".join(re.sub(r"@code.*", "", text, flags=re.DOTALL).split())
    words = re.sub(r"@\w+ |\\(?=\W)", "", words)
    return re.match(r"(.*?[.?!](?= [^a-z]|$)|.*)", words).group(1)


def constant(text):
    """(value, C type) of a macro that is a number, or None."""
    found = LITERAL.match(text.strip())
    if not found:
        return None
    number, is_float, bits, literal, width = found.groups()
    if number:
        return (float(number), "float") if is_float else (int(number), "int32_t")
    return (int(literal, 0), f"uint{bits}_t") if bits else (2 ** int(width) - 1, f"uint{width}_t")


class Parser:
    def __init__(self, text, constants):
        self.tokens = [match for match in TOKEN.finditer(HIDDEN.sub("", text)) if match.lastgroup]
        self.position = 0
        self.doc = ""
        self.integer = None  # the name of the integer type that was declared just before
        self.constants = constants  # of the headers so far, for the lengths of arrays
        self.found = {"constants": [], "types": [], "enums": [], "structs": [], "opaque": [], "functions": []}

    # ---- tokens

    def peek(self):
        token = self.tokens[self.position] if self.position < len(self.tokens) else None
        return token[token.lastgroup] if token and token.lastgroup in ("word", "mark") else None

    def take(self, *wanted):
        text = self.peek()
        if text is None or (wanted and text not in wanted):
            raise SyntaxError(f"expected {' or '.join(wanted) or 'a word'}, found {self.tokens[self.position:][:8]}")
        self.position += 1
        return text

    def take_if(self, text):
        if self.peek() != text:
            return False
        self.position += 1
        return True

    def take_docs(self):
        """The comments that stand here: those that do not belong to what went before, as the present one."""
        while self.position < len(self.tokens) and self.tokens[self.position].lastgroup == "before":
            text = self.tokens[self.position]["before"].strip()
            self.doc = self.doc if text.startswith(("@}", "@addtogroup")) else text
            self.position += 1

    def sentence(self):
        """Of the comment before what was just read, or of that behind it."""
        if self.position < len(self.tokens) and self.tokens[self.position].lastgroup == "behind":
            self.doc = self.tokens[self.position]["behind"].strip()
            self.position += 1
        return first_sentence(self.doc)

    # ---- types and declarators

    def type_and_name(self):
        """Of a member, an argument (whose name may be missing) or a function up to its arguments."""
        kind = self.specifier()
        while self.take_if("*"):
            kind = {"pointer": kind}
            if self.take_if("const"):
                kind["const"] = True
        if self.take_if("("):
            self.take("*")
            name = self.take()
            self.take(")")
            return {"function": {"returns": kind, "arguments": self.arguments()}}, name
        name = self.take() if re.match(r"\w", self.peek()) else None
        if self.take_if("["):
            count = self.take()
            kind = {"array": kind, "count": self.constants[count] if count in self.constants else int(count)}
            self.take("]")
        return kind, name

    def specifier(self):
        const = self.take_if("const")
        if self.take_if("struct") and self.peek() == "{":
            return {"struct": self.fields()}
        kind = {"name": self.take()}
        return {**kind, "const": True} if const or self.take_if("const") else kind

    def arguments(self):
        self.take("(")
        listed = []
        while not self.take_if(")"):
            kind, name = self.type_and_name()
            if kind != {"name": "void"}:
                listed.append({"name": name or f"argument{len(listed) + 1}", "type": kind})
            self.take_if(",")
        return listed

    def fields(self):
        self.take("{")
        listed = []
        self.doc = ""
        self.take_docs()
        while not self.take_if("}"):
            kind, name = self.type_and_name()
            self.take(";")
            listed.append({"name": name, "type": kind, "doc": self.sentence()})
            self.doc = ""
            self.take_docs()
        return listed

    # ---- declarations

    def typedef(self, doc):
        if self.peek() == "struct":
            self.position += 1
            tag = self.take()
            if self.peek() != "{":
                self.found["opaque"].append({"name": tag, "doc": doc})
            else:
                self.found["structs"].append({"name": tag, "doc": doc, "fields": self.fields()})
            self.take(tag)
        else:
            kind, name = self.type_and_name()
            self.found["types"].append({"name": name, "type": kind, "doc": doc})
            self.integer = name if kind == {"name": "int32_t"} else None
        self.take(";")

    def enum(self, doc):
        """Without a name of its own; the typedef that it follows says what its values are kept in."""
        self.take("{")
        owner, unsigned, values = self.integer, False, []
        self.doc = ""
        self.take_docs()
        while not self.take_if("}"):
            name = self.take()
            self.take("=")
            expression = []
            while self.peek() not in (",", "}", None):
                expression.append(self.take())
            self.take_if(",")
            unsigned = "1u" in expression or unsigned
            text = re.sub(r"(\d)u\b", r"\1", "".join(expression))
            if not EXPRESSION.match(text):
                raise SyntaxError(f"{name} = {text}")
            values.append({"name": name, "value": eval(text, {}), "doc": self.sentence()})  # digits and signs alone
            self.doc = ""
            self.take_docs()
        self.take(";")
        kind = owner or ("uint32_t" if unsigned else "int32_t")  # flags are written 1u << n
        self.constants.update((value["name"], value["value"]) for value in values)
        self.found["enums"].append({"type": {"name": kind}, "doc": doc, "values": values})

    def function(self, doc):
        must_check = self.take_if("AMP_MUST_CHECK")
        kind, name = self.type_and_name()
        self.found["functions"].append(
            {"name": name, "returns": kind, "arguments": self.arguments(), "must_check": must_check, "doc": doc})
        self.take(";")

    def define(self, token):
        number = constant(token["value"])
        if number:
            value, kind = number
            self.constants[token["constant"]] = value
            self.found["constants"].append(
                {"name": token["constant"], "value": value, "type": {"name": kind}, "doc": self.sentence()})

    def parse(self):
        while self.position < len(self.tokens):
            self.take_docs()
            if self.position == len(self.tokens):
                break
            token = self.tokens[self.position]
            self.position += 1
            if token.lastgroup == "value":
                self.define(token)
            elif token.lastgroup == "word":
                self.declaration(token["word"])
            elif token.lastgroup != "behind":
                raise SyntaxError(f"not known here: {token.group(0)}")
        return self.found

    def declaration(self, word):
        if word == "typedef":
            self.typedef(self.sentence())
            return
        if word == "struct":  # announced; defined elsewhere
            self.take()
            self.take(";")
        elif word == "enum":
            self.enum(self.sentence())
        elif word == "AMP_API":
            self.function(self.sentence())
        else:
            raise SyntaxError(f"not known here: {word}")
        self.integer = None


def declarations(path, constants):
    """{"constants": [...], "types": [...], ...} of one header, in its order. `constants` is added to."""
    try:
        return Parser(filtered(path), constants).parse()
    except SyntaxError as error:
        raise SystemExit(f"{path.name}: {error.msg}") from error
