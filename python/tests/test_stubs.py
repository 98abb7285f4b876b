"""_core.pyi says what the compiled part has: the same names, the same arguments."""

import ast
import re
from pathlib import Path

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


def arguments_of(function: object) -> list[str]:
    signature = function.__doc__.splitlines()[0]
    inside = signature[signature.index("(") + 1 : signature.rindex(") ->")]
    depth, words, word = 0, [], ""
    for char in inside + ",":
        depth += char in "[(" or -(char in "])")
        if char == "," and depth == 0:
            words.append(re.match(r"\s*(\w*)", word)[1])
            word = ""
        else:
            word += char
    return [word for word in words if word]


CLASSES = [
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
        body = members(body)[name].body
    told = members(body)
    there = {each for each in dir(scope) if not each.startswith("_")}
    assert there == {each for each in told if not each.startswith("_") and each != "Progress"}
    for each in there:
        node, what = told[each], getattr(scope, each)
        if not isinstance(node, ast.FunctionDef) or isinstance(what, property):
            continue
        assert [arg.arg for arg in node.args.args] == arguments_of(what), each
