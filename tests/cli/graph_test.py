"""knear graph and knear path: the graph of a file, and walks in it."""

import contextlib
import gzip
import json
import math
import os
import pathlib
import pty
import random
import signal
import struct
import subprocess
import time
import zipfile
from itertools import pairwise

from program_cases import ProgramTest, main, not_sanitised, read_npy, read_vecs, write_vecs


def squares(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


class Graph(ProgramTest):
    def graph(self, *more, base="base.bvecs", out="g.knear", k=4):
        return self.ok("graph", "--base", base, "-k", k, "--out", out, *more)

    def neighbors(self, rows, k):
        out = []
        for i, row in enumerate(rows):
            order = sorted((squares(row, other), j) for j, other in enumerate(rows) if j != i)
            out.append([j for _, j in order[:k]])
        return out

    def test_it_has_the_nearest_others_of_every_row(self):
        text = self.graph("--accuracy", "100")
        self.assertIn("g.knear: the 4 nearest others of 300 x 12 u8, l2, in ", text)
        self.assertIn("of 100 rows 1.0000 of the true neighbours", text)
        self.ok("convert", "g.knear", "g.ivecs")
        wanted = self.neighbors(self.base, 4)
        self.assertEqual(read_vecs(self.path("g.ivecs"), "i"), wanted)
        self.ok("convert", "g.knear", "g.npy")
        self.assertEqual(read_npy(self.path("g.npy")), wanted)
        self.assertFalse(os.path.exists(self.path("g.knear.partial")))

    def test_json_and_info_describe_it(self):
        told = json.loads(self.graph("--json", "--accuracy", "1000"))
        wanted = self.neighbors(self.base, 4)
        degrees = [0] * 300
        for row in wanted:
            for j in row:
                degrees[j] += 1
        mutual = sum(i in wanted[j] for i, row in enumerate(wanted) for j in row)
        self.assertEqual((told["rows"], told["dim"], told["k"]), (300, 12, 4))
        self.assertEqual((told["metric"], told["type"]), ("l2", "u8"))
        self.assertEqual((told["promised_recall"], told["recall_argument"]), (1, "exact"))
        self.assertEqual((told["edges"], told["mutual_edges"]), (1200, mutual))
        self.assertEqual(told["most_in_degree"], max(degrees))
        self.assertEqual(told["hubs"][0]["in_degree"], max(degrees))
        self.assertEqual(sum(told["in_degrees"].values()), 300)
        self.assertEqual(told["in_degrees"]["1"], degrees.count(1))
        self.assertEqual((told["accuracy"], told["accuracy_rows"]), (1, 300))
        self.assertGreater(told["rows_per_second"], 0)
        said = json.loads(self.ok("info", "--json", "g.knear"))["files"][0]
        self.assertEqual((said["kind"], said["verified"]), ("graph", True))
        for key in ("rows", "k", "metric", "components", "hubs", "base_xxh3_64"):
            self.assertEqual(said[key], told[key])
        base = json.loads(self.ok("info", "--json", "base.bvecs"))["files"][0]
        self.assertEqual(said["base_xxh3_64"], base["xxh3_64"])
        self.assertIn("the 4 nearest others of each row", self.ok("info", "g.knear"))

    def test_a_graph_from_elsewhere_is_refined(self):
        wanted = self.neighbors(self.base, 4)
        write_vecs(self.path("bad.ivecs"), [[0, 1, -1, -1]] * 300, "i")
        text = self.graph("--from", "bad.ivecs", "--recall", "0.9", "--accuracy", "300")
        self.assertIn("nn-descent", text)
        self.assertIn("of the true neighbours of a sample", text)
        told = json.loads(self.graph("--from", "g.knear", "--json", out="h.knear"))
        self.assertEqual(told["method"], "nn-descent")
        self.assertGreaterEqual(told["rounds"], 1)
        self.assertNotIn("found", told)
        self.ok("convert", "h.knear", "h.ivecs")
        found = read_vecs(self.path("h.ivecs"), "i")
        same = sum(len(set(a) & set(b)) for a, b in zip(found, wanted, strict=True))
        self.assertGreater(same, 0.9 * 1200)
        write_vecs(self.path("few.ivecs"), [[0, 1, 2, 3]] * 3, "i")
        write_vecs(
            self.path("far.ivecs"), [[0, 1, 2, 999999 if i == 2 else 3] for i in range(300)], "i"
        )
        for words, says in (
            (("--from", "h.knear", "--distinct"), "--distinct"),
            (("--from", "h.knear", "--resume"), "--resume"),
            (("--from", "h.knear", "--metric", "ip"), "--metric is ip"),
            (("--from", "h.knear", "-k", "3"), None),
            (("--from", "none.ivecs"), "none.ivecs"),
            (("--from", "few.ivecs"), "few.ivecs has 3 rows, base has"),
            (("--from", "far.ivecs"), "far.ivecs: row 2 has the neighbour 999999"),
        ):
            if says is None:
                self.fails(
                    1,
                    "graph",
                    "--base",
                    "base.bvecs",
                    "-k",
                    3,
                    "--out",
                    "i.knear",
                    *words[:2],
                    says="-k is 3, but h.knear has 4",
                )
                continue
            self.fails(
                1, "graph", "--base", "base.bvecs", "-k", 4, "--out", "i.knear", *words, says=says
            )

    def test_npz_is_the_sparse_matrix_of_scipy(self):
        def array(data):
            (length,) = struct.unpack_from("<H", data, 8)
            head = eval(data[10 : 10 + length].decode(), {}, {})
            return head, data[10 + length :]

        self.graph()
        near = self.neighbors(self.base, 4)
        pairs = {(i, j) for i, row in enumerate(near) for j in row}
        for closure in "union", "mutual":
            self.ok("convert", "g.knear", "g.npz", "--closure", closure)
            back = {(j, i) for i, j in pairs}
            wanted = sorted(pairs | back if closure == "union" else pairs & back)
            with zipfile.ZipFile(self.path("g.npz")) as file:
                self.assertIsNone(file.testzip())
                parts = {name: array(file.read(name)) for name in file.namelist()}
            self.assertEqual(parts["format.npy"][1], b"csr")
            self.assertEqual(struct.unpack("<2q", parts["shape.npy"][1]), (300, 300))
            begin = struct.unpack("<301q", parts["indptr.npy"][1])
            count = len(wanted)
            self.assertEqual(parts["data.npy"][0]["shape"], (count,))
            ids = struct.unpack(f"<{count}q", parts["indices.npy"][1])
            rows = [i for i in range(300) for _ in range(begin[i + 1] - begin[i])]
            self.assertEqual(list(zip(rows, ids, strict=True)), wanted)
            distances = struct.unpack(f"<{count}f", parts["data.npy"][1])
            self.assertEqual(
                list(distances), [squares(self.base[i], self.base[j]) for i, j in wanted]
            )
        self.fails(1, "convert", "g.knear", "g.npz", "--closure", "or", says="closure")
        self.fails(1, "convert", "g.knear", "g.npy", "--closure", "union", says="--closure")
        self.fails(1, "convert", "base.bvecs", "b.npy", "--closure", "union", says="--closure")
        self.fails(1, "convert", "g.knear", "none/g.npz", says="none/g.npz")

    def test_copies_can_be_left_out(self):
        rows = [[float(i // 3), 0.5] for i in range(30)]
        write_vecs(self.path("copies.fvecs"), rows, "f")
        self.graph("--distinct", base="copies.fvecs", k=1)
        self.ok("convert", "g.knear", "g.ivecs")
        found = [row[0] for row in read_vecs(self.path("g.ivecs"), "i")]
        self.assertEqual(found, [3] * 3 + [3 * (i - 1) for i in range(1, 10) for _ in range(3)])

    def path_between(self, a, b, *more, graph="g.knear", base="base.bvecs"):
        words = "--graph", graph, "--base", base, "--from", a, "--to", b
        return json.loads(self.ok("path", *words, "--json", *more))

    def test_the_path_has_the_least_largest_step(self):
        self.graph()
        near = self.neighbors(self.base, 4)
        edges = sorted(
            {
                (squares(self.base[i], self.base[j]), min(i, j), max(i, j))
                for i, row in enumerate(near)
                for j in row
            }
        )
        for a, b in ((0, 299), (17, 3), (5, 250), (8, 8)):
            # Edges are taken in, shortest first, until both are in one set.
            parent, largest = list(range(300)), math.inf if a != b else 0

            def find(i, parent=parent):
                while parent[i] != i:
                    i = parent[i]
                return i

            for step, i, j in edges:
                parent[find(i)] = find(j)
                if find(a) == find(b):
                    largest = min(largest, step)
            told = self.path_between(a, b)
            path = told["path"]
            if math.isinf(largest):
                self.assertEqual((path, told["largest_step"], told["connected"]), ([], None, False))
                continue
            self.assertEqual((path[0], path[-1], told["connected"]), (a, b, True))
            steps = [squares(self.base[i], self.base[j]) for i, j in pairwise(path)]
            self.assertEqual((told["largest_step"], told["sum_of_steps"]), (largest, sum(steps)))
            for i, j in pairwise(path):
                self.assertTrue(j in near[i] or i in near[j])

    def test_gaps_are_told_and_bridged(self):
        rows = [[float(i % 10), 100.0 * (i // 10)] for i in range(30)]
        write_vecs(self.path("three.fvecs"), rows, "f")
        self.graph(base="three.fvecs", k=2)
        told = self.path_between(0, 29, base="three.fvecs")
        self.assertEqual((told["path"], told["largest_step"]), ([], None))
        self.assertEqual(told["components"], 3)
        self.assertEqual([gap["distance"] for gap in told["gaps"]], [10000, 10000])
        words = "--graph", "g.knear", "--base", "three.fvecs", "--from", "0", "--to", "29"
        text = self.ok("path", *words)
        self.assertIn("different components", text)
        self.assertIn("the widest of 10000 between rows", text)
        told = self.path_between(0, 29, "--bridge", base="three.fvecs")
        self.assertEqual((told["path"][0], told["path"][-1]), (0, 29))
        self.assertEqual(told["largest_step"], 10000)
        self.assertEqual((told["connected"], told["components"]), (False, 3))
        self.ok("path", *words, "--bridge", "--out", "p.ivecs")
        self.assertEqual(read_vecs(self.path("p.ivecs"), "i"), [told["path"]])
        self.fails(1, "path", *words, "--out", "q.ivecs", says="no path")
        self.fails(1, "path", *words, "--json", "--out", "q.ivecs", says="no path")
        self.assertFalse(os.path.exists(self.path("q.ivecs")))

    def test_bad_words_and_files(self):
        self.graph()
        command = ["graph", "--base", "base.bvecs", "--out", "h.knear"]
        self.fails(2, *command, says="-k")
        self.fails(1, *command, "-k", "0", says="-k")
        self.fails(1, *command, "-k", "3", "--recall", "1.5", says="knear: --recall must")
        self.fails(1, *command, "-k", "3", "--metric", "l3", says="knear: --metric must be one of")
        self.fails(1, *command, "-k", "3", "--memory", "1", says="knear: --memory is 1 bytes")
        self.fails(1, *command, "-k", "3", "--accuracy", "-1", says="--accuracy")
        self.fails(1, "graph", "--base", "base.bvecs", "-k", "3", "--out", "h.npy", says="h.npy")
        self.fails(1, *command[:-1], "base.bvecs", "-k", "3", says="--out")
        words = ["--base", "base.bvecs", "--from", "0", "--to", "1"]
        path = ["path", "--graph", "g.knear", *words]
        self.ok(*path)
        self.fails(1, *path[:-1], "300", says="--to is row 300")
        self.fails(1, *path[:-3], "-1", "--to", "1", says="--from is row -1")
        self.fails(1, "path", "--graph", "none.knear", *words, says="none.knear")
        self.fails(1, "path", "--graph", "base.bvecs", *words, says="base.bvecs")
        other = ["path", "--graph", "g.knear", "--base", "base.fvecs", "--from", "0", "--to", "1"]
        self.fails(1, *other, says="300 x 12 u8, but the base is 300 x 12 f32")
        self.ok(*other, "--type", "u8")
        changed = [list(row) for row in self.base]
        changed[299][11] ^= 1
        write_vecs(self.path("changed.bvecs"), changed, "B")
        other[4] = "changed.bvecs"
        self.fails(1, *other, says="another base")
        whole = self.file("g.knear").read_bytes()
        self.file("cut.knear").write_bytes(whole[:-9])
        self.file("bad.knear").write_bytes(whole[:-9] + b"x" + whole[-8:])
        for file in ("cut.knear", "bad.knear"):
            self.fails(1, "path", "--graph", file, *words, says=file)
            self.fails(1, "info", file, says=file)
            self.fails(1, "convert", file, "g.ivecs", says=file)
        self.fails(1, "convert", "g.knear", "g.fvecs", says="g.fvecs")
        self.fails(1, "convert", "g.knear", "g.npy", "--type", "f32", says="--type")
        self.fails(
            1,
            "search",
            "--index",
            "g.knear",
            "--queries",
            "base.bvecs",
            "-k",
            "1",
            "--probes",
            "1",
            says="Graph",
        )

    @not_sanitised
    def test_a_killed_run_is_gone_on_with(self):
        words = [*self.large(), "--threads", "1"]
        partial = self.file("h.knear.partial")
        run = subprocess.Popen([self.program, *words], cwd=self.path("."))
        deadline = time.monotonic() + 120
        while run.poll() is None and time.monotonic() < deadline:
            # The sum of the first block.
            sums = partial.read_bytes()[4096:4104] if partial.exists() else b""
            if any(sums):
                run.send_signal(signal.SIGKILL)
            time.sleep(0.01)
        run.wait()
        self.assertTrue(partial.exists())
        self.assertFalse(os.path.exists(self.path("h.knear")))
        self.fails(1, *words, says="h.knear.partial")
        told = json.loads(self.ok(*words, "--resume", "--json"))
        self.assertLess(told["searched_rows"], 140000)
        self.assertFalse(partial.exists())
        self.graph(base="large.bvecs", k=3, out="i.knear")
        self.assertEqual(self.file("h.knear").read_bytes(), self.file("i.knear").read_bytes())

    def large(self):
        """140,000 rows, which are two blocks."""
        rows = [[(7 * i * (j + 3)) % 251 for j in range(16)] for i in range(140000)]
        write_vecs(self.path("large.bvecs"), rows, "B")
        return ["graph", "--base", "large.bvecs", "-k", "3", "--out", "h.knear"]

    @not_sanitised
    def test_ctrl_c_keeps_the_blocks_that_are_done(self):
        words = self.large()
        partial = self.file("h.knear.partial")
        run = subprocess.Popen(
            [self.program, *words, "--threads", "1"],
            cwd=self.path("."),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        deadline = time.monotonic() + 120
        while run.poll() is None and time.monotonic() < deadline:
            sums = partial.read_bytes()[4096:4104] if partial.exists() else b""
            if any(sums):
                run.send_signal(signal.SIGINT)
                break
            time.sleep(0.01)
        out, err = run.communicate(timeout=120)
        self.assertEqual((run.returncode, out, err), (130, "", "knear: interrupted\n"))
        self.assertTrue(partial.exists())
        self.assertFalse(self.file("h.knear").exists())
        # With another base the file is refused and kept.
        changed = bytearray(self.file("large.bvecs").read_bytes())
        changed[-1] ^= 1
        self.file("changed.bvecs").write_bytes(changed)
        other = [word.replace("large", "changed") for word in words]
        self.fails(1, *other, "--resume", says="h.knear.partial")
        told = json.loads(self.ok(*words, "--resume", "--json"))
        self.assertLess(told["searched_rows"], 140000)
        self.assertFalse(partial.exists())

    @not_sanitised
    def test_a_terminal_shows_rate_and_time_left(self):
        noise = random.Random(1)
        rows = [struct.pack("<i", 64) + noise.randbytes(64) for _ in range(80000)]
        self.file("slow.bvecs").write_bytes(b"".join(rows))
        main_end, terminal = pty.openpty()
        run = subprocess.Popen(
            [self.program, "graph", "--base", "slow.bvecs", "-k", "3", "--out", "s.knear"],
            cwd=self.path("."),
            env=dict(self.environment, KNEAR_ISA="scalar"),  # seconds of work on any machine
            stdout=subprocess.DEVNULL,
            stderr=terminal,
        )
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(main_end, 65536):
                shown += part
        os.close(main_end)
        self.assertEqual(run.wait(), 0)
        self.assertRegex(shown.decode(), r"predicted to take \d")
        self.assertRegex(shown.decode(), r"%  [\d.]+ (ms|s) left  [\d.]+ ?[kM]?/s rows")

    def test_a_graph_of_another_base_is_not_refined(self):
        self.graph(k=3)
        changed = [list(row) for row in self.base]
        changed[0][0] ^= 1
        write_vecs(self.path("changed.bvecs"), changed, "B")
        refine = ["graph", "-k", "3", "--out", "r.knear", "--from", "g.knear", "--base"]
        self.fails(1, *refine, "changed.bvecs", says="g.knear")
        self.fails(1, *refine, "base.bvecs", "--metric", "ip", says="g.knear")

    @not_sanitised
    def test_a_base_that_cannot_be_mapped_keeps_to_the_memory(self):
        def write(seed):
            rows = random.Random(seed)
            part = [struct.pack("<i", 512) + rows.randbytes(512) for _ in range(20000)]
            self.file("large.bvecs").write_bytes(b"".join(part))
            packed = gzip.compress(self.file("large.bvecs").read_bytes(), 1)
            self.file("large.bvecs.gz").write_bytes(packed)
            self.graph(base="large.bvecs", k=3, out="i.knear")
            return self.file("i.knear").read_bytes()

        def unpacked():
            return list(pathlib.Path(self.path(".")).glob("h.knear.base-*.npy"))

        wanted = write(1)
        words = ["graph", "--base", "large.bvecs.gz", "-k", "3", "--out", "h.knear"]
        words += ["--threads", "1", "--json"]
        # Its 10.2 MB are more than half of 19 MiB.
        small = [*words, "--memory", "19M"]
        told = json.loads(self.ok(*small))
        self.assertEqual(told["unpacked_bytes"], 20000 * 512)
        self.assertEqual(self.file("h.knear").read_bytes(), wanted)
        self.assertEqual(unpacked(), [])
        told = json.loads(self.ok(*words, "--memory", "100M"))
        self.assertNotIn("unpacked_bytes", told)
        self.assertEqual(self.file("h.knear").read_bytes(), wanted)
        # No file has bf16; a run that fails leaves nothing.
        self.fails(1, *words, "--memory", "19M", "--type", "bf16", says="--memory 40960000")
        self.fails(1, *small, "--recall", "2", says="recall")
        self.assertEqual(unpacked(), [])

        # What was unpacked outlives a kill, and is taken up.
        def killed():
            run = subprocess.Popen([self.program, *small], cwd=self.path("."))
            deadline = time.monotonic() + 120
            while run.poll() is None and time.monotonic() < deadline:
                if unpacked():
                    run.send_signal(signal.SIGKILL)
                time.sleep(0.01)
            self.assertEqual(run.wait(), -signal.SIGKILL)
            (kept,) = unpacked()
            return kept

        kept = killed()
        content = bytearray(kept.read_bytes())
        content[-1] ^= 255
        kept.write_bytes(content)  # of which the graph now is
        self.ok(*small)
        self.assertNotEqual(self.file("h.knear").read_bytes(), wanted)
        self.assertEqual(unpacked(), [])
        # But not for another base.
        kept = killed()
        wanted = write(2)
        self.ok(*small)
        self.assertEqual(self.file("h.knear").read_bytes(), wanted)
        self.assertEqual(unpacked(), [kept])


if __name__ == "__main__":
    main()
