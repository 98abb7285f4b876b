"""What the tests of the program share: files in its formats, brute force, and how it is run.

    import program_cases                             # tests/cli/*_test.py /path/to/knear
    class Search(program_cases.ProgramTest): ...
    if __name__ == "__main__": program_cases.main()

Plain unittest and the standard library, because Debian always has them. The brute force here is
written from the definitions (float64 sums, ties by row number) and shares nothing with knear.
"""

import contextlib
import functools
import gzip
import math
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest


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


def not_sanitised(test):
    """Left out under a sanitiser, where it takes a minute: other tests of the program go the same
    ways with fewer rows or in fewer rounds, or tests in C++ do."""

    @functools.wraps(test)
    def run(self):
        if self.sanitised:
            self.skipTest("left out under a sanitiser")
        test(self)

    return run


class ProgramTest(unittest.TestCase):
    program = None
    sanitised = False  # sanitisers take memory of their own

    def setUp(self):
        # A folder of its own above the one where the program runs: "../shared/data" is not there,
        # whatever stands beside the temporary folders.
        outer = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, outer)
        self.folder = os.path.join(outer, "here")
        os.mkdir(self.folder)
        self.environment = dict(os.environ, XDG_CACHE_HOME=self.path("cache"))
        for name in ("KNEAR_DATA", "KNEAR_ISA"):
            self.environment.pop(name, None)
        # Whole numbers, so that every order of summation gives the same float64 and only the search
        # is compared. Few values, so that there are ties.
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
            [self.program, *map(str, arguments)],
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

    @contextlib.contextmanager
    def pipe(self, content):
        """The name of a pipe that holds `content` and has no writer, and options that pass it."""
        end, writer = os.pipe()
        os.write(writer, content)
        os.close(writer)
        yield f"/dev/fd/{end}", {"pass_fds": (end,)}
        os.close(end)

    def interrupt(self, process):
        """Ctrl-C, once the program catches it: a busy machine may take long to start it."""
        caught = 1 << (signal.SIGINT - 1)
        for _ in range(3000):
            self.assertIsNone(process.poll(), "it was over before it could be interrupted")
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            if int(status.split("SigCgt:")[1].split()[0], 16) & caught:
                break
            time.sleep(0.01)
        time.sleep(0.1)
        self.assertIsNone(process.poll(), "it was over before it could be interrupted")
        process.send_signal(signal.SIGINT)

    def search(self, *more, files="bvecs", command="search"):
        return self.ok(command, "--base", f"base.{files}", "--queries", f"queries.{files}", *more)


def main():
    ProgramTest.program = os.path.abspath(sys.argv.pop(1))
    ProgramTest.sanitised = b"__asan_init" in pathlib.Path(ProgramTest.program).read_bytes()
    unittest.main()
