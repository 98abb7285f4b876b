"""knear serve on files that were damaged at rest: a line, or all that was answered.

A quarter of a minute of `bench/damage`, the same damages in each run.
"""

import os
import pathlib
import sys

from program_cases import ProgramTest, main, not_sanitised

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from support import damage


class Damages(ProgramTest):
    def check(self, kind, rounds):
        if "KNEAR_SERVE is off" in self.run_program("serve", "--index", "none").stderr:
            self.skipTest("this build serves no indexes")
        os.environ["XDG_CACHE_HOME"] = self.environment["XDG_CACHE_HOME"]
        folder = self.file("scene")
        folder.mkdir()
        scene = damage.make_scene(self.program, folder, kind, seed=1)
        counts = damage.rounds(self.program, scene, rounds, seed=1)
        self.assertEqual(counts["rounds"], rounds)
        self.assertGreater(counts["refused"], rounds // 3)

    def test_flat(self):
        self.check("flat", 240)

    @not_sanitised
    def test_lists_in_shards(self):
        self.check("lists in shards", 160)


if __name__ == "__main__":
    main()
