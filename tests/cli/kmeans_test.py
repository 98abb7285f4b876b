"""knear kmeans: centroids of a file, written to a file."""

import gzip
import json
import os
import subprocess

from program_cases import ProgramTest, main, read_vecs, write_vecs


class KMeans(ProgramTest):
    def kmeans(self, *more, base="base.bvecs", out="c.fvecs", k=7):
        return self.ok("kmeans", "--base", base, "-k", k, "--out", out, *more)

    def test_centroids_are_means_of_their_rows(self):
        text = self.kmeans("--iterations", "100")
        self.assertIn("c.fvecs: 7 centroids of 300 x 12, l2, in ", text)
        self.assertIn("in the last 0 rows moved, objective ", text)
        centroids = read_vecs(self.path("c.fvecs"), "f")
        self.assertEqual((len(centroids), len(centroids[0])), (7, 12))

        def squares(row, c):
            return sum((x - y) ** 2 for x, y in zip(row, c, strict=True))

        members = [[] for _ in centroids]
        for row in self.base:
            near = min(range(7), key=lambda c: (squares(row, centroids[c]), c))
            members[near].append(row)
        for c, rows in zip(centroids, members, strict=True):
            for j in range(12):
                self.assertAlmostEqual(c[j], sum(row[j] for row in rows) / len(rows), places=5)

    def test_json_says_what_each_iteration_did(self):
        told = json.loads(self.kmeans("--json", "--iterations", "9"))
        self.assertEqual((told["rows"], told["dim"], told["k"]), (300, 12, 7))
        self.assertEqual(len(told["steps"]), told["iterations"])
        objectives = [step["objective"] for step in told["steps"]]
        self.assertEqual(objectives, sorted(objectives, reverse=True))
        self.assertEqual(told["steps"][0]["moved"], 300)

    def test_device(self):
        told = json.loads(self.kmeans("--json", "--device", "cpu"))
        self.assertEqual(told["device"], "cpu")
        self.assertEqual({step["fallback_rows"] for step in told["steps"]}, {0})
        words = ("kmeans", "--base", "base.bvecs", "-k", "7", "--out", "d.fvecs", "--device")
        self.fails(1, *words, "gpu", says="--device must be cpu, cuda or cuda:N, but is 'gpu'")
        info = json.loads(self.ok("info", "--json"))
        if info["devices"]:
            self.kmeans("--device", "cuda", out="d.fvecs")
            self.assertEqual(*(self.file(name).read_bytes() for name in ("c.fvecs", "d.fvecs")))
        else:
            reason = info["no_device"] if info["cuda"] else "without CUDA"
            self.fails(1, *words, "cuda", says=reason)

    def test_two_levels_tell_their_objective(self):
        told = json.loads(self.kmeans("--levels", "2", "--json"))
        self.assertGreater(told["iterations"], 0)
        one = json.loads(self.kmeans("--json"))["steps"][-1]["objective"]
        self.assertLess(told["steps"][-1]["objective"], 1.5 * one)
        self.assertIn("objective", self.kmeans("--levels", "2"))

    def test_the_same_bytes_for_any_file_type_and_number_of_threads(self):
        self.kmeans()
        wanted = self.file("c.fvecs").read_bytes()
        self.file("base.fvecs.gz").write_bytes(gzip.compress(self.file("base.fvecs").read_bytes()))
        self.ok("convert", "base.bvecs", "base.npy", "--type", "f64")
        for more in (
            {"base": "base.fvecs"},
            {"base": "base.npy"},
            {"base": "base.fvecs.gz"},
            # Read anew, a few rows at a time.
            {"base": "base.fvecs.gz", "words": ["--memory", "2k"]},
            {"words": ["--threads", "1"]},
            {"words": ["--seed", "1"]},
        ):
            self.kmeans(*more.get("words", []), base=more.get("base", "base.bvecs"), out="d.fvecs")
            self.assertEqual(self.file("d.fvecs").read_bytes(), wanted, more)
        self.kmeans("--seed", "2", out="d.fvecs")
        self.assertNotEqual(self.file("d.fvecs").read_bytes(), wanted)

    def test_options(self):
        self.kmeans("--seeding", "k-means++", "--restarts", "2", "--tolerance", "0.01")
        self.kmeans("--levels", "2", "--rows-per-centroid", "20", out="c.npy")
        self.kmeans("--metric", "cosine")
        for row in read_vecs(self.path("c.fvecs"), "f"):
            self.assertAlmostEqual(sum(x * x for x in row), 1, places=5)
        given = [[float(i)] * 12 for i in range(2)]
        write_vecs(self.path("given.fvecs"), given, "f")
        self.kmeans("--initial", "given.fvecs", "--frozen")
        self.assertEqual([list(r) for r in read_vecs(self.path("c.fvecs"), "f")[:2]], given)

    def test_weights_of_rows(self):
        heavy = [float(i % 4) for i in range(300)]
        for shape, rows in (("column", [[w] for w in heavy]), ("row", [heavy])):
            write_vecs(self.path(f"{shape}.fvecs"), rows, "f")
            self.kmeans("--weights", f"{shape}.fvecs", k=1)
            (centroid,) = read_vecs(self.path("c.fvecs"), "f")
            for j in range(12):
                mean = sum(w * row[j] for w, row in zip(heavy, self.base, strict=True)) / sum(heavy)
                self.assertAlmostEqual(centroid[j], mean, places=4)
        command = ["kmeans", "--base", "base.bvecs", "--out", "c.fvecs", "-k", "3"]
        self.fails(1, *command, "--weights", "queries.bvecs", says="queries.bvecs is 17 x")
        write_vecs(self.path("few.fvecs"), [heavy[:99]], "f")
        self.fails(1, *command, "--weights", "few.fvecs", says="99")
        write_vecs(self.path("bad.fvecs"), [[-1.0] * 300], "f")
        self.fails(1, *command, "--weights", "bad.fvecs", says="weight")

    def test_what_is_refused(self):
        command = ["kmeans", "--base", "base.bvecs", "--out", "c.fvecs"]
        self.fails(2, *command)
        self.fails(1, *command, "-k", "0", says="-k must be")
        self.fails(1, *command, "-k", "301", says="the number of rows, but is 301")
        self.fails(1, *command, "-k", "3", "--metric", "l1", says="l1")
        self.fails(1, *command, "-k", "3", "--seeding", "far", says="'far'")
        self.fails(1, *command, "-k", "3", "--iterations", "-1", says="iterations must not be")
        self.fails(1, *command, "-k", "3", "--restarts", "0", says="restarts must be at least 1")
        self.fails(1, *command, "-k", "3", "--levels", "5", says="levels must be 1 or 2")
        self.fails(1, *command, "-k", "3", "--tolerance", "2", says="tolerance must be")
        self.fails(1, *command, "-k", "3", "--frozen", says="frozen is for centroids")
        self.fails(1, *command, "-k", "3", "--initial", "queries.bvecs", says="initial has 17 rows")
        self.fails(1, *command, "-k", "3", "--type", "f80", says="'f80'")
        self.fails(1, *command[:3], "-k", "3", "--out", "c.bvecs", says="--out")
        self.fails(1, *command[:3], "-k", "3", "--out", "base.bvecs", says="base.bvecs")

    def test_ctrl_c_leaves_no_file(self):
        process = subprocess.Popen(
            [self.program, "kmeans", "--base", "base.bvecs", "-k", "100", "--restarts", "1000000"]
            + ["--out", "c.fvecs"],
            cwd=self.folder,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.interrupt(process)
        words = process.communicate(timeout=60)[1]
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(words, r"\Aknear: [^\n]+\n\Z")
        self.assertFalse(os.path.exists(self.path("c.fvecs")))


if __name__ == "__main__":
    main()
