"""Each level's kernels are made of its own instructions, and of none that a lower level lacks.

    tests/aarch64/instructions_test.py OBJDUMP FOLDER

FOLDER holds the object files tile_kernels_*.cpp.o of a build for 64-bit ARM (they are looked for
below it), OBJDUMP is aarch64-linux-gnu-objdump. The loop that scores twelve queries must also
consist of multiply-adds: of the instructions that go to the vector pipes, 85 in a hundred or more.
"""

import collections
import pathlib
import re
import subprocess
import sys
import unittest

objdump = folder = ""

# What a level's kernels must contain, and what they must not.
DOT, MATRIX = {"sdot", "udot"}, {"usdot", "sudot", "smmla", "ummla", "usmmla"}
LEVELS = {
    "portable": (set(), DOT | MATRIX),
    "neon": ({"fmla", "smull", "smull2"}, DOT | MATRIX),
    "neon_dot": ({"fmla", "sdot"}, MATRIX),
    "neon_i8mm": ({"fmla", "usdot", "usmmla"}, set()),
}
# Of a vector instruction the first operand names a vector register. Loads and stores go to other
# pipes.
VECTOR = re.compile(r"v\d+\.|[qdsh]\d+,")
MEMORY = re.compile(r"(ld|st)")


def disassembled(level):
    found = sorted(pathlib.Path(folder).rglob(f"tile_kernels_{level}.cpp.o"))
    if len(found) != 1:
        raise AssertionError(f"{len(found)} files tile_kernels_{level}.cpp.o below {folder}")
    text = subprocess.run(
        [objdump, "-d", "--no-show-raw-insn", found[0]], check=True, capture_output=True, text=True
    ).stdout
    lines = re.findall(r"^\s*([0-9a-f]+):\t(\S+)[ \t]*(.*)$", text, re.MULTILINE)
    return [(int(at, 16), name, operands) for at, name, operands in lines]


def innermost_loops(instructions):
    """Each loop that has no other in it."""
    place = {at: i for i, (at, _, _) in enumerate(instructions)}
    ranges = []
    for i, (at, name, operands) in enumerate(instructions):
        target = re.search(r"\b([0-9a-f]+) <", operands)
        if name.startswith(("b.", "cb", "tb")) and target and int(target[1], 16) <= at:
            ranges.append((place[int(target[1], 16)], i))
    for begin, end in ranges:
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in ranges):
            yield instructions[begin : end + 1]


class Instructions(unittest.TestCase):
    def test_levels_have_their_own(self):
        for level, (wanted, forbidden) in LEVELS.items():
            with self.subTest(level=level):
                there = {name for _, name, _ in disassembled(level)}
                self.assertLessEqual(wanted, there)
                self.assertFalse(forbidden & there)

    def test_loops_are_products(self):
        for level, product in (("neon_dot", "sdot"), ("neon_i8mm", "usmmla")):
            shares = []
            for loop in innermost_loops(disassembled(level)):
                names = collections.Counter(
                    name
                    for _, name, operands in loop
                    if VECTOR.match(operands) and not MEMORY.match(name)
                )
                if names[product] >= 24:  # a step of twelve queries and eight rows
                    shares.append(names[product] / names.total())
            with self.subTest(level=level):
                self.assertGreaterEqual(len(shares), 4)  # certified, integer, collect, self-join
                self.assertGreaterEqual(min(shares), 0.85)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    objdump, folder = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
