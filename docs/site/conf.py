# SPDX-License-Identifier: Apache-2.0
"""The site of tools/docs, by Sphinx: MyST reads the pages of docs/ as they are, Breathe Doxygen's XML of the headers,
AutoAPI the docstrings of the Python package without importing it. tools/docs says which folder this runs in."""
import pathlib
import re

from docutils import nodes
from sphinx import addnodes

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = (ROOT / "include" / "amp.h").read_text(encoding="utf-8")

project = "libamp"
copyright = "the libamp authors, Apache-2.0"
release = ".".join(re.search(rf"AMP_VERSION_{part} (\d+)", HEADER).group(1) for part in ("MAJOR", "MINOR", "PATCH"))
root_doc = "docs/site/index"
include_patterns = [
    "README.md", "CONTRIBUTING.md", "docs/**.md", "docs/**/*.md", "docs/site/**", "bench/README.md",
    "bench/results/*.md", "bindings/README.md", "bindings/python/README.md", "examples/python/README.md",
    "python-api/**",
]

extensions = ["myst_parser", "breathe", "autoapi.extension"]
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
suppress_warnings = [
    "myst.header",  # pages begin with the heading that suits them
    "autoapi.python_import_resolution",  # what torch and mlx have
    "duplicate_declaration.c", "duplicate_declaration.cpp",  # a structure and the typedef of its name
    "misc.highlighting_failure",  # programs with dots in them
]

breathe_projects = {"libamp": str(ROOT.parent / "xml")}
breathe_default_project = "libamp"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
breathe_show_include = False
c_id_attributes = cpp_id_attributes = ["AMP_API", "AMP_MUST_CHECK"]

PUBLIC = ("torch/amp", "torch/optimizers", "kernels", "accelerate", "lightning", "mlx")
autoapi_dirs = [str(ROOT / "bindings" / "python" / "libamp")]
autoapi_root = "python-api"
autoapi_options = ["members", "imported-members"]
autoapi_add_toctree_entry = False
autoapi_python_class_content = "both"
autoapi_own_page_level = "module"
autoapi_ignore = ["*/_startup/*"]

html_theme = "furo"
html_title = f"libamp {release}"
html_show_sphinx = False
html_copy_source = False


# An optional part of the package is shown as a build with it has it. ROOT is the copy that tools/docs makes.
PACKAGE = ROOT / "bindings" / "python" / "libamp" / "torch" / "amp" / "__init__.py"
OPTIONAL = re.compile(r"^try:\n    (from .*\n)except ModuleNotFoundError:\n(?:\n| .*\n)+", re.MULTILINE)
if ROOT.parts[-3:] == ("build", "site", "source"):
    PACKAGE.write_text(OPTIONAL.sub(r"\1", PACKAGE.read_text(encoding="utf-8")), encoding="utf-8")


def is_public(name):
    parts = name.split(".")[1:]
    return not parts or any("/".join(parts) == public or public.startswith("/".join(parts) + "/") for public in PUBLIC)


def skip(app, what, name, obj, skipping, options):
    """Only modules that a user imports, and of these what __all__ or a name without underscore offers."""
    if what in ("module", "package"):
        return not is_public(name)
    return skipping


SPECIAL = re.compile(r"`([^`]+)`|([*_|\\])")


def plain(app, what, name, obj, options, lines):
    """Docstrings are text with `code` and indented programs, not reStructuredText."""
    text, program = [], False
    for line in lines:
        if line.startswith("    ") and not program and (not text or not text[-1].strip()):
            text += ["::", ""]
            program = True
        elif line.strip() and not line.startswith("    "):
            program = False
        text.append(line if program else SPECIAL.sub(lambda m: f"``{m[1]}``" if m[1] else "\\" + m[2], line.strip()))
    lines[:] = text


SECTIONS = "briefdescription detaileddescription define enum func innerclass typedef public-attrib public-func"
HEADERS = sorted(path.name for path in (ROOT / "include").glob("*.h*") if path.name != "amp_all.h")


def pages(app, name, source):
    """The page of the C API has a section for each header. A link to a folder has no page: its text stays."""
    here = (ROOT / name).parent
    if name == "docs/site/c-api":
        source[0] += "".join(f"\n## {header}\n\n```{{doxygenfile}} {header}\n:sections: {SECTIONS}\n```\n"
                             for header in HEADERS)

    def told(link):
        return link[1] if (here / link[2]).is_dir() else link[0]

    source[0] = re.sub(r"\[([^\]\n]+)\]\(([^)#:\s]+)\)", told, source[0])


PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")


def references(app, tree):
    """In the two references: links to the pages that comments name, no contents' entry for an enum without a name."""
    if not app.env.docname.startswith(("docs/site/c-api", "python-api/")):
        return
    for signature in tree.findall(addnodes.desc_signature):
        if signature.get("_toc_name", "").startswith("@"):
            signature["_toc_name"] = ""
    for text in list(tree.findall(nodes.Text)):
        pages = PAGE.findall(text)
        if not pages or isinstance(text.parent, (nodes.literal_block, nodes.reference)):
            continue
        parts = []
        for words, page in zip(PAGE.split(text), [*pages, None]):
            parts.append(nodes.Text(words))
            if page:
                parts.append(addnodes.pending_xref(
                    "", nodes.inline("", page), refdomain="std", reftype="doc", refexplicit=True, refwarn=True,
                    refdoc=app.env.docname, reftarget="/" + page.removesuffix(".md")))
        text.parent.replace(text, parts)


def setup(app):
    app.connect("doctree-read", references, priority=400)  # before the contents are collected
    app.connect("autodoc-process-docstring", plain)
    app.connect("source-read", pages)
    app.connect("autoapi-skip-member", skip)
