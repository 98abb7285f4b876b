"""The commands that measure: `knear roofline` and `knear bench`."""

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree

from program_cases import ProgramTest, main, not_sanitised


class Roofline(ProgramTest):
    KEYS = {
        "fp32_flops",
        "bf16_flops",
        "int8_ops",
        "memory_bytes_per_second",
        "cop_per_second",
        "cycles_per_second",
        "threads",
        "int16_ops",
        "isa",
    }

    def test_measures_and_keeps(self):
        out = json.loads(self.ok("roofline", "--threads", 1, "--seconds", 0.3, "--json"))
        self.assertLessEqual(self.KEYS, out.keys())
        self.assertEqual(out["threads"], 1)
        for key in self.KEYS - {"isa", "threads", "bf16_flops"}:
            self.assertGreater(out[key], 1e6, key)
        self.assertTrue(out["bf16_flops"] is None or out["bf16_flops"] > 1e6)
        found = json.loads(self.search("-k", 3, "--threads", 1, "--json"))
        self.assertEqual(found["peaks"], "measured")
        # A stored file that makes no sense is ignored.
        self.file("cache/knear/roofline.json").write_text('{"a": [')
        found = json.loads(self.search("-k", 3, "--threads", 1, "--json"))
        self.assertEqual(found["peaks"], "estimated")

    @not_sanitised
    def test_measures_every_number_of_threads(self):
        out = json.loads(self.ok("roofline", "--seconds", 0.4, "--json"))
        threads = [each["threads"] for each in out["by_threads"]]
        self.assertEqual(threads[0], 1)
        self.assertEqual(threads[-1], out["threads"])
        self.assertEqual(threads, sorted(set(threads)))
        self.assertEqual(out["by_threads"][-1]["int8_ops"], out["int8_ops"])
        for cache in out["caches"]:
            self.assertGreater(cache["bytes_per_second"], 1e6)
        self.assertIn("1 thread", self.ok("roofline", "--threads", 1, "--seconds", 0.2))

    def test_other_machines(self):
        sheet = json.loads(self.ok("roofline", "--machine", "tpu-v4", "--json"))
        self.assertEqual((sheet["bf16_flops"], sheet["cop_per_second"]), (274e12, 4.3e12))
        self.assertIsNone(sheet["int8_ops"])
        self.assertNotIn("threads", sheet)
        self.assertNotIn("cycles_per_second", sheet)  # no data sheet says it
        self.assertIn("NVIDIA H200", self.ok("roofline", "--machine", "h200"))
        there = json.loads(self.search("-k", 3, "--machine", "h200", "--json"))["machine"]
        self.assertEqual(there["name"], "h200")
        self.assertGreater(there["predicted_seconds"], 0)
        self.assertIn("on TPU v3: ", self.search("-k", 3, "--machine", "tpu-v3"))
        for command in (["roofline"], ["search", "--base", "b", "--queries", "q", "-k", 1]):
            self.fails(1, *command, "--machine", "h20", says="v100, a100, tpu-v3, tpu-v4, h200")
        self.fails(2, "roofline", "--machine", "h200", "--threads", 1, says="--threads")

    def test_the_constants_of_the_model(self):
        constants = json.loads(self.ok("roofline", "--model", "--json"))
        self.assertEqual(constants["scan_efficiency"], 0.9)
        self.assertEqual(constants["call_seconds"], 4e-6)
        self.assertGreater(min(constants.values()), 0)
        lines = self.ok("roofline", "--model").splitlines()
        for name, value in constants.items():
            (line,) = [line for line in lines if line.split()[:1] == [name]]
            self.assertEqual(float(line.split()[1]), value)
            self.assertGreater(len(line.split()), 3, name)
        self.fails(2, "roofline", "--model", "--threads", 1, says="--threads")
        self.fails(2, "roofline", "--model", "--machine", "h200", says="--machine")

    def test_a_prefix_is_predicted_by_its_columns(self):
        out = json.loads(self.search("-k", 3, "--first-pass", "prefix", "--json", "--explain"))
        self.assertEqual(out["first_pass"], "prefix")
        self.assertGreaterEqual(out["prefix_columns"], 8)
        self.assertGreater(out["predicted_seconds"], 0)
        self.assertNotIn("prefix_columns", json.loads(self.search("-k", 3, "--json")))

    def test_wrong_values(self):
        for more in (["--threads", "-1"], ["--seconds", "0"], ["--seconds", "-2"]):
            self.fails(1, "roofline", *more)
        self.environment["KNEAR_ISA"] = "abacus"
        self.fails(1, "roofline", says="abacus")


class Bench(ProgramTest):
    def test_exact_times_every_first_pass(self):
        out = json.loads(
            self.ok("bench", "exact", "--rows", 2000, "--count", 20, "--repeat", 2, "--json")
        )
        self.assertEqual((out["rows"], out["queries"]), (2000, 20))
        passes = {line["asked"]: line for line in out["passes"]}
        self.assertEqual(set(passes), {"auto", "integer", "int8", "int16", "fp32", "prefix"})
        for line in passes.values():
            self.assertEqual(len(line["all_seconds"]), 2)
            self.assertGreater(line["peak_fraction"], 0)

    @not_sanitised
    def test_a_pass_that_does_not_fit_the_data_is_named(self):
        made = ["bench", "exact", "--set", "f32", "--rows", 2000, "--count", 20, "--repeat", 1]
        out = json.loads(self.ok(*made, "--json"))
        refused = [line["asked"] for line in out["passes"] if "refusal" in line]
        self.assertEqual(refused, ["integer"])
        self.assertIn("integer: ", self.ok(*made))

    def test_files_and_wrong_values(self):
        self.ok(
            "bench", "exact", "--base", "base.bvecs", "--queries", "queries.bvecs", "--repeat", 1
        )
        self.ok("bench", "exact", "--set", "f32", "--rows", 3000, "--repeat", 1, "--prepared")
        for more in (["--repeat", "0"], ["--set", "f64"], ["--dim", "0"], ["-k", "0"]):
            self.fails(1, "bench", "exact", *more)

    def test_threshold_heap_draws_the_figures_of_its_paper(self):
        tiny = [
            "bench",
            "threshold-heap",
            "--rows",
            2000,
            "--dim",
            16,
            "-k",
            10,
            "--count",
            30,
            "--most",
            64,
            "--matrix",
            5,
            "--repeat",
            2,
        ]
        for metric, kind, name in (("l2", "u8", "figures.html"), ("ip", "f32", "figures.svg")):
            out = json.loads(
                self.ok(*tiny, "--metric", metric, "--set", kind, "--out", name, "--json")
            )
            self.assertEqual((out["rows"], out["queries"], out["most_queries"]), (2000, 30, 64))
            figures = {(one["figure"], one["of"]): one["points"] for one in out["figures"]}
            self.assertEqual(
                set(figures),
                {(number, "searches") for number in ("5", "6", "7", "8", "9", "10", "12")}
                | {(number, "selection") for number in ("6", "10", "11")},
            )
            at = {key: [point["at"] for point in points] for key, points in figures.items()}
            self.assertEqual(at["5", "searches"], [10, 20, 40, 80, 160, 320, 640, 1280])
            self.assertEqual(at["11", "selection"], [10, 32, 64, 128])  # 8 * 256 are too many
            self.assertEqual(at["10", "selection"], [125, 250, 500, 1000, 2000])
            # The points are a quarter of a decade apart; from 63 rows 80 cannot be sampled.
            self.assertEqual(at["10", "searches"], [112, 200, 356, 632, 1125, 2000])
            self.assertEqual(at["12", "searches"], [4, 8, 16, 32, 64])
            pruned = [point["compression_ratio"] for point in figures["5", "searches"]]
            self.assertGreater(pruned[-1], 2 * pruned[0])
            for point in figures["5", "searches"]:
                if metric == "ip":  # products are no distances
                    self.assertIsNone(point["threshold_ratio"])
                else:
                    self.assertLessEqual(point["threshold_ratio"], 1)
            for key in (
                "threshold_heap",
                "sampling",
                "bitonic",
                "radix_sort",
                "radix_select",
                "scan",
                "select_k",
            ):
                for point in figures["11", "selection"]:
                    self.assertGreater(point[f"{key}_seconds"], 0)
                    self.assertEqual(len(point["rounds"][f"{key}_seconds"]), 2)
            for point in figures["10", "searches"] + figures["12", "searches"]:
                self.assertGreater(point["exact_seconds"], 0)
                self.assertGreater(point["threshold_heap_over_exact"], 0)
                self.assertGreater(point["prefix_seconds"], 0)
            for point in figures["10", "searches"]:
                self.assertGreater(point["partial_reduce_seconds"], 0)
                self.assertEqual(len(point["rounds"]["partial_reduce_seconds"]), 2)
            drawn = xml.etree.ElementTree.parse(self.path(name)).getroot()
            texts = "".join(drawn.itertext())
            for number in (5, 6, 7, 8, 9, 10, 11, 12):
                self.assertIn(f"Figure {number}, ", texts)
            if name.endswith(".html"):  # where a title stands in one piece
                self.assertIn("Figure 10, whole searches: ", texts)
                self.assertIn("Figure 10, selection alone: ", texts)
            self.assertIn("partial-reduce", texts)

    # Benches run on a GPU if there is one; these tests need one.
    def test_devices_are_looked_for_before_anything_is_measured(self):
        missing = ["--base", "none.bvecs", "--queries", "none.bvecs"]
        for name in "exact", "threshold-heap":
            self.fails(1, "bench", name, *missing, "--device", "cuda:99", says="99")
            self.fails(1, "bench", name, *missing, "--device", "gpu", says="cpu, cuda or cuda:N")
            self.fails(1, "bench", name, *missing, "--device", "cpu", says="none.bvecs")

    def test_a_bench_without_a_gpu_says_so(self):
        files = [*("--base", "base.bvecs"), *("--queries", "queries.bvecs"), "--file", "a.knear"]
        made = ("recall", []), ("neighbors", []), ("kmeans", [])
        for name, more in ("index", files), ("model", ["--quick"]), *made:
            with self.subTest(name=name):
                says = f"device is cuda:1, but bench {name} runs on the processor alone"
                self.fails(1, "bench", name, *more, "--device", "cuda:1", says=says)
                self.fails(1, "bench", name, *more, "--device", "gpu", says="cpu, cuda or cuda:N")
        self.ok("bench", "index", *files, "--repeat", 1, "--device", "cpu")

    @not_sanitised
    def test_a_model_of_lists_that_nobody_has(self):
        words = ["bench", "model", "--quick", "--json", "--threads", 1, "--rows", 10**9]
        words += ["--dim", 96, "--lists", 65536, "--code-parts", 16, "--probes"]
        of = json.loads(self.ok(*words, 1, 64))
        self.assertEqual([one["probes"] for one in of["searches"]], [1, 64])
        few, many = of["searches"]
        self.assertGreater(few["queries_per_second"], 5 * many["queries_per_second"])
        self.assertGreater(many["seconds_alone"], few["seconds_alone"])
        self.assertGreater(of["add_seconds"], of["train_seconds"])
        self.assertIn("one alone, one thread", self.ok(*(w for w in words if w != "--json"), 1))
        self.fails(1, *words, 65537, says="--probes is 65537, but there are 65536 lists")
        self.fails(1, *words, 0, says="--probes must be at least 1, but is 0")
        self.fails(1, *words, 1, "-k", 0, says="-k must be at least 1, but is 0")
        self.fails(1, *words, 1, "--code-bits", 5, says="--code-bits must be 4 or 8, but is 5")
        self.fails(
            2, *words, 1, "--code-parts", 7, says="--code-parts is given 2 times, as 16 and 7"
        )
        few = ["bench", "model", "--rows", 5, "--dim", 6, "--probes", 1, "--lists"]
        self.fails(1, *few, 6, says="--lists is 6, but there are 5 rows")
        says = "--code-parts must divide --dim, which is 6, but is 4"
        self.fails(1, *few, 2, "--code-parts", 4, says=says)
        self.fails(2, *few, 2, "--code-bits", 4, says="--code-bits requires --code-parts")
        self.fails(2, *few, 2, "--repeat", 3, says="--repeat excludes --lists")
        self.fails(2, "bench", "model", "--rows", 5, says="--rows requires --lists")
        self.fails(2, "bench", "model", "--lists", 5, says="--lists requires --rows")

    def test_threshold_heap_prints_a_table_for_each_figure(self):
        out = self.ok(
            "bench",
            "threshold-heap",
            "--base",
            "base.bvecs",
            "--queries",
            "queries.bvecs",
            "-k",
            3,
            "--repeat",
            1,
            "--matrix",
            4,
        )
        for number in (5, 6, 7, 8, 9, 10, 11, 12):
            self.assertRegex(out, rf"(?m)^Figure {number}, ")

    def test_threshold_heap_refuses_wrong_values(self):
        for more, says in (
            (["-k", "0"], "-k"),
            (["--rows", "100", "-k", "13"], "-k"),
            (["--repeat", "0"], "--repeat"),
            (["--matrix", "0"], "--matrix"),
            (["--set", "f64"], "--set"),
            (["--out", "figures.png"], "--out"),
        ):
            self.fails(1, "bench", "threshold-heap", *more, says=says)
        self.fails(2, "bench", "threshold-heap", "--base", "base.bvecs", says="--queries")

    def test_recall_against_time(self):
        made = ["bench", "recall", "--set", "f32", "--rows", 3000, "--dim", 8, "--repeat", 1]
        names = "Flat", "IVF20,Flat", "IVF20,PQ4", "partial-reduce"
        kinds = [word for name in names for word in ("--index", name)]
        few = ["--count", 50, "--alone", 5, "--report", "plot.html", "--json"]
        out = json.loads(self.ok(*made, *kinds, *few))
        self.assertEqual((out["bench"], out["rows"], out["queries"]), ("recall", 3000, 50))
        flat, lists, codes, partial = out["indexes"]
        asked = [point["asked_recall"] for point in partial["points"]]
        self.assertEqual(asked, [0.5, 0.8, 0.9, 0.95, 0.98, 0.99])
        self.assertGreater(partial["points"][-1]["recall"], 0.95)
        self.assertNotIn("asked_recall", flat["points"][0])
        self.assertEqual([point["recall"] for point in flat["points"]], [1])
        for index in lists, codes:
            self.assertEqual([point["probes"] for point in index["points"]], [1, 2, 4, 8, 16])
            recalls = [point["recall"] for point in index["points"]]
            self.assertGreater(recalls[-1], recalls[0])
            self.assertGreater(index["points"][0]["alone_seconds"], 0)
        self.assertGreater(lists["points"][-1]["recall"], 0.95)
        self.assertGreater(lists["bytes_per_row"], 8 * 4)
        page = self.file("plot.html").read_text()
        for word in "IVF20,PQ4", "recall@10", "queries per second":
            self.assertIn(word, page)
        # All rows among themselves; no row is its own neighbour.
        graph = [*made[:-2], "--repeat", 1, "--graph", "--count", 100, "-k", 3, "--json"]
        out = json.loads(self.ok(*graph, "--index", "Flat", "--index", "IVF20,Flat"))
        self.assertEqual((out["queries"], out["graph"]), (3000, True))
        self.assertEqual(out["indexes"][0]["points"][0]["recall"], 1)
        self.assertLess(out["indexes"][1]["points"][0]["recall"], 1)
        files = ["bench", "recall", "--base", "base.bvecs", "--repeat", 1, "--probes", 2]
        self.assertIn("IVF", self.ok(*files, "--queries", "queries.bvecs"))
        self.assertIn("with building", self.ok(*files, "--graph"))
        for more, says in (
            (["--index", "IVF20"], "factory 'IVF20' has 'IVF20' at place 1"),
            (["--probes", 0], "--probes must be at least 1"),
            (["--alone", -1], "--alone must not be negative, but is -1"),
            (["-k", 3000], "-k is 3000, but there are 3000 rows"),
            (["--report", "plot.txt"], "plot.txt"),
            (["--device", "cuda"], "runs on the processor alone"),
            (["--graph", "--queries", "queries.bvecs"], "--queries is queries.bvecs, but only"),
        ):
            with self.subTest(more=more):
                self.fails(1, *made, *more, says=says)
        self.fails(1, *made, *["--index", "Flat"] * 9, says="--index is given 9 times")

    def test_long_work_says_so_beforehand(self):
        for words, says in (
            (["recall", "--rows", 50000, "--dim", 64, "--index", "IVF64,Flat"], "50,000 x 64 u8"),
            (["neighbors", "--rows", 50000, "--dim", 64], "exact search, 50,000 x 64 u8"),
            (["exact", "--rows", 50000, "--dim", 64], "exact search, 50000 rows x 64 u8"),
            (["kmeans", "--rows", 50000, "--dim", 64], "k-means, 50,000 x 64 u8"),
            (["threshold-heap", "--rows", 50000, "--dim", 64], "TH-heap, 50000 rows x 64 u8"),
            (["model"], "searches of made vectors of 12 shapes"),
        ):
            with self.subTest(words=words):
                rounds = [] if words[0] == "kmeans" else ["--repeat", 1000]
                process = subprocess.Popen(
                    [self.program, "bench", *map(str, words + rounds)],
                    cwd=self.folder,
                    env=self.environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                self.addCleanup(process.communicate)
                self.addCleanup(process.kill)
                self.assertTrue(process.stdout.readline().startswith(says))
                self.assertIsNone(process.poll(), "it was over before it had said anything")

    def test_each_index_of_bench_recall_is_told_when_it_is_built(self):
        made = ["bench", "recall", "--rows", 3000, "--dim", 8, "--count", 50, "--repeat", 1]
        out = self.ok(*made, "--index", "Flat", "--index", "IVF20,Flat").splitlines()
        self.assertEqual(out[0].split(", ")[:2], ["3,000 x 8 u8 (made)", "50 queries"])
        self.assertRegex(out[2], r"\AFlat: built in .*, .* bytes a row\Z")
        self.assertRegex(out[3], r"\AIVF20,Flat: built in .* bytes a row\Z")
        self.assertTrue(out[5].startswith("index "))
        words = ["--rows", 50000, "--dim", 64, "--index", "IVF64,Flat", "--repeat", 100000]
        process = subprocess.Popen(
            [self.program, "bench", "recall", *map(str, words)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        process.stdout.readline()
        self.assertRegex(process.stdout.readline(), r"\Asearching takes up to \d+ min \d+ s, after")

    def test_figures_of_johnson_et_al(self):
        made = ["--rows", 2000, "--dim", 16]
        one = ["bench", "neighbors", *made, "--count", 20, "--most", 8, "--repeat", 1]
        out = json.loads(self.ok(*one, "--report", "plot.html", "--json"))
        self.assertEqual([point["k"] for point in out["points"]], [1, 2, 4, 8])
        self.assertIn("reading all scores", self.file("plot.html").read_text())
        self.assertIn("8-bit products", self.ok(*one))
        self.fails(1, *one[:2], "--most", 0, says="--most must be at least 1, but is 0")
        two = ["bench", "kmeans", *made, "-k", 5, "-k", 50, "--iterations", 3]
        runs = json.loads(self.ok(*two, "--threads", 2, "--json"))["runs"]
        self.assertEqual(
            [(run["k"], run["threads"]) for run in runs], [(5, 1), (50, 1), (5, 2), (50, 2)]
        )
        self.assertEqual(runs[0]["objective"], runs[2]["objective"])
        self.assertLess(runs[1]["objective"], runs[0]["objective"])
        self.assertIn("centroids", self.ok(*two, "--threads", 1))
        self.fails(1, *two, "-k", 2001, says="-k is 2001, but there are 2000 rows")
        self.fails(1, *two, "--queries", "queries.bvecs", says="but only rows of the base")


class BenchAnn(ProgramTest):
    """`knear bench ann` runs a Python program in its place."""

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("bin"))
        shutil.copy(self.program, self.path("bin"))
        self.program = self.path("bin/knear")

    def install(self, folder, program):
        os.makedirs(self.path(f"{folder}/support"))
        self.file(f"{folder}/support/ann_protocol.py").write_text("")
        self.file(f"{folder}/ann").write_text(program)

    def test_it_gets_all_words_as_they_are(self):
        repeat = "import sys, json; print(json.dumps(sys.argv[1:])); sys.exit(len(sys.argv))"
        self.install("share/knear/bench", repeat)
        for words in ([], ["--help"], ["-k", "5", "exact", "--", "--json=a b", "", "--version"]):
            result = self.run_program("bench", "ann", *words)
            self.assertEqual(json.loads(result.stdout), words)
            self.assertEqual((result.returncode, result.stderr), (len(words) + 1, ""))

    def test_where_it_is_looked_for(self):
        says = "neither installed beside this one (../share/knear/bench) nor above it"
        self.fails(1, "bench", "ann", "--help", says=says)
        self.install("bench", "print('of the tree')")
        self.assertEqual(self.ok("bench", "ann"), "of the tree\n")
        self.install("share/knear/bench", "print('installed')")
        self.assertEqual(self.ok("bench", "ann"), "installed\n")
        self.environment["PATH"] = self.path("cache")
        self.fails(1, "bench", "ann", says="there is no python3 on the PATH")

    def test_the_program_of_the_source_tree(self):
        bench = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
        os.symlink(os.path.abspath(bench), self.path("bench"))
        self.environment["PATH"] = os.pathsep.join(
            [os.path.dirname(sys.executable), self.environment.get("PATH", "")]
        )
        result = self.run_program("bench", "ann", "--help")
        if result.returncode == 0:
            self.assertTrue(result.stdout.startswith("usage: bench/ann"))
        else:  # without the packages that measuring needs
            self.assertRegex(result.stderr, r"\Aann: no Python package [^\n]+\n\Z")
        self.assertIn("ann ", self.ok("bench", "--help"))


if __name__ == "__main__":
    main()
