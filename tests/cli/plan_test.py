"""`knear plan`, and the descriptions of machines that `knear roofline --out` writes for it."""

import json
import math
import random

from program_cases import ProgramTest, main, write_vecs

MACHINE = {
    "name": "a machine",
    "isa": "avx512_vnni",
    "threads": 64,
    "fp32_flops": 7e12,
    "int8_ops": 28e12,
    "cop_per_second": 3e12,
    "memory_bytes_per_second": 400e9,
    "memory_bytes": 1e12,
    "network_bytes_per_second": 3e9,
    "network_latency_seconds": 3e-5,
    "price_per_hour": 4.5,
}


class Plan(ProgramTest):
    def setUp(self):
        super().setUp()
        self.write(MACHINE)

    def write(self, machine):
        self.file("machine.json").write_text(json.dumps(machine))

    def plan(self, *more, rows="1e9"):
        words = ["plan", "--rows", rows, "--dim", 96, "--machine", "machine.json", "--json", *more]
        return json.loads(self.ok(*words))

    def test_the_example_of_the_design(self):
        out = self.plan("--recall", 0.95, "--qps", 10000, rows="1e10")
        self.assertEqual((out["rows"], out["dim"], out["k"], out["recall"]), (10**10, 96, 10, 0.95))
        self.assertEqual((out["machine"], out["peaks"]), ("a machine", "described"))
        self.assertEqual(out["machines"], out["shards"] * out["replicas"])
        self.assertLessEqual(out["memory_bytes"], 0.8e12)
        self.assertGreaterEqual(out["shards"] * out["rows_of_shard"], 10**10)
        self.assertAlmostEqual(
            out["latency_seconds"],
            sum(out[f"{part}_seconds"] for part in ("service", "merge", "network", "wait")),
        )
        self.assertAlmostEqual(out["price_per_hour"], 4.5 * out["machines"])
        self.assertGreater(out["capacity_queries_per_second"], 10000 / 0.7 * (1 - 1e-9))
        self.assertIn("unit96", " ".join(out["assumptions"]))
        machines = [each["machines"] for each in [out, *out["others"]]]
        self.assertEqual(machines, sorted(machines))
        text = self.ok("plan", "--rows", "1e10", "--dim", 96, "--qps", 10000,
                       "--machine", "machine.json")  # fmt: skip
        for words in (out["index"], "shards x replicas", "Assumed:", "price of a million queries"):
            self.assertIn(words, text)

    def test_from_a_billion_to_a_trillion(self):
        before = 0
        for rows in ("1e9", "1e10", "1e11", "1e12"):
            machines = self.plan("--qps", 10000, rows=rows)["machines"]
            self.assertGreaterEqual(machines, before)
            before = machines
        self.assertEqual([each["index"] for each in [self.plan("--recall", 1)]], ["Flat"])

    def test_a_description_of_this_machine(self):
        self.ok("roofline", "--seconds", 0.2, "--threads", 1, "--out", "here.json")
        here = json.loads(self.file("here.json").read_text())
        self.assertEqual(here["threads"], 1)
        self.assertGreater(here["memory_bytes"], 2**28)
        self.assertGreater(here["new_memory_bytes_per_second"], 1e7)
        self.assertGreater(here["first_use_bytes_per_second"], 1e7)
        for field in ("network_bytes_per_second", "network_latency_seconds", "price_per_hour"):
            self.assertIsNone(here[field])
        out = json.loads(
            self.ok("plan", "--rows", "1e9", "--dim", 96, "--machine", "here.json", "--json")
        )
        assumed = " ".join(out["assumptions"])
        self.assertIn("no network_bytes_per_second", assumed)
        self.assertIn("no price_per_hour", assumed)
        self.assertAlmostEqual(
            out["opening_seconds"], out["memory_bytes"] / here["first_use_bytes_per_second"]
        )
        self.assertIsNone(self.plan()["opening_seconds"])  # by a description without the rate
        self.assertIsNone(out["price_per_hour"])
        self.fails(1, "roofline", "--out", "here.txt", says="--out")
        self.fails(2, "roofline", "--out", "a.json", "--machine", "h200", says="--machine")

    def test_this_machine_by_estimates(self):
        out = json.loads(self.ok("plan", "--rows", "1e9", "--dim", 96, "--json"))
        self.assertEqual(out["peaks"], "estimated")
        self.assertIn("estimates", out["assumptions"][0])

    def test_what_was_measured_instead_of_assumed(self):
        out = self.plan("--lists", 65536, "--probes", 40, "--refine-factor", 8)
        plans = {each["index"]: each for each in [out, *out["others"]]}
        self.assertEqual(plans["IVF65536,Flat"]["probes"], 40)
        refined = [each for name, each in plans.items() if "Refine" in name]
        self.assertEqual({each["refine_factor"] for each in refined}, {8})

    def test_the_simulation(self):
        words = ["--replicas", 3, "--shards", 4, "--simulate", 2000, "--failures", 1,
                 "--recovery", 60, "--hedge", 0.9, "--seed", 3]  # fmt: skip
        one, again = self.plan(*words), self.plan(*words)
        times = one["simulation"]
        self.assertEqual(times, again["simulation"])
        self.assertLessEqual(times["p50_seconds"], times["p99_seconds"])
        self.assertLessEqual(times["p99_seconds"], times["p999_seconds"])
        self.assertGreater(times["hedged_share"], 0)
        down = 60 / 3660
        self.assertAlmostEqual(
            times["expected_partial_share"], 1 - (1 - down ** one["replicas"]) ** one["shards"]
        )
        self.assertTrue(math.isclose(times["busy_share"], one["busy_share"], rel_tol=0.5))
        late = self.plan(*words, "--deadline", times["p50_seconds"])["simulation"]
        self.assertGreater(late["partial_share"], 0.3)
        self.fails(2, "plan", "--rows", "1e9", "--dim", 96, "--hedge", 0.9, says="--simulate")

    def write_sample(self, rows, columns=8):
        draw = random.Random(1)
        vectors = [[draw.random() for _ in range(columns)] for _ in range(rows)]
        write_vecs(self.file("sample.fvecs"), vectors, "f")

    def test_a_sample_is_measured(self):
        self.write_sample(6000)
        plan = ["plan", "--sample", "sample.fvecs"]
        out = json.loads(self.ok(*plan, "--rows", "2e5", "--recall", 0.9, "--batch", 1, "--json"))
        needs = (out["rows"], out["dim"], out["recall"], out["batch"])
        self.assertEqual(needs, (200000, 8, 0.9, 1))
        self.assertEqual((out["type"], out["metric"], out["guessed"]), ("f32", "l2", False))
        self.assertIn("measured on 4800 vectors for 200000 x 8, a recall of 0.9", out["reason"])
        forms = {form["index"]: form for form in out["forms"]}
        self.assertIn("Flat", forms)
        self.assertGreater(len(forms), 2)
        self.assertEqual(forms[out["index"]]["memory_bytes"], out["memory_bytes"])
        times = [form["seconds_per_query"] for form in out["forms"]]
        self.assertEqual(times, sorted(times))
        text = self.ok(*plan, "--rows", "2e5", "--recall", 0.9, "--batch", 1)
        self.assertTrue(text.startswith(out["reason"] + "\n"), text)
        for name in forms:
            self.assertIn(f"\n{name} ", text)

    def test_a_sample_is_measured_as_by_build(self):
        self.write_sample(6000)
        out = json.loads(self.ok("plan", "--sample", "sample.fvecs", "--json", "--threads", 1))
        built = json.loads(self.ok("build", "--base", "sample.fvecs", "--index", "auto",
                                   "--out", "out.knear", "--json"))  # fmt: skip
        self.assertEqual((out["reason"], out["index"]), (built["reason"], built["index"]))
        self.assertEqual((out["rows"], out["batch"], out["recall"]), (6000, 1000, 0.95))

    def test_samples_that_do_not_fit(self):
        self.write_sample(3000)
        plan = ["plan", "--sample", "sample.fvecs", "--rows", "2e5"]
        for more, says in (
            (["--dim", "9"], "--dim is 9, but sample.fvecs has 8 columns"),
            (["--dim", "0"], "--dim must be at least 1, but is 0"),
            (["--rows", "1.5"], "--rows must be a whole number"),
            (["--rows", "0"], "--rows must be at least 1, but is 0"),
            (["--recall", "1.5"], "--recall must be in (0, 1], but is 1.5"),
            (["--batch", "0"], "--batch must be at least 1, but is 0"),
            (["--memory", "1k"], "--memory is 1024 bytes, but 200000 x 8 take "),
            (["--metric", "l3"], "l3"),
            (["--threads", "-1"], "--threads"),
        ):
            with self.subTest(more=more):
                words = plan[:3] if more[0] == "--rows" else plan
                self.fails(1, *words, *more, says=says)
        for other in ("--qps", "--machine", "--lists", "--simulate", "-k"):
            self.fails(2, *plan, other, 5, says=f"{other} excludes --sample")
        self.fails(2, "plan", "--rows", 9, "--dim", 8, "--memory", "1G", says="requires --sample")
        self.fails(1, "plan", "--sample", "nowhere.fvecs", says="nowhere.fvecs")
        rows = [[0.0] * 8 for _ in range(3000)]
        for row in rows:
            row[5] = math.nan
        write_vecs(self.file("sample.fvecs"), rows, "f")
        self.fails(1, *plan, says="--sample must be finite, but row ")

    def test_machines_that_are_none(self):
        plan = ["plan", "--rows", "1e9", "--dim", "96", "--machine"]
        for field in ("name", "isa", "threads", "fp32_flops", "int8_ops", "cop_per_second",
                      "memory_bytes_per_second", "memory_bytes"):  # fmt: skip
            self.write({key: value for key, value in MACHINE.items() if key != field})
            self.fails(1, *plan, "machine.json", says=f"machine.json: {field} is missing")
            for absurd in (-1, "x", 1e300, [], {}):
                if (field, absurd) == ("name", "x"):
                    continue
                self.write({**MACHINE, field: absurd})
                self.fails(1, *plan, "machine.json", says=f"machine.json: {field} must be")
        self.write({**MACHINE, "price": 3})
        self.fails(1, *plan, "machine.json", says='no field "price"')
        self.file("machine.json").write_text("[" * 300000)
        self.fails(1, *plan, "machine.json", says="machine.json: ")
        self.file("machine.json").write_text(" " * (2 << 20))
        self.fails(1, *plan, "machine.json", says="at most 1 MiB")
        self.file("machine.json").write_text("")
        self.fails(1, *plan, "machine.json", says="machine.json")
        self.fails(1, *plan, ".", says="is a directory")
        self.fails(1, *plan, "nowhere.json", says="nowhere.json")
        self.fails(1, *plan, "h200", says="h200")

    def test_wrong_values(self):
        plan = ["plan", "--dim", "96", "--machine", "machine.json", "--rows"]
        for more, says in (
            (["0"], "rows"),
            (["1.5"], "--rows must be a whole number"),
            (["1e16"], "--rows"),
            (["1e9", "--recall", "0"], "recall"),
            (["1e9", "--recall", "1.5"], "recall"),
            (["1e9", "--qps", "-1"], "--qps must be above 0"),
            (["1e9", "--shards", "-1"], "--shards must be"),
            (["1e9", "--batch", "0"], "batch"),
            (["1e9", "-k", "0"], "k must be"),
            (["1e9", "--fan-in", "1"], "--fan-in"),
            (["1e9", "--probes", "8"], "--lists"),
            (["1e9", "--lists", "8", "--probes", "9"], "--probes is 9"),
            (["1e9", "--recall", "1", "--lists", "64"], "lists is 64, but recall is 1"),
            (["1e9", "--recall", "1", "--refine-factor", "8"], "--refine-factor is 8"),
            (["1e9", "--simulate", "10", "--hedge", "0.9"], "--replicas 2"),
            (["1e9", "--busy-share", "1"], "--busy-share"),
            (["1e9", "--simulate", "-1"], "--simulate"),
            (["1e9", "--simulate", "10", "--spread", "-1"], "--spread must be"),
            (["1e9", "--simulate", "10", "--deadline", "-1"], "--deadline"),
            (["1e9", "--simulate", "1000000000"], "parts"),
        ):
            with self.subTest(more=more):
                self.fails(1, *plan, *more, says=says)
        self.fails(2, *plan, "1e9", "--simulate", 10, "--recovery", 60, says="--failures")
        self.fails(2, "plan", "--rows", "1e9", says="--dim")
        self.fails(2, *plan, "many", says="--rows needs a number")


if __name__ == "__main__":
    main()
