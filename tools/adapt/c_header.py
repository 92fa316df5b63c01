# SPDX-License-Identifier: Apache-2.0
"""Reads what a C header declares: read("net.h", ["-Iinclude"]) -> Header.

The compiler's own preprocessor comes first, so that the header means what it means to the program. What pycparser does
not know of GNU C is taken out of its output: attributes, asm, the bodies of inline functions. What is declared is told
in the types of c_types.py: typedefs of the C library stay, all others are followed to what they are.
"""
import difflib
import pathlib
import re
import subprocess

from c_types import (ANONYMOUS, FIXED, NUMBERS, Array, Enum, Function, FunctionType, Member, Number, Param, Pointer,
                     Struct, Unknown, Void)

try:
    from pycparser import c_ast, c_parser
except ImportError:
    c_ast = c_parser = None


class HeaderError(Exception):
    """What is wrong, where, and what to do."""


# What gcc and clang have built in, and pycparser has not.
PRELUDE = "typedef int __builtin_va_list; typedef int __int128_t; typedef int __uint128_t;\n" + "".join(
    f"typedef {'long ' if bits > 32 else ''}double _Float{bits}{x};\n"
    for bits, x in ((32, ""), (32, "x"), (64, ""), (64, "x"), (128, ""))) + "typedef short _Float16;\n"
SPELLINGS = {"__inline": "inline", "__inline__": "inline", "__const": "const", "__const__": "const",
             "__signed__": "signed", "__volatile__": "", "__volatile": "", "__restrict": "", "__restrict__": "",
             "__extension__": "", "__thread": "", "_Thread_local": "", "__complex__": "_Complex", "__int128": "int"}
WITH_ARGUMENTS = {"__attribute__", "__attribute", "__asm__", "__asm", "asm", "_Static_assert", "_Alignas", "__declspec"}
TYPEOF = {"typeof", "__typeof__", "__typeof"}
TOKEN = re.compile(r'^#[^\n]*$|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|\w+|\s+|[^\w\s]', re.MULTILINE)
CXX = re.compile(r"^\s*(?:class\s+\w+|namespace\s+\w*\s*\{|template\s*<|using\s+\w+)", re.MULTILINE)


class Header:
    """functions: name -> Function; structs, enums, typedefs: name -> what is declared; macros: name -> its text."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.functions, self.structs, self.enums, self.typedefs, self.macros = {}, {}, {}, {}, {}
        self.variables = set()

    def names(self):
        """All that it has taken."""
        constants = (name for each in self.enums.values() for name in each.names)
        return {*self.functions, *self.structs, *self.enums, *self.typedefs, *self.macros, *self.variables, *constants}

    def function(self, name):
        """Its declaration, or a HeaderError that says what the name is instead."""
        if name in self.functions:
            return self.functions[name]
        if name in self.macros:
            meant = re.match(r"(\w+)(?:\(.*\))?$", self.macros[name].strip())
            known = meant and meant.group(1) in self.functions
            hint = f" Say {meant.group(1)}, which it stands for." if known else (
                " Say the function that it calls, or write one around it and call that.")
            raise HeaderError(f"{self.path}: {name} is a macro, and a macro has no address to put a wrapper at.{hint}")
        raise HeaderError(f"{self.path} declares no function {name}.{self.nearest(name, self.functions)}")

    def struct(self, name):
        """The struct of that tag or typedef name."""
        word = name[7:] if name.startswith("struct ") else name
        found = self.structs.get(word)
        if found is None and word in self.typedefs:
            found = self.typedefs[word]
            found = found.target if isinstance(found, Pointer) else found
        if word in self.variables:
            raise HeaderError(f"{self.path}: {word} is a variable, and not a struct. Give the struct that is its type; "
                              f"an "
                              "array of function pointers has no names to read: docs/start/c-host.md adapts such a "
                              "host.")
        if not isinstance(found, Struct):
            raise HeaderError(f"{self.path} declares no struct {word}.{self.nearest(word, self.structs)}")
        if found.union:
            raise HeaderError(f"{found.where}: {word} is a union: only the program knows which member holds.")
        if found.members is None:
            raise HeaderError(f"{self.path} declares {word} and not its members. Give the header that defines it.")
        return found

    def nearest(self, name, found):
        """Of what the header itself declares."""
        known = [each for each, what in found.items() if what.where.rpartition(":")[0] == str(self.path)]
        near = difflib.get_close_matches(name, known, 3,
                                         0.6) or sorted(n for n in known if name.lower() in n.lower())[:3]
        return f" The nearest names are {', '.join(near)}." if near else " Is it the right header, and are -I and -D?"


# ---- what pycparser must not see -----------------------------------------------------------------------------------

def _skip(tokens, i, opening, closing):
    """Behind the group that opens at tokens[i]."""
    depth = 0
    while i < len(tokens):
        depth += (tokens[i] == opening) - (tokens[i] == closing)
        i += 1
        if depth == 0:
            break
    return i


def _next(tokens, i):
    while i < len(tokens) and (tokens[i].isspace() or tokens[i].startswith("#")):
        i += 1
    return i


def _lines(tokens):
    return "".join(re.sub(r"[^\n]", "", token) if not token.startswith("#") else token for token in tokens)


def plain_c(text):
    """GNU C -> C99 whose functions' bodies are empty: lines stay where they were."""
    tokens, out, i, last = TOKEN.findall(text), [], 0, ""
    while i < len(tokens):
        token, end = tokens[i], i + 1
        if token in WITH_ARGUMENTS or token in TYPEOF:
            end = _next(tokens, end)
            while end < len(tokens) and tokens[end] in ("volatile", "goto", "inline", "__volatile__"):
                end = _next(tokens, end + 1)
            end = _skip(tokens, end, "(", ")") if tokens[end:end + 1] == ["("] else end
            out.append(("int" if token in TYPEOF else "") + _lines(tokens[i:end]))
        elif token == "{" and last == ")":  # a function's body
            end = _skip(tokens, i, "{", "}")
            out.append("{" + _lines(tokens[i:end]) + "}")
        else:
            out.append(SPELLINGS.get(token, token))
        if not token.isspace() and not token.startswith("#") and token not in WITH_ARGUMENTS:
            last = token
        i = end
    return "".join(out)


# ---- the compiler --------------------------------------------------------------------------------------------------

def _preprocess(path, flags, compiler, *options):
    command = [*compiler, "-E", *options, "-x", "c", *flags, str(path)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                              check=False)
    except OSError as error:
        raise HeaderError(f"{compiler[0]} does not run: {error.strerror}. Set CC to a C compiler.") from error
    if done.returncode:
        raise HeaderError(f"{' '.join(compiler)} cannot read {path}; give what it needs with -I and -D:\n"
                          f"{done.stderr.rstrip()}")
    return done.stdout


def _refuse_cxx(path, text):
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    if pathlib.Path(path).suffix in (".hpp", ".hh", ".hxx") or CXX.search(code):
        raise HeaderError(f"{path} is C++, whose adapters are written with amp.hpp. For functions that are extern "
                          f"\"C\" give a "
                          "header that declares these alone.")


def _parse(path, text):
    try:
        return c_parser.CParser().parse(PRELUDE + plain_c(text), str(path))
    except Exception as error:  # its class has another module in other versions of pycparser
        if type(error).__name__ != "ParseError":
            raise
        _refuse_cxx(path, text)
        raise HeaderError(f"pycparser cannot read this declaration: {error}. Copy the prototypes and structs that you "
                          f"need "
                          "into a header of your own and give that.") from error


def read(path, flags=(), compiler=("cc",)):
    """All that the header declares, what it includes too. `flags`: -I and -D for the compiler."""
    if c_parser is None:
        raise HeaderError("pycparser is missing: install python3-pycparser (Debian) or pycparser (pip).")
    try:
        written = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise HeaderError(f"{path}: {error.strerror}") from error
    try:
        text = _preprocess(path, flags, compiler)
    except HeaderError:
        _refuse_cxx(path, written)
        raise
    _refuse_cxx(path, "")
    header = Header(path)
    for line in _preprocess(path, flags, compiler, "-dM").splitlines():
        name, _, meaning = line[len("#define "):].partition(" ")
        header.macros[name.partition("(")[0]] = meaning
    reader = _Reader(header)
    for node in _parse(path, text).ext:
        reader.declaration(node)
    return header


# ---- pycparser's tree -> c_types.py ----------------------------------------------------------------------------------

class _Reader:
    def __init__(self, header):
        self.header = header

    def declaration(self, node):
        if isinstance(node, c_ast.Typedef):
            known = node.name in FIXED or node.name in ("size_t", "ptrdiff_t")
            self.header.typedefs[node.name] = Number(node.name) if known else self.type(node.type, node.name)
        elif isinstance(node, c_ast.FuncDef):
            self.declaration(node.decl)
            self.header.functions[node.decl.name].defined = True
        elif isinstance(node, c_ast.Decl):
            kind = self.type(node.type)
            if isinstance(kind, FunctionType):
                inline = "inline" in node.funcspec or "static" in node.storage
                defined = node.name in self.header.functions and self.header.functions[node.name].defined
                self.header.functions[node.name] = Function(node.name, kind, inline, self.where(node), defined)
            elif node.name:
                self.header.variables.add(node.name)

    @staticmethod
    def where(node):
        return f"{node.coord.file}:{node.coord.line}" if node.coord else "?"

    def type(self, node, name=None):
        """`name`: of the typedef that an anonymous struct or enum gets."""
        if isinstance(node, c_ast.TypeDecl):
            return self.base(node.type, name)
        if isinstance(node, c_ast.PtrDecl):
            return Pointer(self.type(node.type), "const" in getattr(node.type, "quals", []))
        if isinstance(node, c_ast.ArrayDecl):
            return Array(self.type(node.type, name), self.text(node.dim))
        if isinstance(node, c_ast.FuncDecl):
            return self.function_type(node)
        return self.base(node, name)

    def function_type(self, node):
        params = [each for each in (node.args.params if node.args else [])]
        variadic = any(isinstance(each, c_ast.EllipsisParam) for each in params)
        read_params = [Param(each.name, self.type(each.type)) for each in params
                       if not isinstance(each, (c_ast.EllipsisParam, c_ast.ID))]
        if [type(each.type) for each in read_params] == [Void]:
            read_params = []
        return FunctionType(self.type(node.type), read_params, variadic, node.args is not None)

    def base(self, node, name=None):
        if isinstance(node, c_ast.IdentifierType):
            return self.named(node.names)
        if isinstance(node, (c_ast.Struct, c_ast.Union)):
            return self.struct(node, name)
        if isinstance(node, c_ast.Enum):
            return self.enum(node, name)
        return Unknown(type(node).__name__)

    def named(self, names):
        words = " ".join(sorted(names, key=lambda word: (word not in ("signed", "unsigned"),
                                                         word not in ("long", "short"))))
        words = re.sub(r"\bsigned (?=short|int|long)", "", words)
        words = re.sub(r"(short|long) int$", r"\1", words)
        words = {"signed": "int"}.get(words, words)
        if words == "void":
            return Void()
        if words in self.header.typedefs:
            return self.header.typedefs[words]
        return Number(words) if words in NUMBERS else Unknown(words)

    def struct(self, node, name):
        tag = node.name or name or ANONYMOUS
        known = self.header.structs.get(tag) if node.name else None
        spelling = f"{'union' if isinstance(node, c_ast.Union) else 'struct'} {node.name}" if node.name else tag
        found = known or Struct(tag, spelling, isinstance(node, c_ast.Union), self.where(node))
        if tag != ANONYMOUS:
            self.header.structs[tag] = found
        if node.decls is not None and found.members is None:
            found.members = [self.member(each) for each in node.decls if isinstance(each, c_ast.Decl)]
        return found

    def member(self, node):
        return Member(node.name or "", self.type(node.type), node.bitsize is not None, self.where(node))

    def enum(self, node, name):
        tag = node.name or name or ANONYMOUS
        found = self.header.enums.get(tag) if node.name else None
        if found is None:
            found = Enum(tag, f"enum {node.name}" if node.name else tag, [])
        if node.values is not None:
            found.names.extend(each.name for each in node.values.enumerators)
        self.header.enums[tag if tag != ANONYMOUS else f"enum at {self.where(node)}"] = found
        return found

    def text(self, node):
        """An array's length as it stands: a number, a name or an expression; None: not said."""
        if node is None:
            return None
        if isinstance(node, c_ast.Constant):
            return str(int(re.sub(r"[uUlL]+$", "", node.value), 0)) if node.type.endswith("int") else node.value
        if isinstance(node, c_ast.ID):
            return node.name
        if isinstance(node, c_ast.BinaryOp):
            left, right = self.text(node.left), self.text(node.right)
            return f"({left} {node.op} {right})" if left and right else None
        return None
