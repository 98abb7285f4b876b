"""What `knear search` and `knear truth` find and say, within any memory."""

import contextlib
import gzip
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import time

from program_cases import ProgramTest, brute_force, main, read_npy, read_vecs, write_vecs

SEARCH_KEYS = {
    "k",
    "metric",
    "method",
    "device",
    "isa",
    "threads",
    "rows",
    "dim",
    "queries",
    "seconds",
    "queries_per_second",
    "predicted_seconds",
    "limit",
    "memory_bytes",
    "survivors_per_query",
    "promised_recall",
    "recall_argument",
    "certified_queries",
}


class Search(ProgramTest):
    def test_ids_and_distances_equal_brute_force(self):
        for metric in ("l2", "ip", "cosine"):
            expected_ids, expected_distances = brute_force(self.queries, self.base, 7, metric)
            for files in ("bvecs", "fvecs"):
                with self.subTest(metric=metric, files=files):
                    self.search(
                        "-k",
                        7,
                        "--metric",
                        metric,
                        "--out",
                        "a.ivecs",
                        "--distances",
                        "d.fvecs",
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
            self.search("-k", 305, "--metric", metric, "--out", "a.ivecs", "--distances", "d.fvecs")
            ids, distances = brute_force(self.queries, self.base, 305, metric)
            self.assertEqual(read_vecs(self.path("a.ivecs"), "i"), ids)
            self.assertEqual(read_vecs(self.path("d.fvecs"), "f"), distances)

    def test_options_do_not_change_the_answer(self):
        expected, _ = brute_force(self.queries, self.base, 5)
        for more in (
            ["--threads", 1],
            ["--threads", 0],
            ["--method", "exact"],
            ["--device", "cpu"],
            ["--method", "threshold-heap"],
            ["--method", "threshold-heap", "--samples", 40],
            ["--method", "partial-reduce"],
            ["--recall", 0.5],
            ["--memory", "64M"],
            ["--type", "f32"],
            ["--first-pass", "int8"],
            ["--first-pass", "fp32"],
            ["--first-pass", "integer"],
            ["--first-pass", "prefix"],
            ["--explain"],
            ["--choose", "group=4,parts=2"],
            ["--choose", "guess=off,tile=4"],
            ["--first-pass", "int8", "--choose", "refine=on"],
            ["--choose", "refine=off"],
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
            self.search(
                "-k",
                5,
                "--json",
                "--method",
                "partial-reduce",
                "--recall",
                0.9,
                "--truth",
                "truth.ivecs",
            )
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
            # The same distances with ids from the far end of each group of ties: other ids, equally
            # right.
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
        out = json.loads(
            self.search("-k", 5, "--json", "--filter", "allowed.npy", "--out", "a.ivecs")
        )
        self.assertEqual((out["rows"], out["allowed_rows"]), (300, len(allowed)))
        self.assertEqual(read_vecs(self.path("a.ivecs"), "i"), expected)
        out = json.loads(self.search("-k", 5, "--json", "--filter", "allowed.ivecs"))
        self.assertEqual(out["allowed_rows"], len(allowed) - len(rest))
        text = self.search("-k", 5, "--filter", "allowed.npy")
        self.assertIn(f"{len(allowed)} rows allowed", text)
        self.search("-k", 4, "--filter", "allowed.npy", "--out", "t.ivecs", command="truth")
        self.assertEqual(read_vecs(self.path("t.ivecs"), "i"), [row[:4] for row in expected])
        write_vecs(self.path("beyond.ivecs"), [[3, 300]], "i")
        self.fails(
            1,
            "search",
            "--base",
            "base.bvecs",
            "--queries",
            "queries.bvecs",
            "-k",
            "5",
            "--filter",
            "beyond.ivecs",
            "--out",
            "b.ivecs",
            says="id 300 in place 1",
        )

    def test_radius(self):
        for metric in ("l2", "ip", "cosine"):
            ids, distances = brute_force(self.queries, self.base, 300, metric)
            radius = distances[2][6]  # exact in decimal or not, the seventh of this query is within
            near = (lambda d, r=radius: d >= r) if metric == "ip" else (lambda d, r=radius: d <= r)
            inside = [sum(map(near, row)) for row in distances]
            out = json.loads(
                self.search(
                    "-k",
                    9,
                    "--metric",
                    metric,
                    "--radius",
                    repr(radius),
                    "--json",
                    "--out",
                    "a.ivecs",
                    "--distances",
                    "a.fvecs",
                )
            )
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
            self.search("-k", k, "--out", "c.ivecs")
            for radius in ("1e300", "inf", "+inf"):
                self.search("-k", k, "--radius", radius, "--out", "b.ivecs")
                self.assertEqual(
                    read_vecs(self.path("b.ivecs"), "i"), read_vecs(self.path("c.ivecs"), "i")
                )
        for metric, radius, found in (("ip", "-inf", 9), ("ip", "inf", 0), ("l2", "-inf", 0)):
            by = ["-k", 9, "--metric", metric, "--radius", radius, "--json"]
            out = json.loads(self.search(*by))
            self.assertEqual((out["radius"], out["results_per_query"]), (radius, found))
        files = ["search", "--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "2"]
        write_vecs(self.path("truth.ivecs"), [[0, 1]] * 17, "i")
        self.fails(1, *files, "--radius", "5", "--truth", "truth.ivecs", says="--radius 5")
        says = "--recall is 0.9, but a search with --radius 5 is calibrated for none below 1"
        self.fails(1, *files, "--radius", "5", "--recall", "0.9", says=says)
        self.fails(2, *files, "--radius", "nan", says="--radius")

    def test_summary_shows_first_answers(self):
        text = self.search("-k", 5)
        ids, distances = brute_force(self.queries, self.base, 5)
        self.assertIn(f"{ids[0][0]}: {distances[0][0]:g}", text)
        self.assertNotIn(f"{ids[0][0]}: ", self.search("-k", 5, "--out", "a.ivecs"))

    def test_explain_prints_plan_and_outcome(self):
        text = self.search("-k", 5, "--explain", "--out", "a.ivecs")
        for line in (
            "planned",
            "limit",
            "seconds",
            "multiply-adds",
            "bytes read",
            "hits per query",
            "survivors per query",
            "memory",
        ):
            self.assertIn(line, text)

    def test_no_queries_are_no_error(self):
        header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (0, 12), }"
        header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
        with open(self.path("none.npy"), "wb") as file:
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
        out = json.loads(
            self.ok("search", "--base", "base.bvecs", "--queries", "none.npy", "-k", 5, "--json")
        )
        self.assertEqual(out["queries"], 0)


class LargerThanMemory(ProgramTest):
    """Bases that cannot be mapped and are larger than --memory: read block by block."""

    def run_measured(self, *arguments):
        """The most memory that the program took, in bytes."""
        process = subprocess.Popen(
            [self.program, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
        )
        most = 0  # as the system counts it; what wait4 says has the memory of Python in it
        status = pathlib.Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            with contextlib.suppress(OSError):  # it ended meanwhile
                peak = re.search(r"VmHWM:\s*(\d+) kB", status.read_text())
                if peak and os.readlink(f"/proc/{process.pid}/exe") == self.program:
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
        for more in (
            [],
            ["--filter", "some.ivecs"],
            ["--metric", "cosine"],
            ["--radius", "40000000"],
        ):
            self.ok(
                "search",
                "--base",
                "whole.fvecs",
                *queries,
                *more,
                "--out",
                "w.ivecs",
                "--distances",
                "w.fvecs",
            )
            want = [self.file(f"w.{e}").read_bytes() for e in ("ivecs", "fvecs")]
            for base in ("big.npy", "big.npy.gz"):
                used = self.run_measured(
                    "search",
                    "--base",
                    base,
                    *queries,
                    *more,
                    "--memory",
                    memory,
                    "--out",
                    "g.ivecs",
                    "--distances",
                    "g.fvecs",
                )
                got = [self.file(f"g.{e}").read_bytes() for e in ("ivecs", "fvecs")]
                self.assertEqual(got, want, (base, more))
                if not self.sanitised:  # the program itself takes some
                    self.assertLess(used, memory + (24 << 20), (base, more))
        self.ok("truth", "--base", "big.npy.gz", *queries, "--memory", memory, "--out", "t.ivecs")
        out = json.loads(
            self.ok(
                "search",
                "--base",
                "big.npy.gz",
                *queries,
                "--memory",
                memory,
                "--truth",
                "t.ivecs",
                "--json",
            )
        )
        self.assertEqual((out["recall"], out["recall_ids"], out["rows"]), (1, 1, rows))
        self.fails(1, "search", "--base", "big.npy", *queries, "--memory", "100k", says="memory is")


class Truth(ProgramTest):
    def test_equals_brute_force(self):
        self.search("-k", 9, "--out", "t.ivecs", "--distances", "d.fvecs", command="truth")
        ids, distances = brute_force(self.queries, self.base, 9)
        self.assertEqual(read_vecs(self.path("t.ivecs"), "i"), ids)
        self.assertEqual(read_vecs(self.path("d.fvecs"), "f"), distances)
        out = json.loads(self.search("-k", 9, "--truth", "t.ivecs", "--json"))
        self.assertEqual((out["recall"], out["recall_ids"]), (1, 1))


if __name__ == "__main__":
    main()
