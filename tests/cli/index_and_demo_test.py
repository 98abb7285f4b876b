"""An index, built, searched and checked; and the demonstration with its report."""

import json
import math
import os
import pathlib
import random
import re

from program_cases import (
    ProgramTest,
    brute_force,
    main,
    not_sanitised,
    read_vecs,
    write_idx,
    write_vecs,
)


class Index(ProgramTest):
    def build(self, *more, base="base.bvecs", out="a.knear"):
        return self.ok("build", "--base", base, "--index", "Flat", "--out", out, *more)

    def search_index(self, *more):
        return self.ok("search", "--index", "a.knear", "--queries", "queries.bvecs", *more)

    def test_search_equals_that_of_the_base(self):
        write_vecs(self.path("allowed.ivecs"), [list(range(0, 300, 3))], "i")
        for metric in ("l2", "ip", "cosine"):
            for base in ("base.bvecs", "base.fvecs"):
                if base == "base.fvecs":
                    floats = [[x + 0.25 for x in row] for row in self.base]
                    write_vecs(self.path(base), floats, "f")
                made = json.loads(self.build("--metric", metric, "--json", base=base))
                self.assertEqual(
                    (made["rows"], made["metric"], made["index"]), (300, metric, "Flat")
                )
                for more in (
                    [],
                    ["--filter", "allowed.ivecs"],
                    ["--radius", "40"],
                    ["--memory", "8M"],
                    ["--threads", "1"],
                ):
                    outputs = ["-k", "6", "--out", "b.ivecs", "--distances", "b.fvecs", *more]
                    self.ok(
                        "search",
                        "--base",
                        base,
                        "--queries",
                        "queries.bvecs",
                        "--metric",
                        metric,
                        *outputs,
                    )
                    want = [self.file(f"b.{e}").read_bytes() for e in ("ivecs", "fvecs")]
                    self.search_index(*outputs)
                    got = [self.file(f"b.{e}").read_bytes() for e in ("ivecs", "fvecs")]
                    self.assertEqual(got, want, (metric, base, more))
                out = json.loads(self.search_index("-k", "4", "--json", "--metric", metric))
                self.assertEqual((out["metric"], out["rows"], out["dim"]), (metric, 300, 12))
                self.search_index("-k", "4", "--out", "t.ivecs")
                out = json.loads(self.search_index("-k", "4", "--json", "--truth", "t.ivecs"))
                self.assertEqual((out["recall"], out["recall_ids"]), (1, 1))

    def test_info_tells_of_the_graph_to_search_by(self):
        rows = random.Random(1)
        many = [[rows.random() for _ in range(4)] for _ in range(3000)]
        write_vecs(self.path("many.fvecs"), many, "f")
        build = ["build", "--base", "many.fvecs", "--out", "g.knear"]
        self.ok(*build, "--index", "Graph8")
        described = json.loads(self.ok("info", "g.knear", "--json"))["files"][0]
        self.assertEqual(described["graph_nodes"], 3000)
        self.assertGreater(described["graph_bytes"], 3000 * (4 + 8 * 4))
        self.assertIn("3000 nodes", self.ok("info", "g.knear"))
        self.ok(*build, "--index", "Flat")
        self.assertNotIn("graph_nodes", self.ok("info", "g.knear", "--json"))

    def test_codes(self):
        exactly = ["--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "4"]
        self.ok("search", *exactly, "--out", "t.ivecs")
        build = ["build", "--base", "base.bvecs", "--out", "a.knear", "--json"]

        def search(*more):
            return json.loads(self.search_index("-k", "4", "--truth", "t.ivecs", "--json", *more))

        made = json.loads(self.ok(*build, "--index", "IVF5,SQ8,RFlat"))
        self.assertEqual((made["rows"], made["index"]), (300, "IVF5,SQ8,RFlat"))
        described = json.loads(self.ok("info", "a.knear", "--json"))["files"][0]
        self.assertEqual(described["index"], "IVF5,SQ8,RFlat")
        found = search("--probes", "5", "--refine-factor", "50")
        self.assertNotIn("note", found)
        asked = search("--recall", "0.4")
        self.assertIn("recall of 4 neighbours was calibrated first", asked["note"])
        self.assertIn("'knear tune'", asked["note"])  # a search writes no index
        self.assertEqual((found["recall"], found["lists"]), (1, 5))
        self.assertEqual((found["promised_recall"], found["recall_argument"]), (0, "none"))
        asked = search("--recall", "0.5")
        self.assertEqual(asked["recall_argument"], "calibrated")
        self.assertGreaterEqual(asked["expected_recall"], 0.5)
        self.assertLess(asked["promised_recall"], 0.5)  # of fewer queries than 1,000
        tune = ["tune", "--index", "a.knear", "-k", "4"]
        self.assertIn("calibrated", self.ok(*tune))
        self.assertIn("calibrated", self.ok(*tune, "--base", "base.bvecs"))
        # Beside RFlat there are vectors, which tell what is nearest.
        self.assertIn("calibrated", self.ok(*tune, "--queries", "queries.bvecs"))
        self.ok("build", "--base", "base.bvecs", "--index", "IVF5,SQ8", "--out", "codes.knear")
        # The nearest code does not always stand for the nearest vector.
        self.ok("build", "--base", "base.bvecs", "--index", "PQ2x4", "--out", "coarse.knear")
        coarse = ["search", "--index", "coarse.knear", "--queries", "queries.bvecs", "-k", "4"]
        out = json.loads(self.ok(*coarse, "--truth", "t.ivecs", "--json"))
        self.assertLess(out["recall"], 0.9)
        self.assertEqual(out["recall"], out["recall_ids"])
        self.assertEqual((out["short_queries"], out["recall_argument"]), (0, "none"))
        self.assertIn("by id; the index has no vectors", self.ok(*coarse, "--truth", "t.ivecs"))
        self.assertIn("with respect to the vectors", self.ok(*coarse, "--method", "exact"))
        self.fails(
            1, *coarse, "--method", "exact", "--recall", "0.5", says="exact, but recall is 0.5"
        )
        self.ok("build", "--base", "base.bvecs", "--index", "PQ2x4,RFlat", "--out", "fine.knear")
        self.assertIn("calibrated", self.ok("tune", "--index", "fine.knear", "-k", "4"))
        codes = ["tune", "--index", "codes.knear", "-k", "4"]
        self.fails(1, *codes, "--queries", "queries.bvecs", says="without base, the vectors")
        self.fails(1, *tune, "--base", "queries.bvecs", says="of the 300 rows that the index holds")
        self.ok("convert", "a.knear", "b.faiss")
        self.ok(
            "search", "--index", "b.faiss", "--queries", "queries.bvecs", "-k", "4", "--probes", "5"
        )
        index = ["search", "--index", "a.knear", "--queries", "queries.bvecs", "-k", "4"]
        out = json.loads(self.ok(*index, "--probes", "2", "--json", "--explain"))
        self.assertGreater(out["predicted_seconds"], 0)
        self.assertGreater(out["explain"]["predicted_coarse_seconds"], 0)
        self.assertGreaterEqual(out["explain"]["coarse_seconds"], 0)
        for line in ("lists put in order", "tables, or rows decoded", "codes of"):
            self.assertIn(line, self.ok(*index, "--probes", "2", "--explain"))
        for more, says in (
            ([], "neither probes nor recall is given"),
            (
                ["--probes", "2", "--certify"],
                "codes, as index IVF5,SQ8,RFlat has them, prove nothing",
            ),
            (["--probes", "2", "--refine-factor", "0"], "--refine-factor must be at least 1"),
            (["--recall", "0.5", "--refine-factor", "2"], "only one can be asked for"),
            (["--probes", "2", "--machine", "h200"], "--machine plans for scans of all rows"),
        ):
            with self.subTest(more=more):
                self.fails(1, *index, *more, says=says)
        self.ok(*build, "--index", "SQ4")
        self.assertEqual(search()["method"], "codes")
        self.fails(
            1,
            "build",
            "--base",
            "base.bvecs",
            "--out",
            "a.knear",
            "--index",
            "PQ99",
            says="99 parts do not divide",
        )
        self.fails(
            1,
            *exactly[:0],
            "search",
            *exactly,
            "--refine-factor",
            "2",
            says="--refine-factor is 2, but there are no codes to refine",
        )

    def test_inverted_lists(self):
        exactly = ["--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "4"]
        self.ok("search", *exactly, "--out", "t.ivecs")
        build = ["build", "--base", "base.bvecs", "--out", "a.knear", "--json"]
        made = json.loads(self.ok(*build, "--index", "IVF10,Flat"))
        self.assertEqual((made["rows"], made["index"]), (300, "IVF10,Flat"))
        self.assertGreaterEqual(made["seconds"], made["train_seconds"])
        described = json.loads(self.ok("info", "a.knear", "--json"))["files"][0]
        self.assertEqual(described["index"], "IVF10,Flat")

        def search(*more):
            return json.loads(self.search_index("-k", "4", "--truth", "t.ivecs", "--json", *more))

        few, all_lists = search("--probes", "2"), search("--probes", "10")
        self.assertEqual((few["method"], few["lists"], few["probes"]), ("inverted-lists", 10, 2))
        self.assertEqual((few["promised_recall"], few["recall_argument"]), (0, "none"))
        self.assertGreater(few["predicted_seconds"], 0)
        self.assertLess(few["probed_rows"], 300)
        self.assertLessEqual(few["recall"], 1)
        self.assertEqual((all_lists["recall"], all_lists["recall_argument"]), (1, "exact"))
        certain = search("--recall", "1")
        self.assertEqual((certain["recall"], certain["certified_queries"]), (1, few["queries"]))
        said = search("--probes", "2", "--certify")
        self.assertLessEqual(said["certified_queries"], said["queries"])
        # What was not asked for, and codes cannot do, reads like a failure.
        for more, told in ((["--certify"], True), ([], False)):
            text = self.search_index("-k", "4", "--probes", "2", "--explain", *more)
            self.assertEqual("answers certified exact" in text, told)
            self.assertEqual("\ncertified exact" in text, told)
        write_vecs(self.path("allowed.ivecs"), [[3, 140, 200, 299]], "i")
        allowed = ["-k", "4", "--probes", "1", "--filter", "allowed.ivecs", "--json"]
        self.assertGreater(json.loads(self.search_index(*allowed))["short_queries"], 0)
        self.assertEqual(json.loads(self.search_index(*allowed, "--widen"))["short_queries"], 0)
        self.assertIn("of 10 lists probed", self.search_index("-k", "4", "--probes", "2"))
        # The same file for the same seed; what is drawn is up to the seed.
        parts = ["build", "--base", "base.bvecs", "--index", "IVF10,Flat", "--train", "50"]
        for out, seed in (("b", "1"), ("c", "1"), ("d", "2")):
            self.ok(*parts, "--seed", seed, "--iterations", "3", "--out", f"{out}.knear")
        files = [self.file(f"{out}.knear").read_bytes() for out in "bcd"]
        self.assertEqual(files[0], files[1])
        self.assertNotEqual(files[0], files[2])

        index = ["search", "--index", "a.knear", "--queries", "queries.bvecs", "-k", "4"]
        self.assertIn("lists put in order", self.ok(*index, "--probes", "2", "--explain"))
        for more, says in (
            ([], "neither probes nor recall is given"),
            (["--probes", "11"], "probes must be between 1 and the 10 lists, but is 11"),
            (["--probes", "2", "--recall", "1"], "only one of them can be asked for"),
            (["--probes", "2", "--method", "threshold-heap"], "has only auto and exact"),
            (["--method", "threshold-heap"], "has only auto and exact"),
            (["--probes", "2", "--machine", "h200"], "--machine plans for scans of all rows"),
        ):
            with self.subTest(more=more):
                self.fails(1, *index, *more, says=says)
        for more, says in (
            (["--train", "5"], "--train is 5, but training 10 lists"),
            (["--train", "301"], "--train is 301, but base.bvecs has 300 rows"),
            (["--train", "0"], "--train must be at least 1, but is 0"),
            (["--iterations", "0"], "--iterations must be at least 1, but is 0"),
        ):
            with self.subTest(more=more):
                self.fails(1, *build, "--index", "IVF10,Flat", *more, says=says)
        self.fails(1, *build, "--index", "IVF301,Flat", says="--base is 300 rows")
        for option in "--train", "--iterations", "--seed":
            says = f"{option} is 3, but Flat learns nothing"
            self.fails(1, *build, "--index", "Flat", option, "3", says=says)
        says = "--iterations is 3, but index SQ8 has no inverted lists"
        self.fails(1, *build, "--index", "SQ8", "--iterations", "3", says=says)

    def test_all_within_a_radius_of_refined_codes_are_found(self):
        build = ["build", "--base", "base.bvecs", "--out", "a.knear"]
        self.ok(*build, "--index", "IVF4,PQ2x4,RFlat")
        ids, distances = brute_force(self.queries, self.base, 300)
        radius = sorted(row[1] for row in distances)[8]
        want = [
            [i for i, d in zip(*pair, strict=True) if d <= radius]
            for pair in zip(ids, distances, strict=True)
        ]
        self.assertTrue(any(want) and any(len(row) < 3 for row in want))
        search = ["--probes", "4", "--radius", radius, "--json"]
        told = json.loads(self.search_index("-k", "3", *search, "--out", "n.ivecs"))
        near = [[i for i in row if i >= 0] for row in read_vecs(self.path("n.ivecs"), "i")]
        self.assertEqual(near, [row[:3] for row in want])
        self.assertEqual(told["k"], 3)
        self.assertEqual(told["results_per_query"], sum(map(len, near)) / 17)
        self.assertEqual(told["queries_with_more_than_k"], sum(len(row) > 3 for row in want))
        self.fails(
            1,
            *("search", "--index", "a.knear", "--queries", "queries.bvecs", "-k", "3"),
            *search,
            *("--refine-factor", "1"),
            says="--refine-factor is 1, but a range search has no number of neighbours",
        )

    def test_an_index_that_is_chosen(self):
        build = ["build", "--base", "base.bvecs", "--index", "auto", "--out", "a.knear"]
        made = json.loads(self.ok(*build, "--memory", "1M", "--batch", "10", "--json"))
        self.assertEqual(made["index"], "Flat")
        self.assertTrue(made["reason"].startswith("Flat: 300 x 12 are compared faster"))
        self.assertIn("Flat: 300 x 12 are compared", self.ok(*build))
        self.assertIn("Flat: a recall of 1 is certain", self.ok(*build, "--recall", "1"))
        for more, says in (
            (["--memory", "1k"], "memory is 1024 bytes, but 300 x 12 take"),
            (["--recall", "2"], "--recall must be in (0, 1], but is 2"),
            (["--batch", "0"], "--batch must be at least 1, but is 0"),
            (["--train", "100"], "--train is 100, but Flat learns nothing"),
        ):
            with self.subTest(more=more):
                self.fails(1, *build, *more, says=says)
        build[4] = "Flat"
        self.fails(1, *build, "--batch", "3", says="--batch is for --index auto, but --index is Fl")
        # With more rows, only some are measured.
        draw = random.Random(1)
        rows = [[draw.randrange(256) for _ in range(8)] for _ in range(6000)]
        write_vecs(self.path("many.bvecs"), rows, "B")
        build = ["build", "--base", "many.bvecs", "--index", "auto", "--out", "a.knear"]
        made = json.loads(self.ok(*build, "--batch", "1", "--json"))
        self.assertTrue(made["reason"].startswith(made["index"] + ": measured on 1800 vectors for"))
        self.assertIn(f"knear index {made['index']}", self.ok("info", "a.knear"))
        write_vecs(self.path("nan.fvecs"), [*rows[:3000], [1.0] * 7 + [float("nan")]], "f")
        build[2] = "nan.fvecs"
        self.fails(1, *build, says="--base must be finite, but row 3000 column 7 is nan")

    def test_indexes_from_and_for_faiss(self):
        for kind in ("Flat", "IVF7,Flat"):
            build = ["build", "--base", "base.bvecs", "--index", kind, "--out", "a.knear"]
            self.ok(*build)
            self.assertIn(f"{kind}, 300 x 12", self.ok("convert", "a.knear", "a.faiss"))
            self.assertIn(f"{kind}, 300 x 12", self.ok("convert", "a.faiss", "b.knear"))
            more = ["--queries", "queries.bvecs", "-k", "4", "--out", "n.ivecs"]
            more += ["--probes", "3"] if kind != "Flat" else []
            answers = []
            for index in ("a.knear", "b.knear", "a.faiss"):
                self.ok("search", "--index", index, *more)
                answers.append(self.file("n.ivecs").read_bytes())
            self.assertEqual(answers, answers[:1] * 3)
            self.assertIn(f"FAISS's file of an index {kind}, ", self.ok("info", "a.faiss"))
            (about,) = json.loads(self.ok("info", "a.faiss", "--json"))["files"]
            self.assertEqual((about["format"], about["index"], about["rows"]), ("faiss", kind, 300))
        says = "which is no .knear file, but one of FAISS, of which 'knear convert' makes one"
        self.fails(1, "tune", "--index", "a.faiss", says=says)
        self.fails(1, "tune", "--index", "base.bvecs", says="base.bvecs is no .knear file\n")
        self.fails(1, "tune", "--index", "none.faiss", says="cannot open 'none.faiss'")
        says = "--out must end in .knear, but is 'z.faiss': 'knear convert' makes"
        self.fails(1, *build[:-1], "z.faiss", says=says)
        self.fails(1, "convert", "a.faiss", "b.npy", says="must end in .knear or .faiss")
        self.fails(1, "convert", "a.faiss", "b.knear", "--rows", "1:", says="--rows is 1:")
        cut = self.file("a.faiss").read_bytes()[:-3]
        self.file("cut.faiss").write_bytes(cut)
        self.fails(1, "convert", "cut.faiss", "b.knear", says="its lists have 300 rows")
        self.file("other.faiss").write_bytes(b"INSf" + bytes(99))
        says = "other.faiss holds an IndexNSGFlat (INSf), which knear does not read"
        self.fails(1, "convert", "other.faiss", "b.knear", says=says)
        search = ["--queries", "queries.bvecs", "-k", "4", "--out", "n.ivecs"]
        self.fails(1, "search", "--index", "other.faiss", *search, says=says)
        self.fails(1, "info", "other.faiss", says=says)

    def test_optimize_keeps_a_prefix_or_says_that_none_pays(self):
        self.assertIn("0 of 300 rows are searched by a prefix", self.build("--optimize"))
        self.assertEqual(json.loads(self.build("--optimize", "--json"))["optimized_rows"], 0)
        self.assertNotIn("optimized_rows", json.loads(self.build("--json")))
        # The first of 256 coordinates matter most.
        spread = [100 / (1 + j) for j in range(256)]
        draw = random.Random(1)
        rows = [[round(100 + s * (draw.random() - 0.5)) for s in spread] for _ in range(9000)]
        write_vecs(self.path("many.bvecs"), rows, "B")
        write_vecs(self.path("queries.bvecs"), rows[:40], "B")
        self.build(base="many.bvecs")
        self.search_index("-k", "5", "--out", "b.ivecs")
        want = self.file("b.ivecs").read_bytes()
        made = self.build("--optimize", base="many.bvecs")
        self.assertIn("9000 of 9000 rows are searched by a prefix", made)
        self.assertIn("9000 x 256 u8", self.ok("info", "a.knear"))
        one = ["--choose", "columns=16", "--first-pass", "prefix"]
        for more in ([], ["--threads", "1"], ["--memory", "64M"], one):
            self.search_index("-k", "5", "--out", "c.ivecs", *more)
            self.assertEqual(self.file("c.ivecs").read_bytes(), want, more)
        write_vecs(self.path("queries.bvecs"), rows[:1], "B")
        out = json.loads(self.search_index("-k", "5", "--json"))
        self.assertEqual((out["first_pass"], out["prepare_seconds"]), ("prefix", 0))

    def test_info_checks_every_section(self):
        self.assertIn("a.knear: Flat, 300 x 12 u8, l2", self.build())
        self.assertIn("300 x 12 u8, l2", self.ok("info", "a.knear"))
        out = json.loads(self.ok("info", "--json", "a.knear", "base.bvecs"))["files"]
        self.assertEqual([file["format"] for file in out], ["knear", "bvecs"])
        self.assertTrue(out[0]["verified"])
        whole = self.file("a.knear").read_bytes()
        self.file("cut.knear").write_bytes(whole[:-100])
        self.fails(1, "info", "cut.knear", says="is cut off")
        altered = bytearray(whole)
        altered[whole.index(b"0/integer/codes") + 3000] ^= 1
        self.file("altered.knear").write_bytes(altered)
        self.fails(1, "info", "altered.knear", says="section '0/")
        self.fails(
            1,
            "search",
            "--index",
            "altered.knear",
            "--queries",
            "queries.bvecs",
            "-k",
            "2",
            "--out",
            "c.ivecs",
            says="section '0/",
        )
        self.file("text.knear").write_bytes(b"text" * 50)
        self.fails(1, "info", "text.knear", says="is no .knear file")

    def test_files_that_hold_no_index(self):
        search = ["search", "--queries", "queries.bvecs", "-k", "2", "--out", "n.ivecs", "--index"]
        neither = "is neither a .knear file nor a FAISS index file\n"
        for name, says in (
            ("other", neither),
            ("other.bin", neither),
            ("other.knear", "other.knear is no .knear file\n"),
            ("other.faiss", "at byte 0: no index of FAISS begins like this\n"),
        ):
            self.file(name).write_bytes(bytes(range(7, 250)))
            with self.subTest(name=name):
                self.fails(1, *search, name, says=says)
                if says != neither:  # others may be vectors
                    self.fails(1, "info", name, says=says)
                    self.fails(1, "convert", name, "a.knear", says=says)

    def test_wrong_values(self):
        self.build()
        both = ["--queries", "queries.bvecs", "-k", "3"]
        self.fails(2, "search", *both, says="one of --base and --index")
        self.fails(
            2,
            "search",
            "--base",
            "base.bvecs",
            "--index",
            "a.knear",
            *both,
            says="--base is base.bvecs and --index is a.knear, but only one of them",
        )
        self.fails(
            1,
            "search",
            "--index",
            "a.knear",
            *both,
            "--metric",
            "ip",
            says="--metric is ip, but a.knear was built for l2",
        )
        self.fails(1, "search", "--index", "none.knear", *both, says="none.knear")
        self.fails(1, "search", "--index", "base.bvecs", *both, says="neither a .knear file nor")
        write_vecs(self.path("wide.fvecs"), [[1.0] * 7], "f")
        self.fails(
            1,
            "search",
            "--index",
            "a.knear",
            "--queries",
            "wide.fvecs",
            "-k",
            "3",
            says="queries have 7 columns, index has 12",
        )
        write_vecs(self.path("beyond.ivecs"), [[3, 300]] * 17, "i")
        self.fails(
            1,
            "search",
            "--index",
            "a.knear",
            *both,
            "--filter",
            "beyond.ivecs",
            says="filter holds id 300, which the index does not hold",
        )
        self.fails(
            1,
            "search",
            "--index",
            "a.knear",
            "--queries",
            "queries.bvecs",
            "-k",
            "2",
            "--truth",
            "beyond.ivecs",
            says="--truth names id 300 for query 0",
        )
        build = ["build", "--base", "base.bvecs"]
        self.fails(2, *build, "--out", "b.knear", says="--index is required")
        self.fails(
            1,
            *build,
            "--index",
            "IVF16,PQ8",
            "--out",
            "b.knear",
            says="factory 'IVF16,PQ8' has 'PQ8' at place 7",
        )
        self.fails(1, *build, "--index", "Flat", "--out", "b.bin", says="must end in .knear")
        self.fails(1, *build, "--index", "Flat", "--out", "no/b.knear", says="no/b.knear")
        self.fails(
            1,
            *build,
            "--index",
            "Flat",
            "--out",
            "b.knear",
            "--train",
            "100",
            says="--train is 100, but Flat learns nothing",
        )
        self.fails(1, *build, "--index", "Flat", "--out", "b.knear", "--metric", "l3", says="l3")
        self.fails(
            1,
            "build",
            "--base",
            "none.fvecs",
            "--index",
            "Flat",
            "--out",
            "b.knear",
            says="none.fvecs",
        )
        bad = [[1.0] * 12, [math.nan] * 12]
        write_vecs(self.path("nan.fvecs"), bad, "f")
        self.fails(
            1, "build", "--base", "nan.fvecs", "--index", "Flat", "--out", "b.knear", says="row 1"
        )
        self.assertFalse(self.file("b.knear").exists())


class Demo(ProgramTest):
    def make_images(self, folder="data"):
        """Ten kinds of 8 x 8 pictures: a bright bar at one of ten places, and noise."""
        source = random.Random(3)
        os.makedirs(self.path(f"{folder}/fashion-mnist"))

        def images(count):
            pixels, labels = [], []
            for i in range(count):
                kind = i % 10
                row = [source.randrange(40) for _ in range(64)]
                for j in range(kind * 6, kind * 6 + 6):
                    row[j] = 200 + source.randrange(56)
                pixels += row
                labels.append(kind)
            return pixels, labels

        for name, count in (("train", 400), ("t10k", 60)):
            pixels, labels = images(count)
            stem = self.path(f"{folder}/fashion-mnist/{name}")
            write_idx(stem + "-images-idx3-ubyte.gz", pixels, (count, 8, 8))
            write_idx(stem + "-labels-idx1-ubyte.gz", labels, (count,))

    def check_report(self, path, pictures):
        html = pathlib.Path(path).read_text()
        self.assertTrue(html.startswith("<!doctype html>") and html.endswith("</html>\n"))
        self.assertEqual(html.count("<figure"), pictures)
        self.assertIn("<svg", html)
        for network in ("http:", "https:", "<script", "<link", "url("):
            self.assertNotIn(network, html)
        return html

    def test_images(self):
        self.make_images()
        out = self.ok("demo", "--data", "data")
        self.assertIn("queries per second", out)
        self.assertIn("20 random queries checked", out)
        self.assertIn("100.00 % of the queries get their label", out)
        self.assertIn("planned", out)
        # Ten kinds that are ten components: no path leads from one to another.
        self.assertIn("path     none: rows 9 and 6 lie in different components", out)
        self.assertIn("--names 'T-shirt,", out)
        html = self.check_report(self.path("knear-demo.html"), 10 * 11)
        self.assertEqual(html.count("data:image/png;base64,iVBORw0KGgo"), 10 * 11)

    def test_without_labels(self):
        self.make_images()
        for name in ("train", "t10k"):
            os.remove(self.path(f"data/fashion-mnist/{name}-labels-idx1-ubyte.gz"))
        self.assertNotIn("label", self.ok("demo", "--data", "data", "--report", "r.html"))
        self.check_report(self.path("r.html"), 8 * 11)

    def test_sift(self):
        source = random.Random(4)
        os.makedirs(self.path("data/sift"))
        for name, count in (("base", 200), ("queries", 30)):
            rows = [[source.randrange(256) for _ in range(128)] for _ in range(count)]
            write_vecs(self.path(f"data/sift/{name}.bvecs"), rows, "B")
        self.environment["KNEAR_DATA"] = self.path("data")
        # The images of a later place do not come before the descriptors of the named one.
        self.make_images("../shared/data")
        out = self.ok("demo", "--report", "sift.html", "--threads", 1)
        self.assertIn("SIFT", out)
        html = self.check_report(self.path("sift.html"), 8 * 11)
        # The path of the report is that of the commands, and the last line is one of them.
        base = self.path("data/sift/base.bvecs")
        self.ok("graph", "--base", base, "-k", 10, "--out", "g.knear")
        ends = ["--from", 0, "--to", 199]
        walk = self.ok("path", "--graph", "g.knear", "--base", base, *ends, "--json")
        path = json.loads(walk)["path"]
        self.assertEqual(re.findall(r"<i>row (\d+)</i>", html), [str(i) for i in path])
        self.assertIn(f"from row 0 to row 199 in {len(path) - 1} steps", out)
        last = out.splitlines()[-1]
        self.assertEqual(
            last, f"walk on  knear explore --base '{base}' --from 0 --to 199 --port 8080"
        )
        self.ok(
            "demo",
            "--base",
            "data/sift/base.bvecs",
            "--queries",
            "data/sift/queries.bvecs",
            "--report",
            "again.html",
        )

    def test_texts(self):
        # 300 rows of 12 columns, a number that no picture has.
        long = "grün " * 40
        # A terminal would obey the escape.
        base = [f"<row \x1b{i}>" for i in range(299)] + [long]
        self.file("base.txt").write_text("\n".join(base) + "\n")
        self.file("queries.txt").write_text("".join(f"query {i}\n" for i in range(17)))
        words = ["--base", "base.fvecs", "--queries", "queries.fvecs"]
        labels = ["--labels", "base.txt", "--query-labels", "queries.txt"]
        out = self.ok("demo", *words, *labels)
        self.assertIn("Texts: 300 rows x 12, 17 queries", out)
        self.assertRegex(out, r"loop     \S+ times as fast as a plain loop over all rows")
        # Five queries with their four nearest, as brute force has them. The row of 300 letters is
        # cut, and control characters are blanks.
        printed = [text.replace(chr(27), " ") for text in base[:299]] + [long[:90] + " ..."]
        shown = re.findall(r"\n  query (\d+)\n((?:    .*\n)+)", out)
        self.assertEqual(len(shown), 5)
        ids, distances = brute_force(self.queries, self.base, 10)
        for query, answers in shown:
            expected = [
                f"    {math.sqrt(d):.2f}  {printed[i]}"
                for i, d in list(zip(ids[int(query)], distances[int(query)], strict=True))[:4]
            ]
            self.assertEqual(answers.splitlines(), expected)
        path = re.search(
            r"\npath     from row 0 to row 299 in (\d+) steps.*\n((?: {11}.*\n)+)", out
        )
        self.assertEqual(len(path[2].splitlines()), int(path[1]) + 1)
        self.assertTrue(path[2].startswith("           <row  0>\n"))
        self.assertEqual(
            out.splitlines()[-1],
            "walk on  knear explore --base 'base.fvecs' --labels 'base.txt' --from 0 --to 299 "
            "--port 8080",
        )
        html = self.check_report(self.path("knear-demo.html"), 0)
        self.assertEqual(html.count("<div class='words'>"), 8)
        self.assertEqual(html.count("<li>"), 80)
        self.assertIn("of 300 texts, for 17 queries", html)
        self.assertIn("&lt;row ", html)
        self.assertIn("the speed of a plain loop", html)

    @not_sanitised
    def test_many_rows(self):
        # More than an exact graph is made of: nine neighbours in ten, and the report says so.
        source = random.Random(5)
        for name, count in (("base", 100001), ("queries", 20)):
            with open(self.path(f"{name}.bvecs"), "wb") as out:
                for _ in range(count):
                    out.write((128).to_bytes(4, "little") + source.randbytes(4) + bytes(124))
        words = ["--base", "base.bvecs", "--queries", "queries.bvecs", "--report", "r.html"]
        self.assertRegex(
            self.ok("demo", *words),
            r"from row 0 to row 100000 in \d+ steps, graph of recall 0\.9 made",
        )
        html = pathlib.Path(self.path("r.html")).read_text()
        self.assertIn(", with a recall of 0.9)", html)

    def test_errors(self):
        os.makedirs(self.path("empty"))
        self.fails(1, "demo", "--data", "empty", says="empty")
        self.make_images()
        self.fails(1, "demo", "--data", "data", "--report", "none/r.html", says="none/r.html")
        labels = self.path("data/fashion-mnist/train-labels-idx1-ubyte.gz")
        write_idx(labels, [1] * 399, (399,))
        self.fails(1, "demo", "--data", "data", says="399 labels")
        write_idx(labels, [1] * 390, (400,))
        self.fails(1, "demo", "--data", "data", says="labels")
        write_idx(labels, [11] * 400, (400,))
        self.fails(1, "demo", "--data", "data", says="11")
        files = ["demo", "--base", "base.bvecs", "--queries", "queries.bvecs"]
        self.fails(1, *files, says="12 columns")
        self.file("lines.txt").write_text("a\nb\n")
        self.file("queries.txt").write_text("a\n" * 17)
        self.file("base.txt").write_text("a\n" * 300)
        self.fails(2, *files, "--labels", "base.txt", says="--query-labels go together")
        labels = ["--labels", "base.txt", "--query-labels", "lines.txt"]
        self.fails(2, "demo", *labels, says="are for --base and --queries")
        self.fails(
            1,
            *files,
            *labels,
            says="--query-labels lines.txt has 2 labels in 4 bytes, but the file of queries has 17",
        )
        labels = ["--labels", "lines.txt", "--query-labels", "queries.txt"]
        self.fails(
            1, *files, *labels, says="lines.txt has 2 labels in 4 bytes, but the base has 300"
        )
        write_idx(self.path("lines.txt"), [1] * 300, (300,))
        self.fails(1, *files, *labels, says="lines.txt is an idx file of numbers")


if __name__ == "__main__":
    main()
