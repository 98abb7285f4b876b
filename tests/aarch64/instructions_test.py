"""Each level's kernels are made of its own instructions, and of none that a lower level lacks.

    tests/aarch64/instructions_test.py OBJDUMP FOLDER

FOLDER holds the object files tile_kernels_*.cpp.o of a build for 64-bit ARM (they are looked for
below it), OBJDUMP is aarch64-linux-gnu-objdump. How busy loops keep the pipes: scripts/pipe_slots.
"""

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
    "neon": ({"fmla", "smull", "smull2", "sadalp"}, DOT | MATRIX),
    "neon_dot": ({"fmla", "sdot"}, MATRIX),
    "neon_i8mm": ({"fmla", "usdot", "usmmla"}, set()),
}


def disassembled(level):
    """The names of its instructions."""
    found = sorted(pathlib.Path(folder).rglob(f"tile_kernels_{level}.cpp.o"))
    if len(found) != 1:
        raise AssertionError(f"{len(found)} files tile_kernels_{level}.cpp.o below {folder}")
    text = subprocess.run(
        [objdump, "-d", "--no-show-raw-insn", found[0]], check=True, capture_output=True, text=True
    ).stdout
    return set(re.findall(r"^\s*[0-9a-f]+:\t(\S+)", text, re.MULTILINE))


class Instructions(unittest.TestCase):
    def test_levels_have_their_own(self):
        for level, (wanted, forbidden) in LEVELS.items():
            with self.subTest(level=level):
                there = disassembled(level)
                self.assertLessEqual(wanted, there)
                self.assertFalse(forbidden & there)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    objdump, folder = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
