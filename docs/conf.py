"""How Sphinx makes the site of these pages: scripts/docs runs it.

The pages are Markdown (MyST); the reference is made of the docstrings of the installed package. A
docstring of knear describes an argument in a paragraph that begins with its name and a colon; what
Sphinx wants are fields, so `_fields` below turns the one into the other.
"""

import contextlib
import inspect
import re
import sys
from pathlib import Path

import knear

sys.path.insert(0, str(Path(__file__).parent))  # for plots/

project = "knear"
author = "the authors of knear"
version = release = knear.__version__
html_title = f"knear {version}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "matplotlib.sphinxext.plot_directive",
]
exclude_patterns = ["plots"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["knear.css"]
html_show_sourcelink = False
html_show_copyright = False
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

plot_formats = [("svg", 100)]
plot_html_show_formats = False
plot_html_show_source_link = True
plot_include_source = False

default_role = "code"  # `name` in a docstring is code
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88


def _arguments(thing: object) -> set[str]:
    """The names that a docstring of `thing` may describe as arguments."""
    names: set[str] = set(getattr(thing, "__annotations__", {}))
    called = thing.__init__ if inspect.isclass(thing) else thing
    with contextlib.suppress(TypeError, ValueError):
        names |= set(inspect.signature(called).parameters)
    return names


def _fields(app, what, name, thing, options, lines: list[str]) -> None:
    """Paragraphs `name: text` become `:param name: text`, and indented ones, which are code,
    literal blocks; examples and the rest stay."""
    names = _arguments(thing) if what in ("function", "method", "class") else set()
    begins = re.compile(r"(\w+)((?:, \w+)*): ")
    out: list[str] = []
    field = False  # whether the line before belongs to one
    for line in lines:
        blank = not out or not out[-1].strip()
        found = begins.match(line)
        others = found[2].split(", ")[1:] if found else []
        if found and {found[1], *others} <= names and (blank or field):
            field = True
            also = "".join(f"and `{other}`: " for other in others)
            line = f":param {found[1]}: {also}{line[found.end() :]}"
        elif line.strip() and not line.startswith(" ") and field:
            field = False
            if not blank:
                out.append("")
        elif line.startswith("    ") and blank and not field and not _of_code(out):
            out += ["::", ""]
        out.append(line)
    lines[:] = out


def _of_code(before: list[str]) -> bool:
    """Whether the last line that is not blank belongs to a literal block, which goes on."""
    last = next((line for line in reversed(before) if line.strip()), "")
    return last.startswith("    ") or last.endswith("::")


def _underscores(app, what, name, thing, options, lines: list[str]) -> None:
    """`labels_` is the name of an attribute, and no link to something called labels."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[i] = re.sub(r"(?<![\w`])([A-Za-z]\w*_)(?![\w`])", r"``\1``", line)


def _skipped(app, what, name, thing, skip: bool, options) -> bool | None:
    """What scikit-learn puts into every estimator is described there."""
    made = getattr(thing, "__module__", "") or ""
    return True if made.startswith("sklearn.") else None


def _of_the_site(app, name: str, source: list[str]) -> None:
    """Links to these two files lead to the pages that the site makes of them."""
    for file, page in (("python/README.md", "python.md"), ("bench/README.md", "benchmarks.md")):
        source[0] = source[0].replace(f"](../{file}", f"]({page}")
        source[0] = source[0].replace(f"](../../{file}", f"](../{page}")


def setup(app) -> None:
    app.connect("autodoc-process-docstring", _fields)
    app.connect("autodoc-process-docstring", _underscores)
    app.connect("autodoc-skip-member", _skipped)
    app.connect("source-read", _of_the_site)
