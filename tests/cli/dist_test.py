"""knear dist under mpirun: the bytes of the plain commands, with 1 to 8 processes."""

import gzip
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import program_cases
from program_cases import ProgramTest, write_vecs

RANKS = (1, 2, 4, 8)


class Dist(ProgramTest):
    def setUp(self):
        super().setUp()
        self.assertTrue(shutil.which("mpirun"), "knear-dist was built, but there is no mpirun")
        # A container's user is root, and has few processors. The last two keep Open MPI from
        # looking for networks and from warning that a container has no access to other processes.
        # One mpirun that ends removes the folder of all of a user's while another makes its own in
        # it, so that each test has such a folder for itself.
        sessions = tempfile.TemporaryDirectory(prefix="knear")
        self.addCleanup(sessions.cleanup)
        self.environment.update(
            OMPI_MCA_orte_tmpdir_base=sessions.name,
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
            OMPI_MCA_btl="self,vader",
            OMPI_MCA_btl_vader_single_copy_mechanism="none",
        )
        if self.sanitised:  # MPI's own memory is still in use at the end
            self.environment["ASAN_OPTIONS"] = "detect_leaks=0"

    def command(self, ranks, *arguments):
        words = ["mpirun", "-q", "--oversubscribe", "--bind-to", "none", "-n", ranks]
        return [*map(str, words), self.program, "dist", *map(str, arguments)]

    def run_dist(self, ranks, *arguments):
        return subprocess.run(
            self.command(ranks, *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=self.folder,
            env=self.environment,
            text=True,
            timeout=300,
        )

    def dist(self, ranks, *arguments):
        result = self.run_dist(ranks, *arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""), arguments)
        return result.stdout

    def refused(self, status, ranks, *arguments, says=""):
        """One line, once, and no file; what mpirun adds is not ours."""
        before = sorted(os.listdir(self.folder))
        begin = time.monotonic()
        result = self.run_dist(ranks, *arguments)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertEqual(result.returncode, status, (arguments, result.stderr))
        lines = [line for line in result.stderr.splitlines() if line.startswith("knear: ")]
        self.assertEqual(len(lines), 1, (arguments, result.stderr))
        self.assertIn(says, lines[0])
        self.assertEqual(sorted(os.listdir(self.folder)), before, "an error left a file behind")
        return lines[0]

    def same_refusal(self, ranks, *arguments):
        """As the plain command refuses it."""
        plain = self.run_program(*arguments)
        self.assertNotEqual(plain.returncode, 0, arguments)
        line = self.refused(plain.returncode, ranks, *arguments)
        self.assertEqual(line + "\n", plain.stderr)


class Programs(Dist):
    def test_help_and_version_are_printed_once(self):
        for words in (["--help"], ["search", "--help"], ["--version"]):
            alone = self.ok("dist", *words)
            self.assertEqual(self.dist(2, *words), alone)
        self.assertIn("mpirun -n 8 knear dist search", self.ok("dist", "search", "--help"))
        self.assertNotIn("--truth", self.ok("dist", "search", "--help"))

    def test_a_program_that_was_not_built_is_named(self):
        here = self.file("elsewhere")
        here.mkdir()
        shutil.copy(self.program, here / "knear")
        result = subprocess.run([here / "knear", "dist", "search"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"\Aknear: dist is the program knear-dist, [^\n]+\n\Z")

    def test_words_that_cannot_be_parsed(self):
        self.refused(2, 2, "sort", says="unknown command 'sort'; 'knear dist --help' lists them")
        self.refused(2, 2, "kmeans", "--base", "base.bvecs", "-k", "x", "--out", "c.fvecs",
                     says="-k needs a whole number, but got 'x'")  # fmt: skip
        self.refused(2, 2, "search", "--queries", "q", "-k", "3", says="one of --base and --index")

    def test_the_plain_program_links_to_no_mpi(self):
        linked = subprocess.run(["ldd", self.program], capture_output=True, text=True).stdout
        self.assertIn("libc.", linked)
        self.assertNotIn("mpi", linked)


class KMeans(Dist):
    def check(self, *more, base="base.bvecs", ranks=RANKS):
        words = ["kmeans", "--base", base, "-k", "7", *more, "--out"]
        self.ok(*words, "one.fvecs")
        wanted = self.file("one.fvecs").read_bytes()
        for n in ranks:
            self.dist(n, *words, "many.fvecs")
            self.assertEqual(self.file("many.fvecs").read_bytes(), wanted, (more, n))

    def test_the_bytes_of_one_process(self):
        self.check("--seed", "3")

    def test_other_options(self):
        write_vecs(self.path("w.fvecs"), [[i % 5 for i in range(300)]], "f")
        write_vecs(self.path("c.fvecs"), self.base[:4], "f")
        for more in (
            ["--seeding", "k-means++", "--metric", "cosine"],
            ["--weights", "w.fvecs"],
            ["--initial", "c.fvecs", "--frozen", "--restarts", "2", "--iterations", "3"],
            ["--rows-per-centroid", "20", "--metric", "ip"],
        ):
            self.check(*more, ranks=(3,))
        self.file("base.fvecs.gz").write_bytes(gzip.compress(self.file("base.fvecs").read_bytes()))
        self.check(base="base.fvecs.gz", ranks=(3,))

    def test_more_processes_than_rows(self):
        write_vecs(self.path("few.fvecs"), self.base[:5], "f")
        self.ok("kmeans", "--base", "few.fvecs", "-k", "3", "--out", "one.fvecs")
        self.dist(8, "kmeans", "--base", "few.fvecs", "-k", "3", "--out", "many.fvecs")
        self.assertEqual(self.file("many.fvecs").read_bytes(), self.file("one.fvecs").read_bytes())

    def test_json(self):
        words = ["kmeans", "--base", "base.bvecs", "-k", "7", "--out", "c.fvecs", "--json"]
        plain, told = json.loads(self.ok(*words)), json.loads(self.dist(4, *words))
        self.assertEqual(told["ranks"], 4)
        for name in ("rows", "dim", "k", "metric", "seed", "iterations"):
            self.assertEqual(told[name], plain[name])
        objectives = [[step["objective"] for step in of["steps"]] for of in (told, plain)]
        self.assertEqual(*objectives)

    def test_refusals(self):
        out = ["--out", "c.fvecs"]
        base = ["--base", "base.bvecs"]
        self.same_refusal(3, "kmeans", *base, "-k", "0", *out)
        self.same_refusal(3, "kmeans", *base, "-k", "301", *out)
        self.same_refusal(3, "kmeans", "--base", "none.fvecs", "-k", "3", *out)
        self.same_refusal(3, "kmeans", *base, "-k", "3", "--out", "none/c.fvecs")
        rows = [list(map(float, row)) for row in self.base]
        rows[217][3] = float("nan")  # in the part of one process
        write_vecs(self.path("nan.fvecs"), rows, "f")
        self.same_refusal(3, "kmeans", "--base", "nan.fvecs", "-k", "3", *out)
        write_vecs(self.path("w.fvecs"), [[1] * 299], "f")
        self.same_refusal(3, "kmeans", *base, "-k", "3", "--weights", "w.fvecs", *out)
        self.same_refusal(3, "kmeans", *base, "-k", "3", "--device", "gpu", *out)
        self.refused(1, 3, "kmeans", *base, "-k", "3", "--memory", "1M", *out,
                     says="--memory is not for dist kmeans")  # fmt: skip
        self.refused(1, 3, "kmeans", *base, "-k", "3", "--levels", "2", *out, says="levels = 2")


class Searching(Dist):
    def answers(self, run, *words):
        run("search", *words, "--out", "o.npy", "--distances", "o.fvecs")
        return [self.file(name).read_bytes() for name in ("o.npy", "o.fvecs")]

    def check(self, *words, ranks=RANKS):
        wanted = self.answers(self.ok, *words)
        for n in ranks:
            got = self.answers(lambda *all, n=n: self.dist(n, *all), *words)
            self.assertEqual(got, wanted, (words, n))


class Search(Searching):
    def test_the_bytes_of_one_process(self):
        base = ["--base", "base.bvecs", "--queries", "queries.bvecs"]
        self.check(*base, "-k", "7")
        for metric in ("ip", "cosine"):
            self.check(*base, "-k", "7", "--metric", metric, ranks=(3,))
        self.check(*base, "-k", "400", ranks=(3,))
        write_vecs(self.path("allowed.ivecs"), [list(range(0, 300, 7))], "i")
        self.check(*base, "-k", "50", "--filter", "allowed.ivecs", ranks=(4,))
        self.check(*base, "-k", "3", "--method", "exact", "--first-pass", "int16", ranks=(2,))

    def test_real_numbers_and_more_processes_than_rows(self):
        source = random.Random(7)
        rows = [[source.gauss(0, 1) for _ in range(20)] for _ in range(2000)]
        write_vecs(self.path("g.fvecs"), rows, "f")
        write_vecs(self.path("q.fvecs"), rows[:40], "f")
        self.check("--base", "g.fvecs", "--queries", "q.fvecs", "-k", "12", ranks=(3, 8))
        write_vecs(self.path("few.fvecs"), rows[:5], "f")
        self.check("--base", "few.fvecs", "--queries", "q.fvecs", "-k", "3", ranks=(8,))

    def test_json(self):
        words = ["search", "--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "7"]
        told = json.loads(self.dist(4, *words, "--device", "cpu", "--json"))
        self.assertEqual(told["device"], "cpu")
        self.assertEqual((told["ranks"], told["rows"], told["dim"]), (4, 300, 12))
        self.assertEqual((told["queries"], told["recall_argument"]), (17, "exact"))
        self.assertEqual(told["merge_bytes"], 3 * (17 * 7 * 16 + 8))
        self.assertEqual(told["predicted_merge_bytes"], told["merge_bytes"])
        self.assertGreater(told["predicted_merge_seconds"], 0)
        alone = json.loads(self.dist(1, *words, "--json"))
        self.assertEqual((alone["ranks"], alone["merge_bytes"]), (1, 0))
        # Fewer rows than ranks, and than neighbours.
        write_vecs(self.path("three.bvecs"), [[1] * 12, [2] * 12, [3] * 12], "B")
        words[2] = "three.bvecs"
        few = json.loads(self.dist(4, *words, "--json"))
        self.assertEqual(few["predicted_merge_bytes"], few["merge_bytes"])

    def test_no_queries(self):
        self.file("none.fbin").write_bytes(struct.pack("<ii", 0, 12))
        words = ["search", "--base", "base.bvecs", "--queries", "none.fbin", "-k", "7", "--json"]
        alone, told = json.loads(self.ok(*words)), json.loads(self.dist(3, *words))
        for key in ("queries", "promised_recall", "expected_recall", "recall_argument"):
            self.assertEqual(told[key], alone[key], key)

    def test_refusals(self):
        base = ["search", "--base", "base.bvecs"]
        queries = ["--queries", "queries.bvecs"]
        self.same_refusal(2, *base, *queries, "-k", "0")
        self.same_refusal(2, *base, "--queries", "none.bvecs", "-k", "3")
        self.same_refusal(2, *base, *queries, "-k", "3", "--metric", "l3")
        self.same_refusal(2, *base, *queries, "-k", "3", "--probes", "2")
        write_vecs(self.path("wide.fvecs"), [[1.0] * 13], "f")
        self.same_refusal(2, *base, "--queries", "wide.fvecs", "-k", "3")
        write_vecs(self.path("nan.fvecs"), [[1.0] * 12, [float("nan")] * 12], "f")
        self.same_refusal(2, *base, "--queries", "nan.fvecs", "-k", "3")
        rows = [list(map(float, row)) for row in self.base]
        rows[217][3] = float("inf")
        write_vecs(self.path("inf.fvecs"), rows, "f")
        self.same_refusal(4, "search", "--base", "inf.fvecs", *queries, "-k", "3")
        self.file("cut.fvecs").write_bytes(self.file("base.fvecs").read_bytes()[:-3])
        self.same_refusal(4, "search", "--base", "cut.fvecs", *queries, "-k", "3")
        for device in ("gpu", "cuda:-1", "cuda:4096", "cuda:4095"):  # the last ones are nowhere
            self.same_refusal(2, *base, *queries, "-k", "3", "--device", device)
        for flag in (["--truth", "t.ivecs"], ["--radius", "3"], ["--explain"], ["--certify"]):
            self.refused(1, 2, *base, *queries, "-k", "3", *flag, says=f"{flag[0]} is not for dist")
        self.refused(1, 2, *base, *queries, "-k", "3", "--method", "partial-reduce",
                     says="--method must be auto or exact in dist search")  # fmt: skip


class Indexes(Searching):
    def shards(self, out="a.knear"):
        return sorted(self.file(".").glob(f"{out}.*.shard"), key=lambda p: int(p.suffixes[-2][1:]))

    def build(self, run, out, *words):
        run("build", "--base", "base.bvecs", *words, "--out", out)
        return [path.read_bytes() for path in self.shards(out)]

    def test_shards_are_those_of_one_process(self):
        for index in ("Flat", "IVF5,Flat", "PCA8,IVF5,Flat", "IVF5,PQ4", "IVF3,SQ8", "Graph8"):
            for shards in (1, 3, 5):
                words = ["--index", index, "--shards", shards]
                wanted = self.build(self.ok, "a.knear", *words)
                self.assertEqual(len(wanted), shards)
                n = {1: 2, 3: 2, 5: 8}[shards]
                got = self.build(lambda *all, n=n: self.dist(n, *all), "b.knear", *words)
                self.assertEqual(got, wanted, (index, shards))
                kinds = [json.loads(self.ok("info", name, "--json"))["files"][0]
                         for name in ("a.knear", "b.knear")]  # fmt: skip
                for name in ("rows", "replicas", "verified", "version"):
                    self.assertEqual(kinds[0].get(name), kinds[1].get(name), name)

    def test_one_shard_for_each_process(self):
        told = json.loads(self.dist(4, "build", "--base", "base.bvecs", "--index", "Flat",
                                    "--metric", "ip", "--out", "a.knear", "--json"))  # fmt: skip
        self.assertEqual((told["ranks"], told["shards"], told["replicas"]), (4, 4, 1))
        self.assertEqual((told["rows"], told["metric"], told["type"]), (300, "ip", "u8"))
        self.assertEqual(len(self.shards()), 4)
        # Again, over it: what was there is removed.
        self.dist(2, "build", "--base", "base.bvecs", "--index", "Flat", "--out", "a.knear")
        self.assertEqual(len(self.shards()), 2)
        self.assertEqual(len(list(self.file(".").glob("a.knear*"))), 3)

    def test_searches_of_shards(self):
        queries = ["--queries", "queries.bvecs", "-k", "7"]
        write_vecs(self.path("allowed.ivecs"), [list(range(0, 300, 3))], "i")
        for index, more in (("Flat", []), ("Graph8", ["--ef", "20"]),
                            ("IVF5,Flat", ["--probes", "2"]), ("IVF5,Flat", ["--recall", "1"]),
                            ("IVF5,PQ4", ["--probes", "3"])):  # fmt: skip
            self.dist(3, "build", "--base", "base.bvecs", "--index", index, "--shards", "5",
                      "--out", "a.knear")  # fmt: skip
            self.check("--index", "a.knear", *queries, *more)
            self.check("--index", "a.knear", *queries, *more, "--filter", "allowed.ivecs",
                       ranks=(2,))  # fmt: skip
        told = json.loads(self.dist(2, "search", "--index", "a.knear", *queries, "--probes", "2",
                                    "--json"))  # fmt: skip
        self.assertEqual((told["shards"], told["lists"], told["probes"]), (5, 5, 2))
        self.assertEqual(told["rows"], 300)

    def test_refusals_of_builds(self):
        words = ["build", "--base", "base.bvecs", "--out", "a.knear", "--index"]
        self.same_refusal(3, *words, "IVF0,Flat")
        self.same_refusal(3, *words, "Flat", "--train", "9")
        self.same_refusal(3, *words, "IVF301,Flat", "--shards", "3")
        self.same_refusal(3, *words, "Flat", "--shards", "0")
        rows = [list(map(float, row)) for row in self.base]
        rows[217][3] = float("nan")
        write_vecs(self.path("nan.fvecs"), rows, "f")
        nan = ["build", "--base", "nan.fvecs", "--shards", "3", "--out", "a.knear", "--index"]
        self.same_refusal(3, *nan, "Flat")
        self.same_refusal(3, *nan, "IVF5,Flat")

    def test_refusals_of_searches(self):
        self.build(self.ok, "one.knear", "--index", "Flat")
        self.build(self.ok, "a.knear", "--index", "IVF5,Flat", "--shards", "3")
        queries = ["--queries", "queries.bvecs", "-k", "7"]
        self.refused(1, 2, "search", "--index", "one.knear", *queries, says="is one file")
        self.same_refusal(2, "search", "--index", "none.knear", *queries)
        search = ["search", "--index", "a.knear", *queries]
        self.same_refusal(2, *search)  # neither --probes nor --recall
        self.same_refusal(2, *search, "--probes", "2", "--metric", "ip")
        self.refused(1, 2, *search, "--recall", "0.9", says="--recall is 0.9, but what it takes")
        write_vecs(self.path("f.ivecs"), [[1, 2, 300]], "i")
        self.same_refusal(2, *search, "--probes", "2", "--filter", "f.ivecs")
        self.shards()[1].unlink()
        self.same_refusal(3, *search, "--probes", "2")


class Stopping(Dist):
    """Commands of which a process is killed, or mpirun is told to stop."""

    def large_base(self):
        source = random.Random(5)
        # Some seconds by plain code: Open MPI waits for one before it tells its processes to stop.
        rows = [[source.random() for _ in range(12)] for _ in range(120000)]
        write_vecs(self.path("large.fvecs"), rows, "f")
        return ["--base", "large.fvecs", "--threads", "1"]

    def ranks_of(self, process):
        """The processes of knear-dist below mpirun, by rank."""
        found = {}
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if pathlib.Path(os.readlink(path / "exe")).name != "knear-dist":
                    continue
                if int((path / "stat").read_text().rsplit(")")[-1].split()[1]) != process.pid:
                    continue
                environment = (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            of = dict(entry.split(b"=", 1) for entry in environment if b"=" in entry)
            found[int(of[b"OMPI_COMM_WORLD_RANK"])] = int(path.name)
        return found

    def kill_rank(self, rank):
        return lambda process: os.kill(self.ranks_of(process)[rank], signal.SIGKILL)

    def stopped(self, words, begun, kill, ranks=3):
        """Begins, calls kill(process) once begun() is true, and returns the one line of ours."""
        process = subprocess.Popen(
            self.command(ranks, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            # By plain code, so that it takes long enough to be stopped in the middle.
            env=dict(self.environment, KNEAR_ISA="scalar"),
            text=True,
        )
        for _ in range(6000):
            self.assertIsNone(process.poll(), "it was over before it could be stopped")
            if begun():
                break
            time.sleep(0.01)
        begin = time.monotonic()
        kill(process)
        _, said = process.communicate(timeout=60)
        self.assertLess(time.monotonic() - begin, 10)
        self.assertNotEqual(process.returncode, 0)
        lines = [line for line in said.splitlines() if line.startswith("knear: ")]
        self.assertEqual(len(lines), 1, said)
        return lines[0]

    def run_again(self, line):
        """What the command that the line names prints."""
        again = line.split(": mpirun -n ")[1].split()
        self.assertEqual(again[1:3], ["knear", "dist"])
        return self.dist(again[0], *again[3:], "--json")


class Graph(Stopping):
    def test_the_bytes_of_one_process(self):
        words = ["graph", "--base", "base.bvecs", "-k", "5", "--out"]
        for metric in ("l2", "ip", "cosine"):
            self.ok(*words, "one.knear", "--metric", metric)
            wanted = self.file("one.knear").read_bytes()
            for n in RANKS if metric == "l2" else (3,):
                self.dist(n, *words, "many.knear", "--metric", metric)
                self.assertEqual(self.file("many.knear").read_bytes(), wanted, (metric, n))
        self.assertFalse(self.file("many.knear.partial").exists())

    def test_copies_and_few_rows(self):
        write_vecs(self.path("same.fvecs"), [[1.0, 2.0]] * 40, "f")
        write_vecs(self.path("three.fvecs"), [[1.0, 2.0], [3.0, 1.0], [1.0, 1.0]], "f")
        for base, k in (("same.fvecs", 4), ("three.fvecs", 5)):
            words = ["graph", "--base", base, "-k", k, "--out"]
            self.ok(*words, "one.knear"), self.dist(4, *words, "many.knear")
            self.assertEqual(self.file("many.knear").read_bytes(),
                             self.file("one.knear").read_bytes())  # fmt: skip

    def test_json(self):
        words = ["graph", "--base", "base.bvecs", "-k", "5", "--out", "g.knear", "--json"]
        told, plain = json.loads(self.dist(2, *words)), json.loads(self.ok(*words))
        self.assertEqual((told["ranks"], told["searched_rows"], told["method"]), (2, 300, "search"))
        self.assertEqual(told["passed_bytes"], told["predicted_passed_bytes"])
        for name in ("rows", "dim", "k", "base_xxh3_64", "edges", "mutual_edges", "components"):
            self.assertEqual(told[name], plain[name])

    def test_refusals(self):
        words = ["graph", "--base", "base.bvecs", "--out", "g.knear"]
        self.same_refusal(3, *words, "-k", "0")
        rows = [list(map(float, row)) for row in self.base]
        rows[217][3] = float("nan")
        write_vecs(self.path("nan.fvecs"), rows, "f")
        self.same_refusal(3, "graph", "--base", "nan.fvecs", "-k", "3", "--out", "g.knear")
        for flag in (["--distinct"], ["--recall", "0.9"], ["--accuracy", "9"]):
            self.refused(1, 2, *words, "-k", "3", *flag, says=f"{flag[0]} is not for dist graph")

    def stopped_line(self, kill):
        words = ["graph", *self.large_base(), "-k", "10", "--out"]
        partial = self.file("g.knear.partial")

        def has_a_block():
            if not partial.exists() or partial.stat().st_size <= 8192:
                return False
            with open(partial, "rb") as file:
                file.seek(4096)
                return any(file.read(64))

        line = self.stopped([*words, "g.knear"], has_a_block, kill)
        self.assertFalse(self.file("g.knear").exists(), "it was over before it was stopped")
        self.assertTrue(partial.exists(), line)
        self.assertRegex(line, r"^knear: stopped; of \d+ blocks in g\.knear\.partial these are "
                         r"finished: \d[\d, -]*; go on with: mpirun -n \d knear dist graph "
                         r".* --resume$")  # fmt: skip
        return words, line

    def goes_on(self, words, line):
        finished = re.search(r"finished: ([\d, -]+);", line).group(1)
        counts = [re.findall(r"\d+", part) for part in finished.split(",")]
        before = sum(int(part[-1]) - int(part[0]) + 1 for part in counts)
        self.ok(*words, "one.knear")
        self.refused(1, 2, *words, "g.knear", says="resume it")
        told = json.loads(self.run_again(line))
        self.assertGreaterEqual(told["blocks_before"], before)
        self.assertEqual(self.file("g.knear").read_bytes(), self.file("one.knear").read_bytes())
        self.assertFalse(self.file("g.knear.partial").exists())

    def test_a_process_is_killed(self):
        for rank in (1, 0):
            words, line = self.stopped_line(self.kill_rank(rank))
            if rank == 1:
                self.goes_on(words, line)
            else:  # the plain command goes on as well
                self.file("g.knear").unlink(missing_ok=True)
                self.ok(*words, "one.knear"), self.ok(*words, "g.knear", "--resume")
                self.assertEqual(self.file("g.knear").read_bytes(),
                                 self.file("one.knear").read_bytes())  # fmt: skip
                # Whole: nothing is left to do, and another graph is refused.
                told = json.loads(self.dist(2, *words, "g.knear", "--resume", "--json"))
                self.assertEqual((told["method"], told["searched_rows"]), ("none", 0))
                self.assertIn("whole already", self.dist(2, *words, "g.knear", "--resume"))
                self.refused(1, 2, *words, "g.knear", "--resume", "--metric", "ip",
                             says="g.knear is whole already, but of another metric")  # fmt: skip
            self.file("g.knear").unlink()

    def test_mpirun_is_told_to_stop(self):
        words, line = self.stopped_line(lambda process: process.send_signal(signal.SIGTERM))
        self.goes_on(words, line)


class Stopped(Stopping):
    """Commands that keep nothing of what they have done say so, and how to begin again."""

    def check(self, words, begun, says, output):
        before = sorted(os.listdir(self.folder))
        told_to_stop = lambda process: process.send_signal(signal.SIGTERM)  # noqa: E731
        for kill in (self.kill_rank(1), self.kill_rank(0), told_to_stop):
            line = self.stopped(words, begun, kill)
            typed = " ".join(["mpirun -n 3 knear dist", *map(str, words)])
            self.assertRegex(line, f"^knear: stopped{says}; begin again with: {re.escape(typed)}$")
            self.assertEqual(sorted(os.listdir(self.folder)), before, "it left a file behind")
        self.run_again(line)
        self.assertTrue(self.file(output).exists())

    def is_marked(self, output):
        """Whether the file by which processes agree who writes the line is there, for a moment."""

        def begun():
            if not list(self.folder_path().glob(output + ".stop-*")):
                return False
            time.sleep(0.5)
            return True

        return begun

    def folder_path(self):
        return pathlib.Path(self.folder)

    def test_kmeans(self):
        words = ["kmeans", *self.large_base(), "-k", "128", "--iterations", "40",
                 "--out", "c.fvecs"]  # fmt: skip
        says = r" after \d+ of 40 iterations, of which nothing is kept"
        self.check(words, self.is_marked("c.fvecs"), says, "c.fvecs")

    def test_search(self):
        words = ["search", *self.large_base(), "--queries", "large.fvecs", "-k", "5",
                 "--out", "near.npy"]  # fmt: skip
        says = r" after \d+ of 120000 queries, of which nothing is kept"
        self.check(words, self.is_marked("near.npy"), says, "near.npy")

    def test_build(self):
        words = ["build", *self.large_base(), "--index", "Graph16", "--shards", "9",
                 "--out", "i.knear"]  # fmt: skip

        def has_a_shard():
            return any(self.folder_path().glob("i.knear.*.shard"))

        says = r"; [1-8] of 9 shards were written, of which nothing is kept"
        self.check(words, has_a_shard, says, "i.knear")
        self.assertIn("rows", self.ok("info", "i.knear"))


def networks_can_be_made():
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        return False
    name = f"knear-try-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
        return False
    return subprocess.run(["ip", "netns", "del", name], capture_output=True).returncode == 0


class Networks(Dist):
    """Two namespaces of one machine, each with a network address and a host name of its own."""

    ADDRESSES = ("10.93.7.1", "10.93.7.2")

    def setUp(self):
        super().setUp()
        if not networks_can_be_made():
            self.skipTest("no right to make network namespaces")
        self.names = [f"knear-{letter}-{os.getpid()}" for letter in "ab"]
        ends = [f"kn{letter}{os.getpid()}" for letter in "ab"]

        def run(*words):
            subprocess.run(["ip", *words], check=True, capture_output=True)

        for name in self.names:
            run("netns", "add", name)
            self.addCleanup(subprocess.run, ["ip", "netns", "del", name], capture_output=True)
        a, b = self.names
        run("link", "add", ends[0], "netns", a, "type", "veth", "peer", "name", ends[1], "netns", b)
        for name, end, address in zip(self.names, ends, self.ADDRESSES, strict=True):
            run("-n", name, "addr", "add", f"{address}/24", "dev", end)
            run("-n", name, "link", "set", "lo", "up")
            run("-n", name, "link", "set", end, "up")
        # What mpirun calls instead of ssh, with an address and a command.
        agent = self.file("agent")
        agent.write_text(
            "#!/bin/sh\nshift\n"
            f"exec ip netns exec {b} unshare --uts sh -c "
            f'\'hostname {b}; exec "$0" "$@"\' sh -c "$*"\n'
        )
        agent.chmod(0o755)
        self.environment.update(
            OMPI_MCA_plm_rsh_agent=str(agent),
            OMPI_MCA_btl="self,vader,tcp",
            OMPI_MCA_btl_tcp_if_include="10.93.7.0/24",
            OMPI_MCA_oob_tcp_if_include="10.93.7.0/24",
        )

    def command(self, ranks, *arguments):
        hosts = ",".join(f"{address}:{ranks // 2}" for address in self.ADDRESSES)
        mpirun, *words = super().command(ranks, *arguments)
        # Options that are set here are set on the other side too.
        passed = [word for name in self.environment if name.startswith("OMPI_MCA_btl")
                  for word in ("-x", name)]  # fmt: skip
        in_first = ["ip", "netns", "exec", self.names[0]]
        return [*in_first, mpirun, "--host", hosts, "--wdir", self.folder, *passed, *words]

    def dist(self, ranks, *arguments):
        """mpirun may warn of how its processes on the other side were started."""
        result = self.run_dist(ranks, *arguments)
        self.assertEqual(result.returncode, 0, (arguments, result.stderr))
        self.assertNotIn("knear: ", result.stderr)

    def test_the_bytes_of_one_process(self):
        kmeans = ["kmeans", "--base", "base.bvecs", "-k", "7", "--out"]
        graph = ["graph", "--base", "base.bvecs", "-k", "5", "--out"]
        search = ["search", "--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "9",
                  "--out"]  # fmt: skip
        for words, ending in ((kmeans, "fvecs"), (search, "ivecs"), (graph, "knear")):
            self.ok(*words, f"one.{ending}"), self.dist(4, *words, f"many.{ending}")
            wanted = self.file(f"one.{ending}").read_bytes()
            self.assertEqual(self.file(f"many.{ending}").read_bytes(), wanted, words)


def classes_at_once():
    """All tests, the classes three at a time: their processes mostly wait for Open MPI, which takes
    longer to begin and to end them than they have to do."""
    loader = unittest.defaultTestLoader
    of_here = vars(sys.modules[__name__]).values()
    names = [c.__name__ for c in of_here if isinstance(c, type) and loader.getTestCaseNames(c)]
    # Begin with what takes the longest.
    names.sort(key=lambda name: ("Graph", "Stopped", "Indexes", name).index(name))

    def run(name):
        words = [sys.executable, __file__, sys.argv[1], name]
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(run, names))
    for name, one in zip(names, done, strict=True):
        print(f"{name}:\n{one.stdout}", flush=True)
    return max(one.returncode for one in done)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(classes_at_once())
    program_cases.main()
