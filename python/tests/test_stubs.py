"""_core.pyi says what the compiled part has: the same names, the same arguments of the same kinds
with the same defaults, which may be None where they may be."""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

from knear import _core

STUBS = Path(__file__).resolve().parents[1] / "knear" / "_core.pyi"


def members(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    out = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            out[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            out[node.target.id] = node
    return out


def parts(text: str, at: str) -> list[str]:
    """Those between the characters `at` that stand outside of all brackets."""
    depth, words = 0, [""]
    for char in text:
        depth += char in "[(" or -(char in "])")
        if char == at and depth == 0:
            words.append("")
        else:
            words[-1] += char
    return [word.strip() for word in words if word.strip()]


class Argument(NamedTuple):
    name: str
    kind: str  # "/", "" or "*": by place alone, by place or name, by name alone
    default: str | None
    may_be_none: bool


def arguments_of(function: object) -> list[Argument]:
    """By the first line of the docstring, which nanobind makes."""
    signature = function.__doc__.splitlines()[0]
    words = parts(signature[signature.index("(") + 1 : signature.rindex(") ->")], ",")
    out: list[Argument] = []
    kind = ""
    for word in words:
        if word == "/":
            out = [each._replace(kind="/") for each in out]
        elif word == "*":
            kind = "*"
        else:
            (told, *default) = parts(word, "=")
            name, _, type_ = told.partition(":")
            none = type_.strip().endswith("| None")
            out.append(Argument(name, kind, default[0] if default else None, none))
    return out


def arguments_told(node: ast.FunctionDef) -> list[Argument]:
    """The same by the stub."""
    of = node.args
    placed = [*((each, "/") for each in of.posonlyargs), *((each, "") for each in of.args)]
    by_name = [(each, "*") for each in of.kwonlyargs]
    defaults = [None] * (len(placed) - len(of.defaults)) + [*of.defaults, *of.kw_defaults]
    return [
        Argument(
            each.arg,
            kind,
            None if default is None else ast.unparse(default),
            each.annotation is not None
            and ast.unparse(each.annotation).endswith(("| None", "Progress")),
        )
        for (each, kind), default in zip(placed + by_name, defaults, strict=True)
    ]


def test_arguments_are_read_with_their_kinds_and_defaults():
    def made() -> None:
        """made(self, a: ndarray[dtype=f4, shape=(*)], /, b: int | None, *, c: str = 'x') -> int"""

    want = [("self", "/", None, False), ("a", "/", None, False), ("b", "", None, True),
            ("c", "*", "'x'", False)]  # fmt: skip
    assert arguments_of(made) == want
    stub = "def made(self, a: A, /, b: int | None, *, c: str = 'x') -> int: ..."
    assert arguments_told(ast.parse(stub).body[0]) == want


CLASSES = [
    "FewRowsReport",
    "Graph",
    "Index",
    "PathFinder",
    "ProductQuantizer",
    "ScalarQuantizer",
    "SearchReport",
    "SearchSettings",
    "Transform",
]


@pytest.mark.parametrize("name", ["", *CLASSES])
def test_stubs_say_what_there_is(name):
    scope = getattr(_core, name) if name else _core
    body = ast.parse(STUBS.read_text()).body
    if name:
        of_file = members(body)
        made = of_file[name]
        body = [*(line for base in made.bases for line in of_file[base.id].body), *made.body]
    told = members(body)
    there = {each for each in dir(scope) if not each.startswith("_")}
    assert there == {each for each in told if not each.startswith("_") and each != "Progress"}
    for each in there:
        node, what = told[each], getattr(scope, each)
        if not isinstance(node, ast.FunctionDef) or isinstance(what, property):
            continue
        assert arguments_told(node) == arguments_of(what), each
        static = any(getattr(each, "id", "") == "staticmethod" for each in node.decorator_list)
        assert not name or static == (arguments_of(what)[:1] != [("self", "", None, False)]), each
