"""The program on a 64-bit ARM, played by an emulator, against the one on this processor: each
processor takes the level that it should, and what both write is the same to the byte.

    tests/aarch64/same_bytes_test.py HERE THERE EMULATOR... [-- Class.test...]

HERE and THERE are the programs knear of this processor and of the other, EMULATOR the command that
runs the other (qemu-aarch64 -L ROOT). Made vectors, and real ones where $KNEAR_DATA or
../shared/data holds them.
"""

import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("KNEAR_DATA") or ROOT.parent / "shared" / "data")

# Processors without SDOT, with it, and with USMMLA too, and the level that each of them has.
PROCESSORS = {"cortex-a72": "neon", "neoverse-n1": "neon_dot", "max": "neon_i8mm"}
LEVELS = ["scalar", *PROCESSORS.values()]

here = there = ""
emulator: list[str] = []


def run(program, *arguments, isa=None, cpu=None, page=None, cache=None):
    environment = {name: value for name, value in os.environ.items() if name != "KNEAR_ISA"}
    environment["XDG_CACHE_HOME"] = str(cache or "/nonexistent")  # plans by estimates
    if isa:
        environment["KNEAR_ISA"] = isa
    command = [program, *map(str, arguments)]
    if program == there:
        pages = [] if page is None else ["-p", str(page)]
        command = [emulator[0], "-cpu", cpu or "max", *pages, *emulator[1:], *command]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def write_vecs(path, rows, letter):
    """.fvecs (f) or .bvecs (B)."""
    with open(path, "wb") as file:
        for row in rows:
            file.write(struct.pack(f"<i{len(row)}{letter}", len(row), *row))


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = pathlib.Path(self.folder.name)
        numbers = random.Random(7)
        centres = [[numbers.gauss(0, 3) for _ in range(43)] for _ in range(12)]

        def rows(count):
            out = [[x + numbers.gauss(0, 1) for x in numbers.choice(centres)] for _ in range(count)]
            out[1] = out[0]  # a tie
            return out

        def whole(count):
            return [[numbers.randrange(256) for _ in range(50)] for _ in range(count)]

        write_vecs(self.at / "base.fvecs", rows(1500), "f")
        write_vecs(self.at / "queries.fvecs", rows(37), "f")
        write_vecs(self.at / "base.bvecs", whole(1500), "B")
        write_vecs(self.at / "queries.bvecs", whole(37), "B")

    def succeeds(self, *arguments, **how):
        done = run(*arguments, **how)
        self.assertEqual(done.returncode, 0, f"{arguments} {how}: {done.stderr}")
        return done.stdout

    def same(self, first, second, what):
        self.assertEqual(first.read_bytes(), second.read_bytes(), f"{what}: the bytes differ")


class Levels(Case):
    def test_each_processor_takes_its_own(self):
        for cpu, level in PROCESSORS.items():
            said = self.succeeds(
                there, "search", "--base", self.at / "base.fvecs",
                "--queries", self.at / "queries.fvecs", "-k", 3, "--json", cpu=cpu,
            )  # fmt: skip
            self.assertEqual(json.loads(said)["isa"], level, cpu)

    def test_a_level_that_is_not_there_is_refused(self):
        wanted = [
            ("cortex-a72", "neon_dot", "neon"),
            ("cortex-a72", "neon_i8mm", "neon"),
            ("neoverse-n1", "neon_i8mm", "neon_dot"),
        ]
        search = ("search", "--base", self.at / "base.fvecs", "-k", 3)
        search += ("--queries", self.at / "queries.fvecs")
        for cpu, isa, best in wanted:
            done = run(there, *search, isa=isa, cpu=cpu)
            self.assertEqual(done.returncode, 1, (cpu, isa, done.stdout))
            self.assertEqual(
                done.stderr,
                f"knear: KNEAR_ISA is '{isa}', but this machine has at most '{best}'\n",
            )
        # Levels of the other kind of processor are no names.
        for program, isa in ((there, "avx2"), (here, "neon")):
            done = run(program, *search, isa=isa)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"^knear: KNEAR_ISA must be scalar, .*but is '{isa}'\n$")


class Peaks(Case):
    def test_are_measured_at_each_level(self):
        """And the cost model of a later command has them. How fast an emulator is says nothing."""
        for level in LEVELS:
            cache = self.at / level
            rates = json.loads(
                self.succeeds(
                    there, "roofline", "--threads", 1, "--seconds", 0.1, "--json",
                    isa=level, cache=cache,
                )
            )  # fmt: skip
            self.assertEqual(rates["isa"], level)
            for name in ("fp32_flops", "int8_ops", "cop_per_second", "memory_bytes_per_second"):
                self.assertGreater(rates[name], 0, (level, name))
            kept = json.loads((cache / "knear" / "roofline.json").read_text())
            self.assertIn(level, json.dumps(kept))


class Truth(Case):
    def check(self, base, queries, metric="l2", k=10):
        def truth(program, name, **how):
            self.succeeds(
                program, "truth", "--base", base, "--queries", queries, "-k", k, "--metric", metric,
                "--out", self.at / f"{name}.npy", "--distances", self.at / f"{name}.fvecs", **how,
            )  # fmt: skip

        truth(here, "here")
        for level in LEVELS:
            with self.subTest(base=base.name, metric=metric, level=level):
                truth(there, "there", isa=level)
                for kind in ("npy", "fvecs"):
                    self.same(self.at / f"here.{kind}", self.at / f"there.{kind}", kind)

    def test_of_made_vectors(self):
        for letter in ("f", "b"):
            for metric in ("l2", "ip", "cosine"):
                self.check(
                    self.at / f"base.{letter}vecs", self.at / f"queries.{letter}vecs", metric
                )

    def test_of_real_vectors(self):
        sets = [("sift-5k", "bvecs", "l2"), ("glove-twitter-25", "npy", "cosine")]
        for name, kind, metric in sets:
            if not (DATA / name).exists():
                self.skipTest(f"no {name} in {DATA}: set KNEAR_DATA")
            self.check(DATA / name / f"base.{kind}", DATA / name / f"queries.{kind}", metric)


class Files(Case):
    """Each is built on both, and read on both."""

    def check(self, kind, letter, *how):
        base, queries = self.at / f"base.{letter}vecs", self.at / f"queries.{letter}vecs"
        for program, name in ((here, "here"), (there, "there")):
            out = self.at / f"{name}.knear"
            self.succeeds(program, "build", "--base", base, "--index", kind, "--out", out)
        # The bounds of packed floats are summed in the order of each level, here too.
        if not (kind.endswith("Flat") and letter == "f"):
            self.same(self.at / "here.knear", self.at / "there.knear", f"{kind} of {letter}")

        def search(program, index, name, **environment):
            self.succeeds(
                program, "search", "--index", self.at / f"{index}.knear", "--queries", queries,
                "-k", 10, *how, "--out", self.at / f"{name}.npy",
                "--distances", self.at / f"{name}.fvecs", **environment,
            )  # fmt: skip

        search(here, "here", "answer")
        search(here, "there", "other")
        self.same(self.at / "answer.npy", self.at / "other.npy", f"{kind} built there, read here")
        for level in LEVELS:
            with self.subTest(kind=kind, vectors=letter, level=level):
                search(there, "here", "other", isa=level)
                for out in ("npy", "fvecs"):
                    self.same(self.at / f"answer.{out}", self.at / f"other.{out}", out)

    def test_flat(self):
        self.check("Flat", "f")
        self.check("Flat", "b")

    def test_lists(self):
        self.check("IVF16,Flat", "f", "--probes", 4)
        self.check("IVF16,Flat", "b", "--probes", 4)

    def test_codes(self):
        self.check("IVF16,PQ43", "f", "--probes", 4)
        self.check("PQ10", "b")
        self.check("SQ8", "f")

    def test_codes_of_four_bits(self):
        self.check("IVF16,PQ25x4", "b", "--probes", 8)

    def test_transforms_that_are_learned(self):
        self.check("PCA16,IVF16,PQ8", "f", "--probes", 4)
        self.check("OPQ8_16,IVF16,PQ8", "f", "--probes", 4)


class Pages(Case):
    """Files are read, and written, by systems whose pages of memory are larger than here."""

    def test_each_size(self):
        queries = ("--queries", self.at / "queries.fvecs", "-k", 10)
        for kind in ("Flat", "IVF16,Flat", "IVF16,PQ43"):
            index = self.at / "here.knear"
            build = ("build", "--base", self.at / "base.fvecs", "--index", kind)
            self.succeeds(here, *build, "--out", index)
            how = () if kind == "Flat" else ("--probes", 4)
            wanted = ("search", "--index", index, *queries, *how)
            self.succeeds(here, *wanted, "--out", self.at / "here.npy")
            for page in (4096, 16384, 65536):
                with self.subTest(kind=kind, page=page):
                    self.succeeds(there, *wanted, "--out", self.at / "there.npy", page=page)
                    self.same(self.at / "here.npy", self.at / "there.npy", kind)
                    # Written with such pages, read with those of here.
                    other = self.at / "there.knear"
                    self.succeeds(there, *build, "--out", other, page=page)
                    words = ("search", "--index", other, *queries, *how)
                    self.succeeds(here, *words, "--out", self.at / "there.npy")
                    self.same(self.at / "here.npy", self.at / "there.npy", kind)

    def test_a_graph_within_memory(self):
        """Maps the base and the graph that is under way, and gives pages back."""
        graph = ("graph", "--base", self.at / "base.fvecs", "-k", 8)
        self.succeeds(here, *graph, "--out", self.at / "here.knear")
        for page in (16384, 65536):
            self.succeeds(
                there, *graph, "--memory", "200M", "--out", self.at / "there.knear", page=page
            )
            self.same(self.at / "here.knear", self.at / "there.knear", f"pages of {page}")


class OtherFiles(Case):
    def test_centroids_and_graphs(self):
        commands = {
            "kmeans": ("--base", "base.fvecs", "-k", 20, "--iterations", 6, "--out", "out.fvecs"),
            "graph": ("--base", "base.fvecs", "-k", 8, "--out", "out.knear"),
        }
        for command, arguments in commands.items():
            words = [
                self.at / word if isinstance(word, str) and "." in word else word
                for word in arguments
            ]
            self.succeeds(here, command, *words)
            expected = words[-1].read_bytes()
            for level in LEVELS:
                with self.subTest(command=command, level=level):
                    self.succeeds(there, command, *words, isa=level)
                    self.assertEqual(words[-1].read_bytes(), expected, command)


if __name__ == "__main__":
    words = sys.argv[1:]
    tests = []
    if "--" in words:
        words, tests = words[: words.index("--")], words[words.index("--") + 1 :]
    if len(words) < 3:
        sys.exit(__doc__)
    here, there, *emulator = words
    unittest.main(argv=[sys.argv[0], *tests], verbosity=2)
