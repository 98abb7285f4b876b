"""What any command does with bad files, full disks, closed streams and signals."""

import json
import math
import os
import pty
import random
import re
import resource
import shutil
import signal
import struct
import subprocess

from program_cases import ProgramTest, main, read_vecs, write_vecs


class EveryCommand(ProgramTest):
    """What any user may do wrong, with every command that could notice it."""

    # Commands by the files that they read and write; FILE, QUERIES and OUT are replaced.
    reading = {
        "search": ["search", "--base", "FILE", "--queries", "QUERIES", "-k", "3", "--out", "OUT"],
        "truth": ["truth", "--base", "FILE", "--queries", "QUERIES", "-k", "3", "--out", "OUT"],
        "build": ["build", "--base", "FILE", "--index", "Flat", "--out", "OUT"],
        "kmeans": ["kmeans", "--base", "FILE", "-k", "3", "--out", "OUT"],
        "convert": ["convert", "FILE", "OUT"],
        "info": ["info", "FILE"],
        "eval": ["eval", "QUERIES", "QUERIES", "--base", "FILE", "--queries", "FILE"],
        "graph": ["graph", "--base", "FILE", "-k", "3", "--out", "OUT"],
        "path": ["path", "--graph", "g.knear", "--base", "FILE", "--from", "0", "--to", "1"],
        "explore": ["explore", "--base", "FILE", "-k", "3", "--html", "OUT"],
    }
    endings = {
        "build": ".knear",
        "convert": ".fvecs",
        "kmeans": ".fvecs",
        "graph": ".knear",
        "explore": ".html",
    }

    def words(self, command, file, queries="queries.fvecs", out=None):
        out = out or "out" + self.endings.get(command, ".ivecs")
        if command == "eval" and queries == "queries.fvecs":
            queries = "ids.ivecs"
        names = {"FILE": file, "QUERIES": queries, "OUT": out}
        return [names.get(word, word) for word in self.reading[command]]

    def setUp(self):
        super().setUp()
        write_vecs(self.path("ids.ivecs"), [[0]] * 17, "i")
        self.ok("graph", "--base", "base.fvecs", "-k", "3", "--out", "g.knear")

    def test_files_that_are_none(self):
        whole = self.file("base.fvecs").read_bytes()
        self.file("empty.fvecs").write_bytes(b"")
        self.file("cut.fvecs").write_bytes(whole[:-2])
        self.file("text.fvecs").write_bytes(b"some words that are no vectors")
        self.file("text.dat").write_bytes(b"some words that are no vectors")
        os.mkdir(self.path("folder.fvecs"))
        for command in self.reading:
            for file in (
                "none.fvecs",
                "empty.fvecs",
                "cut.fvecs",
                "text.fvecs",
                "text.dat",
                "folder.fvecs",
            ):
                with self.subTest(command=command, file=file):
                    self.fails(1, *self.words(command, file), says=file)

    def test_pipes_that_nobody_writes_to(self):
        os.mkfifo(self.path("pipe.fvecs"))
        os.mkfifo(self.path("pipe.knear"))
        os.mkfifo(self.path("pipe.hdf5"))
        os.mkfifo(self.path("pipe"))
        self.ok("build", "--base", "base.fvecs", "--index", "Flat", "--out", "a.knear")
        search = ["search", "--queries", "queries.fvecs", "-k", "3"]
        commands = [self.words(command, "pipe.fvecs") for command in self.reading]
        commands += [
            ["info", "pipe.knear"],
            ["info", "pipe.hdf5"],
            ["info", "pipe"],
            ["convert", "pipe.knear", "out.faiss"],
            ["convert", "pipe.knear", "out.npz", "--closure", "union"],
            [*search, "--index", "pipe.knear"],
            [*search, "--base", "base.fvecs", "--truth", "pipe.fvecs"],
            [*search, "--base", "base.fvecs", "--filter", "pipe.fvecs"],
            [*search, "--base", "base.fvecs", "--out", "pipe.fvecs"],
            ["tune", "--index", "pipe.knear"],
            ["path", "--graph", "pipe.knear", "--base", "base.fvecs", "--from", "0", "--to", "1"],
            ["explore", "--index", "pipe.knear", "--html", "o.html"],
            [
                "graph",
                "--base",
                "base.fvecs",
                "-k",
                "3",
                "--from",
                "pipe.knear",
                "--out",
                "b.knear",
            ],
            [
                "plan",
                "--rows",
                "1e6",
                "--dim",
                "96",
                "--recall",
                "0.9",
                "--qps",
                "1",
                "--machine",
                "pipe",
            ],
            ["serve", "--index", "pipe.knear", "--port", "0"],
            ["demo", "--base", "pipe.fvecs", "--queries", "queries.fvecs"],
        ]
        for words in commands:
            with self.subTest(words=words):
                self.fails(1, *words, says="pipe")
        # Labels may come through a pipe; a pipe without a writer has none.
        explore = ["explore", "--base", "base.fvecs", "-k", "3", "--html", "o.html"]
        self.fails(
            1, *explore, "--labels", "pipe", says="--labels pipe (a pipe) has 0 labels in 0 bytes"
        )
        self.file("lines").write_text("".join(f"row {i}\n" for i in range(300)))
        for labels in "lines", "/dev/stdin":
            with subprocess.Popen(["cat", self.path("lines")], stdout=subprocess.PIPE) as cat:
                result = subprocess.run(
                    [self.program, *explore, "--labels", labels],
                    cwd=self.folder,
                    env=self.environment,
                    stdin=cat.stdout,
                    capture_output=True,
                    timeout=60,
                )
            self.assertEqual((result.returncode, result.stderr), (0, b""), labels)
        self.assertIn("row 299", self.file("o.html").read_text())

    def test_outputs_that_are_inputs(self):
        """By any name: nothing is read, and the input stays what it was."""
        self.ok("convert", "base.fvecs", "base.npy")
        self.ok("build", "--base", "base.fvecs", "--index", "Flat", "--out", "a.knear")
        self.file("lines.html").write_text("".join(f"row {i}\n" for i in range(300)))
        files = {
            name: self.file(name).read_bytes()
            for name in ("base.npy", "a.knear", "g.knear", "lines.html")
        }
        names = {}
        for name in files:
            stem, ending = os.path.splitext(name)
            os.symlink(name, self.path(f"{stem}-soft{ending}"))
            os.link(self.path(name), self.path(f"{stem}-hard{ending}"))
            names[name] = [name, f"./{name}", f"{stem}-soft{ending}", f"{stem}-hard{ending}"]
        queries = ["--queries", "queries.fvecs"]
        bench = ["--base", "base.npy", *queries]
        page = "page.html"
        os.symlink("base.npy", self.path(page))
        for name, words in (
            ("base.npy", ["convert", "base.npy", "--type", "f16", "OUT"]),
            ("base.npy", ["convert", "base.npy", "OUT"]),
            ("base.npy", ["kmeans", "--base", "base.npy", "-k", "3", "--out", "OUT"]),
            (
                "base.npy",
                [
                    "kmeans",
                    "--base",
                    "base.fvecs",
                    "--initial",
                    "base.npy",
                    "-k",
                    "3",
                    "--out",
                    "OUT",
                ],
            ),
            ("base.npy", ["truth", "--base", "base.npy", *queries, "-k", "3", "--out", "OUT"]),
            (
                "base.npy",
                ["search", "--base", "base.npy", *queries, "-k", "3", "--distances", "OUT"],
            ),
            ("a.knear", ["convert", "a.knear", "OUT"]),
            (
                "g.knear",
                ["graph", "--base", "base.npy", "--from", "g.knear", "-k", "3", "--out", "OUT"],
            ),
            (
                "lines.html",
                [
                    "explore",
                    "--base",
                    "base.npy",
                    "-k",
                    "3",
                    "--labels",
                    "lines.html",
                    "--html",
                    "OUT",
                ],
            ),
            (page, ["bench", "recall", *bench, "--report", "OUT"]),
            (page, ["bench", "neighbors", *bench, "--report", "OUT"]),
            (page, ["bench", "threshold-heap", *bench, "--out", "OUT"]),
            (page, ["demo", *bench, "--report", "OUT"]),
        ):
            for out in names.get(name, [name]):
                with self.subTest(words=words, out=out):
                    given = [out if word == "OUT" else word for word in words]
                    self.fails(1, *given, says="would overwrite the input")
        for name in files:
            self.assertEqual(self.file(name).read_bytes(), files[name])
        os.symlink("base.fvecs", self.path("base.knear"))
        for command in ("build", "--index", "Flat"), ("graph", "-k", "3"):
            words = [*command, "--base", "base.fvecs", "--out", "base.knear"]
            self.fails(1, *words, says="--out would overwrite the input base.fvecs")

    def test_names_that_are_too_long(self):
        for command in "search", "truth", "build", "kmeans", "convert", "graph", "explore":
            ending = self.endings.get(command, ".ivecs")
            for length in 1000, 256, 240, 208:
                name = "x" * (length - len(ending)) + ending
                with self.subTest(command=command, length=length):
                    words = self.words(command, "base.fvecs", out=name)
                    self.fails(1, *words, says=f"has a file name of {length} bytes, but may have")
            name = "x" * (207 - len(ending)) + ending
            self.ok(*self.words(command, "base.fvecs", out=name))
            if command == "build":  # whose temporary names are the longest
                self.ok(*self.words(command, "base.fvecs", out=name), "--shards", "12")

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
            self.fails(1, *self.words(command, "secret.fvecs"), says="Permission denied", **options)
        # Nor write here.
        for command in ("search", "truth", "build", "convert", "graph", "explore"):
            if options:
                self.fails(
                    1, *self.words(command, "base.fvecs"), says="Permission denied", **options
                )

    def test_not_finite(self):
        for value in (math.nan, math.inf, -math.inf):
            rows = [[float(x) for x in row] for row in self.base]
            rows[7][5] = value
            write_vecs(self.path("bad.fvecs"), rows, "f")
            for command in ("search", "truth", "build", "graph", "explore"):
                self.fails(1, *self.words(command, "bad.fvecs"), says="row 7 column 5")
            write_vecs(self.path("bad.fvecs"), rows[:8], "f")
            for command in ("search", "truth"):
                self.fails(
                    1,
                    *self.words(command, "base.fvecs", "bad.fvecs"),
                    says="queries must be finite, but row 7 column 5",
                )
            self.assertIn("not finite", self.ok("info", "bad.fvecs"))
            base = ["--base", "bad.fvecs", "--out"]
            for words in (
                ["build", "--index", "Flat", *base, "b.knear"],
                ["build", "--index", "IVF2,Flat", *base, "b.knear"],
                ["kmeans", "-k", "2", *base, "c.fvecs"],
                ["graph", "-k", "2", *base, "g.knear"],
            ):
                self.fails(1, *words, says="knear: --base must be finite, but row 7 column 5")

    def test_columns_that_differ(self):
        write_vecs(self.path("wide.fvecs"), [[1.0] * 13] * 4, "f")
        for command in ("search", "truth"):
            self.fails(1, *self.words(command, "wide.fvecs"), says="12 columns, base has 13")

    def test_empty_words(self):
        # They would count as options that were not given.
        for command in self.reading:
            words = self.words(command, "base.fvecs")
            for i, word in enumerate(words[1:], 1):
                if word.startswith("-"):
                    continue
                with self.subTest(command=command, word=word):
                    self.fails(
                        2, *words[:i], "", *words[i + 1 :], says=" needs a value, but got ''"
                    )
        graph = self.words("graph", "base.fvecs")
        for option in "--metric", "--type", "--from", "--recall", "--memory":
            says = f"knear: {option} needs a value, but got ''"
            self.fails(2, *graph, option, "", says=says)
        for words in (
            ["convert", "g.knear", "out.npz", "--closure", ""],
            [*self.words("search", "base.fvecs"), "--first-pass", ""],
            [*self.words("search", "base.fvecs"), "--method", ""],
            [*self.words("explore", "base.fvecs"), "--names", ""],
        ):
            self.fails(2, *words, says=f"knear: {words[-2]} needs a value, but got ''")
        self.assertFalse(self.file("out.knear").exists())

    def test_k(self):
        self.ok("build", "--base", "base.fvecs", "--index", "Flat", "--out", "a.knear")
        for command in (
            ["search", "--base", "base.fvecs"],
            ["search", "--index", "a.knear"],
            ["truth", "--base", "base.fvecs"],
        ):
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
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], stderr=subprocess.DEVNULL
        )
        if made.returncode != 0:
            self.skipTest("no right to mount a small disk")
        self.addCleanup(subprocess.run, ["umount", disk])
        write_vecs(self.path("many.fvecs"), [[float(i), 0.5] for i in range(9000)], "f")
        for command, queries in (
            ("search", "many.fvecs"),
            ("truth", "many.fvecs"),
            ("build", ""),
            ("convert", ""),
        ):
            out = "disk/out" + self.endings.get(command, ".ivecs")
            words = self.words(command, "many.fvecs", queries, out)
            result = self.fails(1, *words, says=out)
            self.assertIn("No space left on device", result.stderr)
            self.assertEqual(os.listdir(disk), [], command)
        # 324 KB of blocks, of which it is known before.
        words = ["graph", "--base", "many.fvecs", "-k", "3", "--out", "disk/g.knear"]
        self.assertIn("disk/g.knear", self.fails(1, *words).stderr)
        self.assertEqual(os.listdir(disk), [])

    def test_files_that_may_not_grow(self):
        """ulimit -f: an error as a full disk is."""
        write_vecs(self.path("many.fvecs"), [[float(i), 0.5] for i in range(9000)], "f")
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16,) * 2)  # noqa: E731
        for command, queries in (
            ("search", "many.fvecs"),
            ("truth", "many.fvecs"),
            ("build", ""),
            ("convert", ""),
            ("graph", ""),
        ):
            with self.subTest(command=command):
                words = self.words(command, "many.fvecs", queries)
                self.fails(1, *words, says="File too large", preexec_fn=limit)

    def test_ctrl_c_half_way(self):
        # Zeros that take no disk: more than two seconds of work for every command.
        rows, dim = 3_000_000, 128
        with open(self.path("big.u8bin"), "wb") as file:
            file.write(struct.pack("<II", rows, dim))
            file.truncate(8 + rows * dim)
        before = sorted(os.listdir(self.folder))
        for command in ("build", "convert", "info"):
            with self.subTest(command=command):
                process = subprocess.Popen(
                    [self.program, *self.words(command, "big.u8bin")],
                    cwd=self.folder,
                    env=self.environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                )
                self.interrupt(process)
                out, err = process.communicate(timeout=120)
                self.assertEqual((process.returncode, out, err), (130, "", "knear: interrupted\n"))
                self.assertEqual(sorted(os.listdir(self.folder)), before)


class Streams(ProgramTest):
    def test_help_and_version(self):
        self.assertRegex(self.ok("--version"), r"\Aknear \d+\.\d+\.\d+\n\Z")
        commands = re.findall(r"^  (\w+) ", self.ok("--help").split("Subcommands:")[1], re.M)
        self.assertLessEqual(
            {"demo", "info", "convert", "search", "truth", "eval", "roofline", "bench"},
            set(commands),
        )
        if not os.path.exists(self.program + "-dist"):  # built without MPI
            commands.remove("dist")
        for command in commands:
            self.assertIn(f"knear {command}", self.ok(command, "--help"), "an example")

    def names(self, *words):
        """The commands that the help of a command lists."""
        listed = self.ok(*words, "--help").split("Subcommands:\n")[1].split("\n\n")[0]
        return re.findall(r"^  (\w\S*) ", listed, re.M)

    def commands(self):
        # dist and bench ann are other programs, which parse their words themselves.
        commands = [[name] for name in self.names() if name not in ("bench", "dist")]
        commands += [["bench", name] for name in self.names("bench") if name != "ann"]
        self.assertGreater(len(commands), 20)
        return commands

    def test_the_help_fits_a_screen(self):
        for command in [[], ["bench"], *self.commands()]:
            with self.subTest(command=command):
                lines = self.ok(*command, "--help").splitlines()
                self.assertLessEqual(len(lines), 45)
                # Examples begin with two blanks and a program, and are to be copied.
                texts = [
                    line for line in lines if not re.match(r"  (knear|printf|curl|source) ", line)
                ]
                self.assertLessEqual(max(map(len, texts)), 100)
                self.assertFalse(any("Needs:" in line or "REQUIRED" in line for line in lines))

    def test_all_options_are_in_the_long_help(self):
        short, long = self.ok("search", "--help"), self.ok("search", "--help-all")
        for option in "--choose", "--first-pass", "--widen", "--samples":
            self.assertNotIn(option, short)
            self.assertIn(option, long)
        self.assertIn("'knear search --help-all' also shows 9 rarely needed options.", short)
        self.assertIn("Rarely needed:\n", long)
        self.assertNotIn("rarely needed options", long)
        # A command without such options has no longer help, but takes the flag.
        self.assertNotIn("--help-all", self.ok("eval", "--help"))
        self.assertEqual(self.ok("eval", "--help-all"), self.ok("eval", "--help"))
        self.assertIn("Simulation:\n", self.ok("plan", "--help"))
        self.assertIn("neighbours per query (required)", short)

    def completed(self, *words):
        """What bash offers for the last of these words."""
        script = """source <("$0" completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
                    _knear; printf '%s\\n' "${COMPREPLY[@]}" """
        run = subprocess.run(
            ["bash", "-c", script, self.program, "knear", *words],
            capture_output=True,
            text=True,
            check=True,
            cwd=self.folder,
        )
        self.assertEqual(run.stderr, "")
        return run.stdout.split()

    def test_bash_completes_commands_options_and_values(self):
        self.assertEqual(self.completed("sea"), ["search"])
        self.assertLessEqual({"build", "search", "--version"}, set(self.completed("")))
        self.assertEqual(self.completed("search", "--rec"), ["--recall"])
        self.assertIn("--first-pass", self.completed("search", "--base", "b.npy", "--"))
        self.assertEqual(self.completed("search", "--metric", "co"), ["cosine"])
        self.assertEqual(self.completed("bench", "mod"), ["model"])
        self.assertEqual(self.completed("bench", "model", "--qu"), ["--quick", "--queries"])
        self.assertEqual(self.completed("search", "--base", "fi"), [])  # files, by bash itself

    def test_scripts_of_all_shells_name_every_command_and_option(self):
        for shell in "bash", "zsh", "fish":
            script = self.ok("completion", shell)
            for command in self.commands():
                self.assertIn(command[-1], script)
                shown = self.ok(*command, "--help-all").rpartition("Example")[0]
                for option in re.findall(r"^  (?:-\w,)?--([a-z-]+)", shown, re.M):
                    self.assertRegex(script, rf"(--|-l ){option}\b", (shell, command))
            if shutil.which(shell):
                done = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""), shell)
        says = "SHELL must be bash, zsh or fish, but is 'tcsh'"
        self.fails(1, "completion", "tcsh", says=says)

    def test_unknown_options_of_every_command(self):
        commands = self.commands()
        if os.path.exists(self.program + "-dist"):
            commands += [["dist", name] for name in self.names("dist")]
        for command in commands:
            lists = f"'knear {' '.join(command)} --help' lists them"
            for more in ["--frobnicate"], ["--frobnicate=1"], ["--frobnicate", "x", "--zzz", "y"]:
                with self.subTest(command=command, more=more):
                    said = self.fails(2, *command, *more, says="no option '--frobnicate'").stderr
                    self.assertEqual(said, f"knear: no option '--frobnicate'; {lists}\n")

    def test_info_without_files_says_what_this_program_is(self):
        text = self.ok("info")
        out = json.loads(self.ok("info", "--json"))
        self.assertEqual(f"knear {out['version']}\n", self.ok("--version"))
        self.assertEqual(text.splitlines()[0], f"knear {out['version']}")
        self.assertIn(out["isa"], out["isas"])
        self.assertEqual(out["isas"][0], "scalar")
        self.assertIs(type(out["cuda"]), bool)
        self.assertEqual(out["cuda"], bool(out["cuda_architectures"]))
        for code in out["cuda_architectures"]:
            self.assertRegex(code, r"\A(sm|compute)_\d+a?\Z")
            self.assertIn(code, text)
        for device in out["devices"]:
            self.assertIn(device["name"], text)
            self.assertGreater(device["memory_bytes"], 0)
            self.assertRegex(device["compute_capability"], r"\A\d+\.\d+\Z")
        if not out["devices"]:  # and a search there is refused for the same reason
            self.assertIn(out["no_device"], text)
            words = ["search", "--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "1"]
            reason = out["no_device"] if out["cuda"] else "without CUDA"
            self.fails(1, *words, "--device", "cuda", "--json", says=reason)
            told = json.loads(self.ok(*words, "--device", "auto", "--json"))
            self.assertEqual(told["device"], "cpu")
            self.assertGreater(told["predicted_seconds"], 0)
            self.fails(
                1,
                *["search", "--index", "a.knear", "--queries", "queries.bvecs", "-k", "1"],
                *["--device", "auto"],
                says="--device auto chooses for searches of a --base alone, but there is a.knear",
            )
        self.environment["KNEAR_ISA"] = "scalar"
        self.assertEqual(json.loads(self.ok("info", "--json"))["isa"], "scalar")
        self.environment["KNEAR_ISA"] = "sse9"
        self.fails(1, "info", says="KNEAR_ISA must be scalar")

    def test_a_full_or_closed_output_is_an_error(self):
        arguments = ["search", "--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "5"]
        with open("/dev/full", "w") as full:
            self.fails(1, *arguments, "--json", stdout=full, says="standard output")
            self.fails(1, "--version", stdout=full, says="standard output")
        command = 'exec "$0" "$@" >&-'
        closed = subprocess.run(
            ["sh", "-c", command, self.program, *arguments],
            cwd=self.folder,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
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
            [
                self.program,
                "search",
                "--base",
                "big.fvecs",
                "--queries",
                "big.fvecs",
                "-k",
                "5",
                "--first-pass",
                "fp32",
            ],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=terminal,
        )
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
            [
                self.program,
                "search",
                "--base",
                "big.fvecs",
                "--queries",
                "big.fvecs",
                "-k",
                "5",
                "--first-pass",
                "direct",
                "--threads",
                "1",
                "--out",
                "a.ivecs",
            ],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Programs started in the background have it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.interrupt(process)
        out, err = process.communicate(timeout=120)
        self.assertEqual((process.returncode, out, err), (130, "", "knear: interrupted\n"))
        self.assertEqual(sorted(os.listdir(self.folder)), before)


if __name__ == "__main__":
    main()
