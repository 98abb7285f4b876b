"""Modules of a folder that include one another in a circle: there may be none but those named here.

    circles_test.py ROOT            prints each circle, fails if there is one that is not named
    circles_test.py ROOT SELF_TEST  a made-up tree with a circle in the folder SELF_TEST is caught

A module is a header with its source. Within a circle nothing can be understood, tested or moved
without the rest.
"""

import contextlib
import pathlib
import re
import shutil
import sys

FOLDERS = ("knear", "cli", "python/bindings")

# Named until they are untied. None of them may grow.
KNOWN = {
    frozenset(f"knear/core/{name}" for name in ("cpu_groups", "stop_check", "threads")),
    frozenset(f"knear/cuda/{name}" for name in ("device_pool", "queue")),
    frozenset(f"knear/select/{name}" for name in ("family", "select_k")),
    frozenset(f"knear/mpi/{name}" for name in ("device_sums", "nccl_sums")),
    # k-means by devices is k-means with another assignment, by processes with other sums.
    frozenset(
        f"knear/cluster/{name}"
        for name in (
            "codebook",
            "device/assignment_on_device",
            "device/device_assignment",
            "divided_rows",
            "k_means",
        )
    ),
    # A row of a base may lie in packed panels, which are made of rows.
    frozenset(
        f"knear/scan/packing/{name}"
        for name in ("base_rows", "coded_queries", "duplicates", "packed_base")
    ),
    frozenset(f"knear/scan/packing/{name}" for name in ("code_book", "code_tiles")),
    frozenset(f"knear/scan/methods/{name}" for name in ("code_candidates", "code_scan")),
}

INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"')


def module_of(path):
    return str(pathlib.PurePosixPath(path).with_suffix(""))


def uses(root):
    """Of each module, the modules that it includes."""
    paths = [
        path.relative_to(root)
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if path.suffix in (".hpp", ".cpp", ".inl", ".cu", ".cuh")
    ]
    names = {module_of(path) for path in paths}
    found = {name: set() for name in names}
    for path in paths:
        for line in (root / path).read_text(encoding="utf-8").splitlines():
            include = INCLUDE.match(line)
            if include and module_of(include[1]) in names - {module_of(path)}:
                found[module_of(path)].add(module_of(include[1]))
    return found


def circles(graph):
    """The sets of modules that reach one another, by Tarjan's algorithm."""
    number, lowest, stack, open_, found = {}, {}, [], set(), []

    def visit(module):
        number[module] = lowest[module] = len(number)
        stack.append(module)
        open_.add(module)
        for used in sorted(graph[module]):
            if used not in number:
                visit(used)
                lowest[module] = min(lowest[module], lowest[used])
            elif used in open_:
                lowest[module] = min(lowest[module], number[used])
        if lowest[module] == number[module]:
            circle = set()
            while module not in circle:
                circle.add(stack.pop())
            open_.difference_update(circle)
            if len(circle) > 1:
                found.append(frozenset(circle))

    for module in sorted(graph):
        if module not in number:
            visit(module)
    return found


def check(root, known):
    """The number of circles that are new, or named and gone."""
    found = circles(uses(root))
    for circle in found:
        if circle not in known:
            print("these include one another in a circle: " + ", ".join(sorted(circle)))
    for circle in known - set(found):
        print("no circle any more, so no longer to be named: " + ", ".join(sorted(circle)))
    return len(set(found) ^ known)


def self_test(folder):
    shutil.rmtree(folder, ignore_errors=True)
    sources = {
        "knear/io/a.hpp": '#include "knear/io/b.hpp"\n',
        "knear/io/b.hpp": "#include <string>\n",
        "knear/io/b.cpp": '#include "knear/io/b.hpp"\n',
    }
    for name, text in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert check(folder, set()) == 0, "a sound tree was refused"
    (folder / "knear/io/b.cpp").write_text('#  include "knear/io/a.hpp"\n', encoding="utf-8")
    assert circles(uses(folder)) == [frozenset({"knear/io/a", "knear/io/b"})]
    assert check(folder, set()) == 1
    assert check(folder, {frozenset({"knear/io/a", "knear/io/b"})}) == 0
    assert check(folder, {frozenset({"x", "y"})}) == 2


def main():
    sys.setrecursionlimit(10000)
    if len(sys.argv) > 2:
        with contextlib.redirect_stdout(None):
            self_test(pathlib.Path(sys.argv[2]))
    sys.exit(check(pathlib.Path(sys.argv[1]), KNOWN) > 0)


if __name__ == "__main__":
    main()
