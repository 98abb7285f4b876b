"""knear serve, killed under load, within checkpoints and within starts: nothing answered is lost.

Three quarters of a minute of `bench/serve kills`, all kinds of index: the same kills in each run,
but for time.
"""

import os
import pathlib
import sys

from program_cases import ProgramTest, main, not_sanitised

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "support"))
import running_server


class Kills(ProgramTest):
    def setUp(self):
        super().setUp()
        if "KNEAR_SERVE is off" in self.run_program("serve", "--index", "none").stderr:
            self.skipTest("this build serves no indexes")
        os.environ["XDG_CACHE_HOME"] = self.environment["XDG_CACHE_HOME"]

    def check(self, kind, rounds):
        folder = self.file(kind.replace(" ", "-"))
        folder.mkdir()
        file = running_server.build(self.program, folder, kind, rows=300, dim=12, seed=1)
        counts = running_server.kill_rounds(
            self.program, file, 300, 12, rounds, seed=1, kind=kind, longest=0.3
        )
        self.assertEqual(counts["rounds"], rounds)
        self.assertGreater(counts["changes"], rounds)
        # And the shards of one manifest are there: a server removes what killed ones left.
        words = running_server.KINDS[kind][0]
        shards = int(words[words.index("--shards") + 1]) if "--shards" in words else 0
        self.assertEqual(len(list(folder.glob("base.knear.*.shard"))), shards)

    def test_flat(self):
        self.check("flat", 30)

    @not_sanitised
    def test_other_kinds(self):
        for kind in running_server.KINDS:
            if kind != "flat":
                with self.subTest(kind=kind):
                    self.check(kind, 9)


if __name__ == "__main__":
    main()
