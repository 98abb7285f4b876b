"""An index in shards and replicas: built, searched, described, converted, tuned; and in pieces."""

import json
import random

from program_cases import ProgramTest, main, write_vecs


class Shards(ProgramTest):
    def build(self, *more, index="Flat", out="a.knear"):
        return self.ok("build", "--base", "base.bvecs", "--index", index, "--out", out, *more)

    def shards(self):
        return sorted(path.name for path in self.file(".").glob("a.knear.*.shard"))

    def answers(self, index, *more):
        outputs = ["-k", "7", "--out", "o.ivecs", "--distances", "o.fvecs"]
        self.ok("search", "--index", index, "--queries", "queries.bvecs", *outputs, *more)
        return [self.file(f"o.{ending}").read_bytes() for ending in ("ivecs", "fvecs")]

    def told(self, *more):
        search = ["search", "--index", "a.knear", "--queries", "queries.bvecs", "-k", "3"]
        return json.loads(self.ok(*search, "--json", *more))

    def error(self, *arguments):
        return self.fails(1, *arguments).stderr

    def test_answers_are_those_of_one_index(self):
        write_vecs(self.path("allowed.ivecs"), [list(range(0, 300, 3))], "i")
        for index, more in (("Flat", []), ("IVF5,Flat", ["--probes", "2"])):
            for metric in ("l2", "ip", "cosine"):
                options = ["--metric", metric, "--json"]
                self.build(*options, index=index, out="one.knear")
                made = json.loads(self.build(*options, "--shards", "3", index=index))
                self.assertEqual((made["rows"], made["shards"], made["replicas"]), (300, 3, 1))
                self.assertEqual(len(self.shards()), 3)
                for filter in ([], ["--filter", "allowed.ivecs"], ["--threads", "1"]):
                    wanted = self.answers("one.knear", *more, *filter)
                    self.assertEqual(self.answers("a.knear", *more, *filter), wanted)
                    self.assertEqual(self.answers("a.knear", "--replicas", "2", *more, *filter),
                                     wanted)  # fmt: skip
        self.assertEqual(self.told("--probes", "1")["shards"], 3)

    def test_one_index_may_have_replicas(self):
        self.build()
        wanted = self.answers("a.knear")
        self.assertEqual(self.answers("a.knear", "--replicas", "2"), wanted)
        self.build("--replicas", "2")
        self.assertEqual(len(self.shards()), 1)
        self.assertEqual(self.answers("a.knear"), wanted)
        text = self.ok("info", "a.knear")
        self.assertIn("300 rows in a.knear.", text)

    def test_info_describes_every_shard(self):
        self.assertIn("in 2 shards x 3 replicas", self.build("--shards", "2", "--replicas", "3"))
        described = json.loads(self.ok("info", "a.knear", "--json"))["files"][0]
        self.assertEqual((described["rows"], described["replicas"]), (300, 3))
        self.assertEqual([shard["rows"] for shard in described["shards"]], [150, 150])
        self.assertEqual([shard["file"] for shard in described["shards"]], self.shards())
        self.assertTrue(described["verified"])
        text = self.ok("info", "a.knear")
        for name in self.shards():
            self.assertIn(f"150 rows in {name}", text)

    def test_building_again_replaces_all_files(self):
        self.build("--shards", "4")
        old = self.shards()
        self.build("--shards", "2")
        self.assertEqual(len(self.shards()), 2)
        self.assertFalse(set(old) & set(self.shards()))

    def test_a_missing_or_altered_shard(self):
        self.build("--shards", "3")
        name = self.shards()[1]
        shard = self.file(name)
        data = shard.read_bytes()
        altered = bytearray(data)
        altered[len(data) // 2] ^= 1
        for damage in (shard.unlink, lambda: shard.write_bytes(data[:-4096])):
            damage()
            search = ["search", "--index", "a.knear", "--queries", "queries.bvecs", "-k", "3"]
            self.assertIn(name, self.error(*search))
            self.assertIn(name, self.error("info", "a.knear"))
            out = self.told("--allow-partial")
            self.assertEqual((out["rows"], out["unsearched_rows"]), (200, 100))
            self.assertEqual(out["unsearched_shards"], [name])
            self.assertEqual((out["promised_recall"], out["shards"]), (0, 2))
            self.assertIn(name, self.ok(*search, "--allow-partial"))
        shard.write_bytes(bytes(altered))
        self.assertIn(name, self.error("info", "a.knear"))

    def test_convert_puts_shards_together(self):
        self.build("--shards", "3")
        wanted = self.answers("a.knear")
        for out in ("one.knear", "one.faiss"):
            self.ok("convert", "a.knear", out)
            self.assertEqual(self.answers(out), wanted)
        self.assertNotIn("shards", json.loads(self.ok("info", "one.knear", "--json"))["files"][0])

    def test_tune_keeps_what_it_measured_in_all_shards(self):
        source = random.Random(2)
        rows = [[source.gauss(0, 1) for _ in range(6)] for _ in range(4000)]
        write_vecs(self.path("base.fvecs"), rows, "f")
        build = ["build", "--base", "base.fvecs", "--index", "IVF16,Flat", "--out", "a.knear"]
        self.ok(*build, "--shards", "2")
        old = self.shards()
        points = json.loads(self.ok("tune", "--index", "a.knear", "-k", "5", "--json"))["points"]
        self.assertGreater(points[-1]["expected_recall"], 0.9)
        self.assertFalse(set(old) & set(self.shards()))
        write_vecs(self.path("q.fvecs"), rows[:50], "f")
        search = ["search", "--index", "a.knear", "--queries", "q.fvecs", "-k", "5", "--json"]
        out = json.loads(self.ok(*search, "--recall", "0.8"))
        self.assertGreaterEqual(out["expected_recall"], 0.8)
        self.assertGreater(out["promised_recall"], 0.6)  # of 50 queries
        self.assertLess(out["promised_recall"], 0.8)
        self.assertNotIn("calibrated first", out.get("note", ""))

    def test_what_is_refused(self):
        build = ["build", "--base", "base.bvecs", "--index", "Flat", "--out", "b.knear"]
        for option in ("--shards", "--replicas"):
            for value in ("0", "-2", "4097"):
                error = self.error(*build, option, value)
                self.assertIn(f"{option} must be between 1 and 4096, but is {value}", error)
        self.assertFalse(self.file("b.knear").exists())
        self.build("--shards", "2")
        search = ["search", "--queries", "queries.bvecs", "-k", "3"]
        indexed = [*search, "--index", "a.knear"]
        self.assertIn("--replicas must be", self.error(*indexed, "--replicas", "0"))
        plain = [*search, "--base", "base.bvecs"]
        self.assertIn("--replicas is for --index", self.error(*plain, "--replicas", "2"))
        self.assertIn("--allow-partial is for --index", self.error(*plain, "--allow-partial"))
        self.build(out="one.knear")
        one = [*search, "--index", "one.knear", "--allow-partial"]
        self.assertIn("one.knear is one file", self.error(*one))


if __name__ == "__main__":
    main()
