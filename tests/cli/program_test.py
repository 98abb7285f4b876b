"""Runs the program knear as a user does: results, JSON keys, exit status, error lines, signals.

    program_test.py /path/to/knear

Plain unittest and the standard library, because Debian always has them. The brute force here is
written from the definitions (float64 sums, ties by row number) and shares nothing with knear.
"""

import contextlib
import gzip
import json
import math
import os
import pathlib
import pty
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
import xml.etree.ElementTree

KNEAR = None
SANITISED = False  # sanitisers take memory of their own

SEARCH_KEYS = {
    "k", "metric", "method", "device", "isa", "threads", "rows", "dim", "queries", "seconds",
    "queries_per_second", "predicted_seconds", "limit", "memory_bytes", "survivors_per_query",
    "promised_recall", "recall_argument", "certified_queries",
}


def write_vecs(path, rows, letter):
    """.fvecs (f), .ivecs (i) or .bvecs (B)."""
    with open(path, "wb") as file:
        for row in rows:
            file.write(struct.pack(f"<i{len(row)}{letter}", len(row), *row))


def read_vecs(path, letter):
    data, rows, at = pathlib.Path(path).read_bytes(), [], 0
    while at < len(data):
        (dim,) = struct.unpack_from("<i", data, at)
        rows.append(list(struct.unpack_from(f"<{dim}{letter}", data, at + 4)))
        at += 4 + dim * struct.calcsize(letter)
    return rows


def read_npy(path):
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<H", data, 8)
    header = eval(data[10 : 10 + length].decode(), {}, {})  # written by the program under test
    rows, cols = header["shape"]
    letter = {"<i8": "q", "<f4": "f"}[header["descr"]]
    flat = struct.unpack_from(f"<{rows * cols}{letter}", data, 10 + length)
    return [list(flat[i * cols : (i + 1) * cols]) for i in range(rows)]


def write_idx(path, items, shape):
    """Unsigned bytes, gzipped, as the MNIST files are."""
    with gzip.open(path, "wb") as file:
        file.write(bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}i", *shape))
        file.write(bytes(items))


def to_float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def distance(metric, x, y):
    product = sum(a * b for a, b in zip(x, y, strict=True))
    if metric == "l2":
        return sum((a - b) ** 2 for a, b in zip(x, y, strict=True))
    if metric == "ip":
        return product
    xx, yy = sum(a * a for a in x), sum(b * b for b in y)
    return 1.0 - product / math.sqrt(xx * yy) if xx and yy else 1.0


def brute_force(queries, base, k, metric="l2"):
    """(ids, distances), padded as the design says."""
    worst = -math.inf if metric == "ip" else math.inf
    ids, distances = [], []
    for query in queries:
        found = [(distance(metric, query, row), i) for i, row in enumerate(base)]
        found.sort(key=lambda pair: (-pair[0] if metric == "ip" else pair[0], pair[1]))
        found = found[:k] + [(worst, -1)] * (k - len(found))
        ids.append([i for _, i in found])
        distances.append([to_float32(d) if math.isfinite(d) else d for d, _ in found])
    return ids, distances


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.environment = dict(os.environ, XDG_CACHE_HOME=self.path("cache"))
        for name in ("KNEAR_DATA", "KNEAR_ISA"):
            self.environment.pop(name, None)
        # Whole numbers, so that every order of summation gives the same float64: what is compared
        # is the search. Few values, so that there are ties.
        source = random.Random(1)
        self.base = [[source.randrange(6) for _ in range(12)] for _ in range(300)]
        self.queries = [[source.randrange(6) for _ in range(12)] for _ in range(17)]
        write_vecs(self.path("base.bvecs"), self.base, "B")
        write_vecs(self.path("queries.bvecs"), self.queries, "B")
        write_vecs(self.path("base.fvecs"), self.base, "f")
        write_vecs(self.path("queries.fvecs"), self.queries, "f")

    def path(self, name):
        return os.path.join(self.folder, name)

    def file(self, name):
        return pathlib.Path(self.path(name))

    def run_program(self, *arguments, **options):
        options.setdefault("stdout", subprocess.PIPE)
        return subprocess.run(
            [KNEAR, *map(str, arguments)],
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            cwd=self.folder,
            env=self.environment,
            text=True,
            timeout=300,
            **options,
        )

    def ok(self, *arguments):
        result = self.run_program(*arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""), arguments)
        return result.stdout

    def fails(self, status, *arguments, says="", **options):
        before = sorted(os.listdir(self.folder))
        result = self.run_program(*arguments, **options)
        self.assertEqual(result.returncode, status, (arguments, result.stderr))
        self.assertRegex(result.stderr, r"\Aknear: [^\n]+\n\Z", arguments)
        self.assertIn(says, result.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), before, "an error left a file behind")
        return result

    def search(self, *more, files="bvecs", command="search"):
        return self.ok(
            command, "--base", f"base.{files}", "--queries", f"queries.{files}", *more
        )


class Search(ProgramTest):
    def test_ids_and_distances_equal_brute_force(self):
        for metric in ("l2", "ip", "cosine"):
            expected_ids, expected_distances = brute_force(self.queries, self.base, 7, metric)
            for files in ("bvecs", "fvecs"):
                with self.subTest(metric=metric, files=files):
                    self.search(
                        "-k", 7, "--metric", metric, "--out", "a.ivecs", "--distances", "d.fvecs",
                        files=files,
                    )
                    self.assertEqual(read_vecs(self.path("a.ivecs"), "i"), expected_ids)
                    self.assertEqual(read_vecs(self.path("d.fvecs"), "f"), expected_distances)

    def test_npy_outputs_hold_the_same(self):
        self.search("-k", 3, "--out", "a.npy", "--distances", "d.npy")
        expected = brute_force(self.queries, self.base, 3)
        self.assertEqual((read_npy(self.path("a.npy")), read_npy(self.path("d.npy"))), expected)

    def test_more_neighbours_than_rows_are_padded(self):
        for metric in ("l2", "ip"):
            self.search(
                "-k", 305, "--metric", metric, "--out", "a.ivecs", "--distances", "d.fvecs"
            )
            ids, distances = brute_force(self.queries, self.base, 305, metric)
            self.assertEqual(read_vecs(self.path("a.ivecs"), "i"), ids)
            self.assertEqual(read_vecs(self.path("d.fvecs"), "f"), distances)

    def test_options_do_not_change_the_answer(self):
        expected, _ = brute_force(self.queries, self.base, 5)
        for more in (
            ["--threads", 1], ["--threads", 0], ["--method", "exact"], ["--device", "cpu"],
            ["--method", "threshold-heap"], ["--method", "threshold-heap", "--samples", 40],
            ["--method", "partial-reduce"],
            ["--recall", 0.5], ["--memory", "64M"], ["--type", "f32"], ["--first-pass", "int8"],
            ["--first-pass", "fp32"], ["--first-pass", "integer"], ["--first-pass", "prefix"],
            ["--explain"], ["--choose", "group=4,parts=2"], ["--choose", "guess=off,tile=4"],
            ["--first-pass", "int8", "--choose", "refine=on"], ["--choose", "refine=off"],
            ["--first-pass", "prefix", "--choose", "columns=8,clusters=3"],
        ):
            with self.subTest(more=more):
                self.search("-k", 5, "--out", "a.ivecs", *more)
                self.assertEqual(read_vecs(self.path("a.ivecs"), "i"), expected)

    def test_json_has_every_key(self):
        out = json.loads(self.search("-k", 5, "--json", "--threads", 2))
        self.assertLessEqual(SEARCH_KEYS, out.keys())
        self.assertEqual(
            (out["k"], out["metric"], out["method"], out["device"], out["threads"]),
            (5, "l2", "exact", "cpu", 2),
        )
        self.assertEqual((out["rows"], out["dim"], out["queries"]), (300, 12, 17))
        self.assertEqual((out["promised_recall"], out["recall_argument"]), (1, "exact"))
        self.assertEqual(out["certified_queries"], 17)
        self.assertGreater(out["predicted_seconds"], 0)
        self.assertAlmostEqual(out["queries_per_second"], 17 / out["seconds"], delta=1)
        self.assertIn("explain", json.loads(self.search("-k", 5, "--json", "--explain")))

    def test_a_lower_recall_is_answered_exactly_and_says_so(self):
        out = json.loads(self.search("-k", 5, "--json", "--recall", 0.8))
        self.assertEqual((out["promised_recall"], out["recall_argument"]), (1, "exact"))

    def test_other_methods_say_what_they_did(self):
        self.search("-k", 5, "--out", "truth.ivecs")
        out = json.loads(self.search("-k", 5, "--json", "--method", "threshold-heap"))
        self.assertEqual((out["method"], out["samples"]), ("threshold-heap", 40))
        self.assertEqual((out["promised_recall"], out["certified_queries"]), (1, 17))
        self.assertGreaterEqual(out["compression_ratio"], 1)
        self.assertTrue(0 < out["threshold_ratio"] <= 1)
        self.assertGreater(out["sampling_seconds"], 0)
        out = json.loads(
            self.search("-k", 5, "--json", "--method", "partial-reduce", "--recall", 0.9,
                        "--truth", "truth.ivecs")
        )
        self.assertEqual((out["method"], out["promised_recall"]), ("partial-reduce", 0.9))
        self.assertGreaterEqual(out["expected_recall"], 0.9)
        self.assertGreaterEqual(out["recall"], 0.9)
        self.assertGreater(out["bins"] * out["kept_per_bin"], 4)
        self.assertLessEqual(out["certified_queries"], 17)
        text = self.search("-k", 5, "--method", "partial-reduce", "--recall", 0.9)
        self.assertIn("recall 0.9 promised", text)
        text = self.search("-k", 5, "--method", "threshold-heap")
        self.assertIn("40 rows sampled", text)

    def test_recall_counts_equally_near_rows_as_found(self):
        ids, distances = brute_force(self.queries, self.base, 300)
        truth, lost = [], 0
        for row, d in zip(ids, distances, strict=True):
            # The same distances from the far end of each group of ties: other ids, no less true.
            fourth = [i for i, x in zip(row, d, strict=True) if x == d[3]]
            truth.append(row[:3] + [fourth[-1]])
            lost += fourth[-1] != row[3]
        self.assertGreater(lost, 0, "the data must have ties at the fourth neighbour")
        write_vecs(self.path("truth.ivecs"), truth, "i")
        out = json.loads(self.search("-k", 4, "--json", "--truth", "truth.ivecs"))
        self.assertEqual(out["recall"], 1)
        self.assertAlmostEqual(out["recall_ids"], 1 - lost / (4 * 17))
        low, high = out["recall_interval"]
        self.assertTrue(0.5 < low < 1 and 0.999999 < high <= 1, (low, high))

    def test_rows_nearer_than_the_truth_are_found_by_distance_only(self):
        ids, _ = brute_force(self.queries, self.base, 300)
        write_vecs(self.path("far.ivecs"), [row[-4:] for row in ids], "i")
        out = json.loads(self.search("-k", 4, "--json", "--truth", "far.ivecs"))
        self.assertEqual((out["recall"], out["recall_ids"]), (1, 0))

    def test_filter(self):
        allowed = [i for i in range(300) if i % 7 < 2]
        ids, _ = brute_force(self.queries, [self.base[i] for i in allowed], 5)
        expected = [[allowed[i] for i in row] for row in ids]
        shuffled = allowed[::-1]
        write_vecs(self.path("allowed.ivecs"), [shuffled[:40], shuffled[40:80]], "i")
        rest = shuffled[80:]
        header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({len(shuffled)},), }}"
        with open(self.path("allowed.npy"), "wb") as file:  # as numpy.save does with a list of ids
            file.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode())
            file.write(struct.pack(f"<{len(shuffled)}q", *shuffled))
        out = json.loads(self.search("-k", 5, "--json", "--filter", "allowed.npy",
                                     "--out", "a.ivecs"))
        self.assertEqual((out["rows"], out["allowed_rows"]), (300, len(allowed)))
        self.assertEqual(read_vecs(self.path("a.ivecs"), "i"), expected)
        out = json.loads(self.search("-k", 5, "--json", "--filter", "allowed.ivecs"))
        self.assertEqual(out["allowed_rows"], len(allowed) - len(rest))
        text = self.search("-k", 5, "--filter", "allowed.npy")
        self.assertIn(f"{len(allowed)} rows allowed", text)
        self.search("-k", 4, "--filter", "allowed.npy", "--out", "t.ivecs", command="truth")
        self.assertEqual(read_vecs(self.path("t.ivecs"), "i"), [row[:4] for row in expected])
        write_vecs(self.path("beyond.ivecs"), [[3, 300]], "i")
        self.fails(1, "search", "--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "5",
                   "--filter", "beyond.ivecs", "--out", "b.ivecs", says="id 300 in place 1")

    def test_radius(self):
        for metric in ("l2", "ip", "cosine"):
            ids, distances = brute_force(self.queries, self.base, 300, metric)
            radius = distances[2][6]  # exact in decimal or not, the seventh of this query is within
            near = (lambda d, r=radius: d >= r) if metric == "ip" else (lambda d, r=radius: d <= r)
            inside = [sum(map(near, row)) for row in distances]
            out = json.loads(self.search("-k", 9, "--metric", metric, "--radius", repr(radius),
                                         "--json", "--out", "a.ivecs", "--distances", "a.fvecs"))
            found = read_vecs(self.path("a.ivecs"), "i")
            if metric != "cosine":  # whose distances are rounded in the file only
                self.assertEqual(out["results_per_query"], sum(min(9, n) for n in inside) / 17)
                self.assertEqual(out["queries_with_more_than_k"], sum(n > 9 for n in inside))
                for row, true, n in zip(found, ids, inside, strict=True):
                    self.assertEqual(row, true[: min(9, n)] + [-1] * (9 - min(9, n)))
            else:
                for row, true in zip(found, ids, strict=True):
                    self.assertEqual([i for i in row if i >= 0], true[: sum(i >= 0 for i in row)])
        self.assertIn("neighbours within the radius 5;", self.search("-k", 2, "--radius", 5))
        # A radius that holds everything takes no more memory than k neighbours do.
        for k in (9, 300, 400):
            self.search("-k", k, "--radius", "1e300", "--out", "b.ivecs")
            self.search("-k", k, "--out", "c.ivecs")
            self.assertEqual(read_vecs(self.path("b.ivecs"), "i"),
                             read_vecs(self.path("c.ivecs"), "i"))
        files = ["search", "--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "2"]
        write_vecs(self.path("truth.ivecs"), [[0, 1]] * 17, "i")
        self.fails(1, *files, "--radius", "5", "--truth", "truth.ivecs", says="--radius 5")
        self.fails(2, *files, "--radius", "nan", says="--radius")

    def test_summary_shows_first_answers(self):
        text = self.search("-k", 5)
        ids, distances = brute_force(self.queries, self.base, 5)
        self.assertIn(f"{ids[0][0]}: {distances[0][0]:g}", text)
        self.assertNotIn(f"{ids[0][0]}: ", self.search("-k", 5, "--out", "a.ivecs"))

    def test_explain_prints_plan_and_outcome(self):
        text = self.search("-k", 5, "--explain", "--out", "a.ivecs")
        for line in ("planned", "limit", "seconds", "multiply-adds", "bytes read",
                     "hits per query", "survivors per query", "memory"):
            self.assertIn(line, text)

    def test_wrong_words_have_status_2(self):
        files = ["--base", "base.bvecs", "--queries", "queries.bvecs"]
        for arguments, says in (
            ([], "command"), (["serch"], "serch"), (["--bogus"], "--bogus"),
            (["search"], "-k"), (["search", *files], "-k"),
            (["search", "-k", "5", "--queries", "queries.bvecs"], "--base"),
            (["search", "-k", "5", "--base", "base.bvecs"], "--queries"),
            (["search", *files, "-k", "five"], "five"), (["search", *files, "-k", "5.5"], "5.5"),
            (["search", *files, "-k", ""], "-k"), (["search", *files, "-k"], "-k"),
            (["search", *files, "-k", "5", "--bogus"], "--bogus"),
            (["search", *files, "-k", "5", "stray"], "stray"),
            (["search", *files, "-k", "5", "--memory", "12Q"], "12Q"),
            (["search", *files, "-k", "5", "--memory", "M"], "--memory"),
            (["search", *files, "-k", "5", "--recall", "most"], "most"),
            (["search", *files, "-k", "5", "--recall", "nan"], "nan"),
            (["search", *files, "-k", "5", "--threads", "two"], "two"),
            (["search", *files, "-k", "5", "-k", "6"], "-k"),
            (["truth", *files, "-k", "5"], "--out"),
            (["bench"], "exact"), (["bench", "nothing"], "nothing"),
            (["roofline", "--seconds", "long"], "long"),
            (["demo", "--base", "base.bvecs"], "--queries"),
        ):
            with self.subTest(arguments=arguments):
                self.fails(2, *arguments, says=says)

    def test_wrong_values_have_status_1(self):
        for more, says in (
            (["-k", "0"], "-k"), (["-k", "-3"], "-3"), (["-k", "99999999999999999999"], "-k"),
            (["-k", "1000000000000000"], "k = 1000000000000000"),
            (["-k", "5", "--threads", "-1"], "-1"), (["-k", "5", "--threads", "5000"], "5000"),
            (["-k", "5", "--recall", "0"], "--recall"), (["-k", "5", "--recall", "1.01"], "1.01"),
            (["-k", "5", "--recall", "-1"], "--recall"),
            (["-k", "5", "--method", "exact", "--recall", "0.9"], "0.9"),
            (["-k", "5", "--metric", "l7"], "l7"), (["-k", "5", "--method", "magic"], "magic"),
            (["-k", "5", "--method", "threshold-heap", "--recall", "0.9"], "0.9"),
            (["-k", "5", "--method", "threshold-heap", "--samples", "4"], "but are 4"),
            (["-k", "5", "--method", "threshold-heap", "--samples", "-4"], "-4"),
            (["-k", "5", "--method", "exact", "--samples", "50"], "50"),
            (["-k", "5", "--method", "partial-reduce", "--radius", "9"], "--radius 9"),
            (["-k", "5", "--method", "partial-reduce", "--first-pass", "direct"], "direct"),
            (["-k", "5", "--type", "f8"], "f8"), (["-k", "5", "--device", "abacus"], "abacus"),
            (["-k", "5", "--first-pass", "int4"], "int4"),
            (["-k", "5", "--first-pass", "prefix", "--metric", "ip"], "l2 or cosine"),
            (["-k", "5", "--choose", "group=3"], "group=3"),
            (["-k", "5", "--choose", "tile=0"], "tile=0"),
            (["-k", "5", "--choose", "refine=yes"], "refine=yes"),
            (["-k", "5", "--first-pass", "fp32", "--choose", "refine=on"], "fp32"),
            (["-k", "5", "--choose", "columns=8"], "not prefix"),
            (["-k", "5", "--first-pass", "direct", "--choose", "tile=4"], "direct"),
            (["-k", "5", "--memory", "0"], "--memory"), (["-k", "5", "--memory", "-5M"], "-5M"),
            (["-k", "5", "--memory", "1"], "memory"),
            (["-k", "5", "--out", "a.txt"], "--out"),
            (["-k", "5", "--out", "none/a.ivecs"], "none/a.ivecs"),
            (["-k", "5", "--out", "a.ivecs", "--distances", "none/d.fvecs"], "none/d.fvecs"),
            (["-k", "5", "--out", "a.npy", "--distances", "a.npy"], "a.npy"),
            (["-k", "5", "--truth", "none.ivecs"], "none.ivecs"),
        ):
            with self.subTest(more=more):
                self.fails(
                    1, "search", "--base", "base.bvecs", "--queries", "queries.bvecs", *more,
                    says=says,
                )
        self.fails(1, "truth", "--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "5",
                   "--recall", "0.9", "--out", "a.ivecs", says="0.9")

    def test_what_is_not_in_this_version_says_so(self):
        for more in (
            ["--probes", "4"],
            ["--device", "cuda"], ["--device", "cuda:1"],
        ):
            with self.subTest(more=more):
                result = self.fails(1, "search", "--base", "base.bvecs", "--queries",
                                    "queries.bvecs", "-k", "5", *more,
                                    says="not in this version")
                self.assertIn(more[0], result.stderr)

    def test_bad_files_have_status_1(self):
        write_vecs(self.path("narrow.bvecs"), [row[:5] for row in self.queries], "B")
        bad = [list(map(float, row)) for row in self.queries]
        bad[3][2] = math.nan
        write_vecs(self.path("nan.fvecs"), bad, "f")
        self.file("torn.bvecs").write_bytes(self.file("base.bvecs").read_bytes()[:-3])
        write_vecs(self.path("wide.ivecs"), [[0, 1, 2]] * 17, "i")
        write_vecs(self.path("short.ivecs"), [[0, 1, 2, 3, 4]] * 16, "i")
        write_vecs(self.path("outside.ivecs"), [[0, 1, 2, 3, 300]] * 17, "i")
        for base, queries, more, says in (
            ("none.bvecs", "queries.bvecs", [], "none.bvecs"),
            ("base.bvecs", "none.bvecs", [], "none.bvecs"),
            ("torn.bvecs", "queries.bvecs", [], "torn.bvecs"),
            ("base.bvecs", "narrow.bvecs", [], "5 columns"),
            ("base.bvecs", "nan.fvecs", [], "3"),
            ("base.bvecs", "queries.bvecs", ["--truth", "wide.ivecs"], "3 columns"),
            ("base.bvecs", "queries.bvecs", ["--truth", "short.ivecs"], "16"),
            ("base.bvecs", "queries.bvecs", ["--truth", "outside.ivecs"], "300"),
        ):
            with self.subTest(base=base, queries=queries, more=more):
                self.fails(1, "search", "--base", base, "--queries", queries, "-k", "5",
                           "--out", "a.ivecs", *more, says=says)

    def test_an_input_is_never_overwritten(self):
        before = self.file("base.fvecs").read_bytes()
        os.link(self.path("base.fvecs"), self.path("same.fvecs"))
        for out in ("base.fvecs", "./base.fvecs", "same.fvecs"):
            self.fails(1, "search", "--base", "base.fvecs", "--queries", "queries.fvecs", "-k",
                       "5", "--distances", out, says="overwrite")
        self.assertEqual(self.file("base.fvecs").read_bytes(), before)

    def test_an_older_output_survives_an_error(self):
        self.file("a.ivecs").write_text("older")
        self.fails(1, "search", "--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "5",
                   "--out", "a.ivecs", "--distances", "none/d.fvecs")
        self.assertEqual(self.file("a.ivecs").read_text(), "older")

    def test_no_queries_are_no_error(self):
        header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (0, 12), }"
        header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
        with open(self.path("none.npy"), "wb") as file:
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
        out = json.loads(
            self.ok("search", "--base", "base.bvecs", "--queries", "none.npy", "-k", 5, "--json")
        )
        self.assertEqual(out["queries"], 0)


class EveryCommand(ProgramTest):
    """What any user may do wrong, with every command that could notice it."""

    # Commands by what they read and write; FILE, QUERIES and OUT are put in.
    reading = {
        "search": ["search", "--base", "FILE", "--queries", "QUERIES", "-k", "3", "--out", "OUT"],
        "truth": ["truth", "--base", "FILE", "--queries", "QUERIES", "-k", "3", "--out", "OUT"],
        "build": ["build", "--base", "FILE", "--index", "Flat", "--out", "OUT"],
        "convert": ["convert", "FILE", "OUT"],
        "info": ["info", "FILE"],
        "eval": ["eval", "QUERIES", "QUERIES", "--base", "FILE", "--queries", "FILE"],
    }
    endings = {"build": ".knear", "convert": ".fvecs"}

    def words(self, command, file, queries="queries.fvecs", out=None):
        out = out or "out" + self.endings.get(command, ".ivecs")
        if command == "eval" and queries == "queries.fvecs":
            queries = "ids.ivecs"
        names = {"FILE": file, "QUERIES": queries, "OUT": out}
        return [names.get(word, word) for word in self.reading[command]]

    def setUp(self):
        super().setUp()
        write_vecs(self.path("ids.ivecs"), [[0]] * 17, "i")

    def test_files_that_are_none(self):
        whole = self.file("base.fvecs").read_bytes()
        self.file("empty.fvecs").write_bytes(b"")
        self.file("cut.fvecs").write_bytes(whole[:-2])
        self.file("text.fvecs").write_bytes(b"some words that are no vectors")
        self.file("text.dat").write_bytes(b"some words that are no vectors")
        os.mkdir(self.path("folder.fvecs"))
        for command in self.reading:
            for file in ("none.fvecs", "empty.fvecs", "cut.fvecs", "text.fvecs", "text.dat",
                         "folder.fvecs"):
                with self.subTest(command=command, file=file):
                    self.fails(1, *self.words(command, file), says=file)

    def test_no_permission(self):
        self.file("secret.fvecs").write_bytes(self.file("base.fvecs").read_bytes())
        os.chmod(self.path("secret.fvecs"), 0)
        options = {}
        if os.geteuid() == 0:  # who may read everything: as nobody, then
            options["user"] = 65534
            os.chmod(self.folder, 0o755)
            try:
                self.run_program("--version", **options)
            except PermissionError:
                self.skipTest("nobody may not run the program where it lies")
        for command in self.reading:
            self.fails(1, *self.words(command, "secret.fvecs"), says="Permission denied",
                       **options)
        for command in ("search", "truth", "build", "convert"):  # nor write here
            if options:
                self.fails(1, *self.words(command, "base.fvecs"), says="Permission denied",
                           **options)

    def test_not_finite(self):
        for value in (math.nan, math.inf, -math.inf):
            rows = [[float(x) for x in row] for row in self.base]
            rows[7][5] = value
            write_vecs(self.path("bad.fvecs"), rows, "f")
            for command in ("search", "truth", "build"):
                self.fails(1, *self.words(command, "bad.fvecs"), says="row 7 column 5")
            write_vecs(self.path("bad.fvecs"), rows[:8], "f")
            for command in ("search", "truth"):
                self.fails(1, *self.words(command, "base.fvecs", "bad.fvecs"),
                           says="queries must be finite, but row 7 column 5")
            self.assertIn("not finite", self.ok("info", "bad.fvecs"))

    def test_columns_that_differ(self):
        write_vecs(self.path("wide.fvecs"), [[1.0] * 13] * 4, "f")
        for command in ("search", "truth"):
            self.fails(1, *self.words(command, "wide.fvecs"), says="12 columns, base has 13")

    def test_k(self):
        self.ok("build", "--base", "base.fvecs", "--index", "Flat", "--out", "a.knear")
        for command in (["search", "--base", "base.fvecs"], ["search", "--index", "a.knear"],
                        ["truth", "--base", "base.fvecs"]):
            words = [*command, "--queries", "queries.fvecs", "--out", "o.ivecs"]
            for k in (0, -1, -(2**40)):
                self.fails(1, *words, "-k", str(k), says=f"-k must be at least 1, but is {k}")
            self.fails(1, *words, "-k", str(2**62), says="k")
            self.fails(2, *words, "-k", "ten", says="-k")
            self.ok(*words, "-k", "305")
            rows = read_vecs(self.path("o.ivecs"), "i")
            self.assertTrue(all(row[300:] == [-1] * 5 and -1 not in row[:300] for row in rows))
            self.file("o.ivecs").unlink()

    def test_full_disk(self):
        disk = self.path("disk")
        os.mkdir(disk)
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk],
                              stderr=subprocess.DEVNULL)
        if made.returncode != 0:
            self.skipTest("no right to mount a small disk")
        self.addCleanup(subprocess.run, ["umount", disk])
        write_vecs(self.path("many.fvecs"), [[float(i), 0.5] for i in range(9000)], "f")
        for command, queries in (("search", "many.fvecs"), ("truth", "many.fvecs"),
                                 ("build", ""), ("convert", "")):
            out = "disk/out" + self.endings.get(command, ".ivecs")
            words = self.words(command, "many.fvecs", queries, out)
            result = self.fails(1, *words, says=out)
            self.assertIn("No space left on device", result.stderr)
            self.assertEqual(os.listdir(disk), [], command)

    def test_ctrl_c_half_way(self):
        # Zeros that take no disk: two seconds of work and more for every command.
        rows, dim = 3_000_000, 128
        with open(self.path("big.u8bin"), "wb") as file:
            file.write(struct.pack("<II", rows, dim))
            file.truncate(8 + rows * dim)
        before = sorted(os.listdir(self.folder))
        for command in ("build", "convert", "info"):
            with self.subTest(command=command):
                process = subprocess.Popen(
                    [KNEAR, *self.words(command, "big.u8bin")], cwd=self.folder,
                    env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
                time.sleep(0.15)
                self.assertIsNone(process.poll(), "it was over before it could be interrupted")
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=120)
                self.assertEqual((process.returncode, out, err), (130, "", "knear: interrupted\n"))
                self.assertEqual(sorted(os.listdir(self.folder)), before)


class LargerThanMemory(ProgramTest):
    """Bases that cannot be mapped and are larger than --memory: read block by block."""

    def run_measured(self, *arguments):
        """The most memory that the program took, in bytes."""
        process = subprocess.Popen([KNEAR, *map(str, arguments)], cwd=self.folder,
                                   env=self.environment, stdout=subprocess.DEVNULL)
        most = 0  # as the system counts it; what wait4 says has the memory of Python in it
        status = pathlib.Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            with contextlib.suppress(OSError):  # it ended meanwhile
                peak = re.search(r"VmHWM:\s*(\d+) kB", status.read_text())
                if peak and os.readlink(f"/proc/{process.pid}/exe") == KNEAR:
                    most = max(most, int(peak[1]) * 1024)
            time.sleep(0.002)
        self.assertEqual(process.returncode, 0, arguments)
        self.assertGreater(most, 0)
        return most

    def test_search_and_truth_stay_within_memory(self):
        rows, dim, memory = 400_000, 32, 12 << 20
        noise = random.Random(2).randbytes(1 << 20) * 8
        data = noise[: rows * dim // 4] * 4 + bytes(rows * dim)  # as big as 51 MB of f32
        header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({rows}, {dim}), }}"
        content = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode()
        content += (data * 2)[: 2 * rows * dim]
        self.file("big.npy").write_bytes(content)
        with gzip.open(self.path("big.npy.gz"), "wb", compresslevel=1) as file:
            file.write(content)
        queries = ["--queries", "q.fvecs", "-k", "6"]
        self.ok("convert", "big.npy", "q.fvecs", "--rows", "1000:1020", "--type", "f32")
        self.ok("convert", "big.npy", "whole.fvecs")
        write_vecs(self.path("some.ivecs"), [list(range(0, rows, 7))], "i")
        for more in ([], ["--filter", "some.ivecs"], ["--metric", "cosine"],
                     ["--radius", "40000000"]):
            self.ok("search", "--base", "whole.fvecs", *queries, *more, "--out", "w.ivecs",
                    "--distances", "w.fvecs")
            want = [self.file(f"w.{e}").read_bytes() for e in ("ivecs", "fvecs")]
            for base in ("big.npy", "big.npy.gz"):
                used = self.run_measured(
                    "search", "--base", base, *queries, *more, "--memory", memory, "--out",
                    "g.ivecs", "--distances", "g.fvecs")
                got = [self.file(f"g.{e}").read_bytes() for e in ("ivecs", "fvecs")]
                self.assertEqual(got, want, (base, more))
                if not SANITISED:  # the program itself takes some
                    self.assertLess(used, memory + (24 << 20), (base, more))
        self.ok("truth", "--base", "big.npy.gz", *queries, "--memory", memory, "--out", "t.ivecs")
        out = json.loads(self.ok("search", "--base", "big.npy.gz", *queries, "--memory", memory,
                                 "--truth", "t.ivecs", "--json"))
        self.assertEqual((out["recall"], out["recall_ids"], out["rows"]), (1, 1, rows))
        self.fails(1, "search", "--base", "big.npy", *queries, "--memory", "100k",
                   says="memory is")


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
                self.assertEqual((made["rows"], made["metric"], made["index"]),
                                 (300, metric, "Flat"))
                for more in ([], ["--filter", "allowed.ivecs"], ["--radius", "40"],
                             ["--memory", "8M"], ["--threads", "1"]):
                    outputs = ["-k", "6", "--out", "b.ivecs", "--distances", "b.fvecs", *more]
                    self.ok("search", "--base", base, "--queries", "queries.bvecs", "--metric",
                            metric, *outputs)
                    want = [self.file(f"b.{e}").read_bytes() for e in ("ivecs", "fvecs")]
                    self.search_index(*outputs)
                    got = [self.file(f"b.{e}").read_bytes() for e in ("ivecs", "fvecs")]
                    self.assertEqual(got, want, (metric, base, more))
                out = json.loads(self.search_index("-k", "4", "--json", "--metric", metric))
                self.assertEqual((out["metric"], out["rows"], out["dim"]), (metric, 300, 12))
                self.search_index("-k", "4", "--out", "t.ivecs")
                out = json.loads(self.search_index("-k", "4", "--json", "--truth", "t.ivecs"))
                self.assertEqual((out["recall"], out["recall_ids"]), (1, 1))

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
        self.fails(1, "search", "--index", "altered.knear", "--queries", "queries.bvecs", "-k",
                   "2", "--out", "c.ivecs", says="section '0/")
        self.file("text.knear").write_bytes(b"text" * 50)
        self.fails(1, "info", "text.knear", says="is no .knear file")

    def test_wrong_values(self):
        self.build()
        both = ["--queries", "queries.bvecs", "-k", "3"]
        self.fails(2, "search", *both, says="one of --base and --index")
        self.fails(2, "search", "--base", "base.bvecs", "--index", "a.knear", *both,
                   says="one of --base and --index")
        self.fails(1, "search", "--index", "a.knear", *both, "--metric", "ip",
                   says="--metric is ip, but a.knear was built for l2")
        self.fails(1, "search", "--index", "none.knear", *both, says="none.knear")
        self.fails(1, "search", "--index", "base.bvecs", *both, says="is no .knear file")
        write_vecs(self.path("wide.fvecs"), [[1.0] * 7], "f")
        self.fails(1, "search", "--index", "a.knear", "--queries", "wide.fvecs", "-k", "3",
                   says="queries have 7 columns, index has 12")
        write_vecs(self.path("beyond.ivecs"), [[3, 300]] * 17, "i")
        self.fails(1, "search", "--index", "a.knear", *both, "--filter", "beyond.ivecs",
                   says="filter holds id 300, which the index does not hold")
        self.fails(1, "search", "--index", "a.knear", "--queries", "queries.bvecs", "-k", "2",
                   "--truth", "beyond.ivecs", says="--truth names id 300 for query 0")
        build = ["build", "--base", "base.bvecs"]
        self.fails(2, *build, "--out", "b.knear", says="--index is required")
        self.fails(1, *build, "--index", "IVF16,PQ8", "--out", "b.knear",
                   says="--index IVF16,PQ8 is not in this version, only Flat")
        self.fails(1, *build, "--index", "Flat", "--out", "b.bin", says="must end in .knear")
        self.fails(1, *build, "--index", "Flat", "--out", "no/b.knear", says="no/b.knear")
        self.fails(1, *build, "--index", "Flat", "--out", "b.knear", "--train", "100",
                   says="--train is 100, but Flat learns nothing")
        self.fails(1, *build, "--index", "Flat", "--out", "b.knear", "--metric", "l1", says="l1")
        self.fails(1, "build", "--base", "none.fvecs", "--index", "Flat", "--out", "b.knear",
                   says="none.fvecs")
        bad = [[1.0] * 12, [math.nan] * 12]
        write_vecs(self.path("nan.fvecs"), bad, "f")
        self.fails(1, "build", "--base", "nan.fvecs", "--index", "Flat", "--out", "b.knear",
                   says="row 1")
        self.assertFalse(self.file("b.knear").exists())


class Truth(ProgramTest):
    def test_equals_brute_force(self):
        self.search("-k", 9, "--out", "t.ivecs", "--distances", "d.fvecs", command="truth")
        ids, distances = brute_force(self.queries, self.base, 9)
        self.assertEqual(read_vecs(self.path("t.ivecs"), "i"), ids)
        self.assertEqual(read_vecs(self.path("d.fvecs"), "f"), distances)
        out = json.loads(self.search("-k", 9, "--truth", "t.ivecs", "--json"))
        self.assertEqual((out["recall"], out["recall_ids"]), (1, 1))


class Streams(ProgramTest):
    def test_help_and_version(self):
        self.assertRegex(self.ok("--version"), r"\Aknear \d+\.\d+\.\d+\n\Z")
        commands = re.findall(r"^  (\w+) ", self.ok("--help").split("Subcommands:")[1], re.M)
        self.assertLessEqual(
            {"demo", "info", "convert", "search", "truth", "eval", "roofline", "bench"},
            set(commands),
        )
        for command in commands:
            self.assertIn(f"knear {command}", self.ok(command, "--help"), "an example")

    def test_a_full_or_closed_output_is_an_error(self):
        arguments = ["search", "--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "5"]
        with open("/dev/full", "w") as full:
            self.fails(1, *arguments, "--json", stdout=full, says="standard output")
            self.fails(1, "--version", stdout=full, says="standard output")
        command = 'exec "$0" "$@" >&-'
        closed = subprocess.run(["sh", "-c", command, KNEAR, *arguments], cwd=self.folder,
                                env=self.environment, stderr=subprocess.PIPE, text=True)
        self.assertEqual(closed.returncode, 1)
        self.assertRegex(closed.stderr, r"\Aknear: [^\n]+\n\Z")
        read_end, write_end = os.pipe()
        os.close(read_end)
        self.fails(1, *arguments, stdout=write_end, says="standard output")
        os.close(write_end)

    def test_progress_is_for_terminals_only(self):
        self.big_files()
        main, terminal = pty.openpty()
        process = subprocess.Popen(
            [KNEAR, "search", "--base", "big.fvecs", "--queries", "big.fvecs", "-k", "5",
             "--first-pass", "fp32"],
            cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL, stderr=terminal)
        os.close(terminal)
        shown = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        os.close(main)
        self.assertEqual(process.wait(), 0)
        self.assertRegex(shown.decode(), r"\[#* *\] +\d+ %")
        self.assertTrue(shown.endswith(b"\x1b[K"), "the bar is wiped in the end")

    def big_files(self, rows=6000, dim=200):
        """Enough work to be interrupted in, though not to wait for."""
        noise = random.Random(2).randbytes(rows * dim)
        with open(self.path("big.fvecs"), "wb") as file:
            for i in range(rows):
                row = noise[i * dim : (i + 1) * dim]
                file.write(struct.pack(f"<i{dim}f", dim, *(x + 0.37 * i for x in row)))

    def test_ctrl_c_stops_cleanly(self):
        self.big_files()
        before = sorted(os.listdir(self.folder))
        # In float64 throughout: seconds of work on any machine.
        process = subprocess.Popen(
            [KNEAR, "search", "--base", "big.fvecs", "--queries", "big.fvecs", "-k", "5",
             "--first-pass", "direct", "--threads", "1", "--out", "a.ivecs"],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
            # Programs started in the background have it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        time.sleep(0.5)
        self.assertIsNone(process.poll(), "it was over before it could be interrupted")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        self.assertEqual((process.returncode, out, err), (130, "", "knear: interrupted\n"))
        self.assertEqual(sorted(os.listdir(self.folder)), before)


class Roofline(ProgramTest):
    KEYS = {"fp32_flops", "bf16_flops", "int8_ops", "memory_bytes_per_second", "cop_per_second",
            "threads", "int16_ops", "isa"}

    def test_measures_and_keeps(self):
        out = json.loads(self.ok("roofline", "--threads", 1, "--seconds", 0.3, "--json"))
        self.assertLessEqual(self.KEYS, out.keys())
        self.assertEqual(out["threads"], 1)
        for key in self.KEYS - {"isa", "threads", "bf16_flops"}:
            self.assertGreater(out[key], 1e6, key)
        self.assertTrue(out["bf16_flops"] is None or out["bf16_flops"] > 1e6)
        found = json.loads(self.search("-k", 3, "--threads", 1, "--json"))
        self.assertEqual(found["peaks"], "measured")
        # A kept file that makes no sense is as good as none.
        self.file("cache/knear/roofline.json").write_text('{"a": [')
        found = json.loads(self.search("-k", 3, "--threads", 1, "--json"))
        self.assertEqual(found["peaks"], "estimated")

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
        self.assertIn("NVIDIA H200", self.ok("roofline", "--machine", "h200"))
        there = json.loads(self.search("-k", 3, "--machine", "h200", "--json"))["machine"]
        self.assertEqual(there["name"], "h200")
        self.assertGreater(there["predicted_seconds"], 0)
        self.assertIn("on TPU v3: ", self.search("-k", 3, "--machine", "tpu-v3"))
        for command in (["roofline"], ["search", "--base", "b", "--queries", "q", "-k", 1]):
            self.fails(1, *command, "--machine", "h20", says="v100, a100, tpu-v3, tpu-v4, h200")
        self.fails(2, "roofline", "--machine", "h200", "--threads", 1, says="--threads")

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

    def test_a_pass_that_does_not_fit_the_data_is_named(self):
        made = ["bench", "exact", "--set", "f32", "--rows", 2000, "--count", 20, "--repeat", 1]
        out = json.loads(self.ok(*made, "--json"))
        refused = [line["asked"] for line in out["passes"] if "refusal" in line]
        self.assertEqual(refused, ["integer"])
        self.assertIn("integer: ", self.ok(*made))

    def test_files_and_wrong_values(self):
        self.ok("bench", "exact", "--base", "base.bvecs", "--queries", "queries.bvecs",
                "--repeat", 1)
        self.ok("bench", "exact", "--set", "f32", "--rows", 3000, "--repeat", 1, "--prepared")
        for more in (["--repeat", "0"], ["--set", "f64"], ["--dim", "0"], ["-k", "0"]):
            self.fails(1, "bench", "exact", *more)

    def test_threshold_heap_draws_the_figures_of_its_paper(self):
        tiny = ["bench", "threshold-heap", "--rows", 2000, "--dim", 16, "-k", 10, "--count", 30,
                "--most", 64, "--matrix", 5, "--repeat", 2]
        for metric, kind, name in (("l2", "u8", "figures.html"), ("ip", "f32", "figures.svg")):
            out = json.loads(self.ok(*tiny, "--metric", metric, "--set", kind, "--out", name,
                                     "--json"))
            self.assertEqual((out["rows"], out["queries"], out["most_queries"]), (2000, 30, 64))
            figures = {(one["figure"], one["of"]): one["points"] for one in out["figures"]}
            self.assertEqual(
                set(figures),
                {(number, "searches") for number in ("5", "6", "7", "8", "9", "12")}
                | {(number, "selection") for number in ("6", "10", "11")},
            )
            at = {key: [point["at"] for point in points] for key, points in figures.items()}
            self.assertEqual(at["5", "searches"], [10, 20, 40, 80, 160, 320, 640, 1280])
            self.assertEqual(at["11", "selection"], [10, 32, 64, 128])  # 8 * 256 are too many
            self.assertEqual(at["10", "selection"], [125, 250, 500, 1000, 2000])
            self.assertEqual(at["12", "searches"], [4, 8, 16, 32, 64])
            pruned = [point["compression_ratio"] for point in figures["5", "searches"]]
            self.assertGreater(pruned[-1], 2 * pruned[0])
            for point in figures["5", "searches"]:
                if metric == "ip":  # products are no distances
                    self.assertIsNone(point["threshold_ratio"])
                else:
                    self.assertLessEqual(point["threshold_ratio"], 1)
            for key in ("threshold_heap", "sampling", "bitonic", "radix_sort", "radix_select",
                        "scan", "select_k"):
                for point in figures["11", "selection"]:
                    self.assertGreater(point[f"{key}_seconds"], 0)
                    self.assertEqual(len(point["rounds"][f"{key}_seconds"]), 2)
            for point in figures["12", "searches"]:
                self.assertGreater(point["exact_seconds"], 0)
                self.assertGreater(point["threshold_heap_over_exact"], 0)
            drawn = xml.etree.ElementTree.parse(self.path(name)).getroot()
            texts = "".join(drawn.itertext())
            for number in (5, 6, 7, 8, 9, 10, 11, 12):
                self.assertIn(f"Figure {number}, ", texts)

    def test_threshold_heap_prints_a_table_for_each_figure(self):
        out = self.ok("bench", "threshold-heap", "--base", "base.bvecs", "--queries",
                      "queries.bvecs", "-k", 3, "--repeat", 1, "--matrix", 4)
        for number in (5, 6, 7, 8, 9, 10, 11, 12):
            self.assertRegex(out, rf"(?m)^Figure {number}, ")

    def test_threshold_heap_refuses_wrong_values(self):
        for more, says in (
            (["-k", "0"], "-k"), (["--rows", "100", "-k", "13"], "-k"),
            (["--repeat", "0"], "--repeat"), (["--matrix", "0"], "--matrix"),
            (["--set", "f64"], "--set"), (["--out", "figures.png"], "--out"),
        ):
            self.fails(1, "bench", "threshold-heap", *more, says=says)
        self.fails(2, "bench", "threshold-heap", "--base", "base.bvecs", says="--queries")


class Demo(ProgramTest):
    def make_images(self):
        """Ten kinds of 8 x 8 pictures: a bright bar at one of ten places, and noise."""
        source = random.Random(3)
        os.makedirs(self.path("data/fashion-mnist"))

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
            stem = self.path(f"data/fashion-mnist/{name}")
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
        self.assertIn("SIFT", self.ok("demo", "--report", "sift.html", "--threads", 1))
        self.check_report(self.path("sift.html"), 8 * 11)
        self.ok("demo", "--base", "data/sift/base.bvecs", "--queries", "data/sift/queries.bvecs",
                "--report", "again.html")

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
        self.fails(1, "demo", "--base", "base.bvecs", "--queries", "queries.bvecs",
                   says="12 columns")


if __name__ == "__main__":
    KNEAR = os.path.abspath(sys.argv.pop(1))
    SANITISED = b"__asan_init" in pathlib.Path(KNEAR).read_bytes()
    unittest.main()
