"""What `knear search` and `knear truth` refuse: words, values, files; and that nothing is lost."""

import math
import os

from program_cases import ProgramTest, main, write_vecs


class RefusedSearches(ProgramTest):
    def test_wrong_words_have_status_2(self):
        files = ["--base", "base.bvecs", "--queries", "queries.bvecs"]
        for arguments, says in (
            ([], "command"),
            (["serch"], "serch"),
            (["--bogus"], "--bogus"),
            (["search"], "-k"),
            (["search", *files], "-k"),
            (["search", "-k", "5", "--queries", "queries.bvecs"], "--base"),
            (["search", "-k", "5", "--base", "base.bvecs"], "--queries"),
            (["search", *files, "-k", "five"], "five"),
            (["search", *files, "-k", "5.5"], "5.5"),
            (["search", *files, "-k", ""], "-k"),
            (["search", *files, "-k"], "-k"),
            (["search", *files, "-k", "5", "--bogus"], "--bogus"),
            (["search", *files, "-k", "5", "stray"], "stray"),
            (["search", *files, "-k", "5", "--memory", "12Q"], "12Q"),
            (["search", *files, "-k", "5", "--memory", "M"], "--memory"),
            (["search", *files, "-k", "5", "--recall", "most"], "most"),
            (["search", *files, "-k", "5", "--recall", "nan"], "nan"),
            (["search", *files, "-k", "5", "--threads", "two"], "two"),
            (["search", *files, "-k", "5", "-k", "6"], "-k is given 2 times, as 5 and 6, but"),
            (["search", *files, "-k", "5", "--json", "--json"], "--json is given 2 times, but"),
            (["search", *files, "-k", "5", "--json=false", "--json"], "--json is given 2 times"),
            (
                ["serve", "--index", "i.knear", "--port", "1", "--port", "1"],
                "--port is given 2 times, as 1 and 1, but may be given once",
            ),
            (["serve", "--index", "i.knear", "--read-only", "--read-only"], "--read-only is given"),
            (["serve", "--index", "i.knear", "--allow-partial"], "--allow-partial"),
            (["truth", *files, "-k", "5"], "--out"),
            (["bench"], "exact"),
            (["bench", "nothing"], "nothing"),
            (["roofline", "--seconds", "long"], "long"),
            (["demo", "--base", "base.bvecs"], "--queries"),
        ):
            with self.subTest(arguments=arguments):
                self.fails(2, *arguments, says=says)

    def test_control_characters_of_words_are_escaped(self):
        files = ["--base", "base.bvecs", "--queries", "queries.bvecs"]
        for arguments, status, says in (
            (["se\narch"], 2, "'se\\narch'"),
            (["search", *files, "-k", "5\x1b[2J"], 2, "5\\x1b[2J"),
            (["search", *files, "-k", "5", "--ba\x07se", "x"], 2, "--ba\\x07se"),
            (["search", *files, "-k", "5", "--metric", "l\t2"], 1, "l\\t2"),
            (["search", "--base", "no\nfile.fvecs", *files[2:], "-k", "5"], 1, "no\\nfile"),
            (["info", "\x9b31m.knear"], 1, "\\u009b31m.knear"),
        ):
            with self.subTest(arguments=arguments):
                self.fails(status, *arguments, says=says)

    def test_control_characters_of_names_are_escaped_in_results(self):
        out = self.ok("convert", "base.bvecs", "a\x1b[31mb.npy")
        self.assertIn("a\\x1b[31mb.npy", out)
        self.assertNotIn("\x1b", out + self.ok("info", "a\x1b[31mb.npy"))

    def test_the_first_unknown_word_is_named_before_what_is_missing(self):
        files = ["--base", "base.bvecs", "--queries", "queries.bvecs"]
        for words, says in (
            (["search", "--bse", "x"], "no option '--bse'; did you mean '--base'?"),
            (["search", "--basee", "x"], "no option '--basee'; did you mean '--base'?"),
            (["search", "--BASE=x"], "no option '--BASE'; did you mean '--base'?"),
            (["search", "-base", "x"], "no option '-base'; did you mean '--base'?"),
            (["search", "-b", "x", "-q", "y"], "no option '-b'; did you mean '--base'?"),
            (["search", *files, "-k", "5", "--query", "x"], "did you mean '--queries'?"),
            (["search", *files, "-k", "5", "-q", "x"], "no option '-q'; did you mean '--queries'?"),
            (["search", "--output", "x"], "no option '--output'; did you mean '--out'?"),
            (["search", "--htreads", "2"], "no option '--htreads'; did you mean '--threads'?"),
            (["search", "--verbose"], "no option '--verbose'; 'knear search --help' lists them"),
            (["search", *files, "-k", "five", "--bse", "x"], "no option '--bse'"),
            (["search", *files, "-k", "9" * 30, "--bse", "x"], "no option '--bse'"),
            (
                ["search", "vectors.fvecs", "queries.fvecs"],
                "unexpected argument 'vectors.fvecs': 'knear search' takes options only; "
                "'knear search --help' lists them",
            ),
            (
                ["search", "base", "base.fvecs"],
                "'base': 'knear search' takes options only; did you mean '--base'?",
            ),
            (
                ["convert", "a.npy", "b.npy", "c.npy"],
                "unexpected argument 'c.npy': 'knear convert' takes IN OUT; "
                "'knear convert --help' lists them",
            ),
            (["eval", "--bogus", "x"], "no option '--bogus'"),
            (["bench", "recall", "--indx", "x"], "no option '--indx'; did you mean '--index'?"),
            (["bench", "recal"], "unknown command 'bench recal'; did you mean 'recall'?"),
            (["serach", "--k", "1"], "unknown command 'serach'; did you mean 'search'?"),
            (["serach", "--help"], "unknown command 'serach'; did you mean 'search'?"),
            (["Search"], "unknown command 'Search'; did you mean 'search'?"),
            (["help", "search"], "unknown command 'help'; did you mean '--help'?"),
            (["version"], "unknown command 'version'; did you mean '--version'?"),
            (["--verison"], "no option '--verison'; did you mean '--version'?"),
            (["frobnicate"], "unknown command 'frobnicate'; 'knear --help' lists them"),
            (["search", *files, "-k"], "-k needs a value, but is the last word"),
            (["search", *files, "-k", "5", "--type="], "--type needs a value, but got ''"),
            (["search", "--base=", *files[2:], "-k", "5"], "--base needs a value, but got ''"),
        ):
            with self.subTest(words=words):
                said = self.fails(2, *words, says=says).stderr
                self.assertNotIn("required", said)
                self.assertLessEqual(said.count("no option"), 1)

    def test_k_with_one_dash_or_two(self):
        answers = {
            self.search(*k, "--json", "--out", "a.ivecs") and self.file("a.ivecs").read_bytes()
            for k in (["-k", "5"], ["-k5"], ["-k=5"], ["--k", "5"], ["--k=5"])
        }
        self.assertEqual(len(answers), 1)
        # A word that is the value of another option stays what it is.
        files = ["--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "5"]
        self.fails(
            2, "search", *files, "--radius", "--k", says="--radius needs a number, but got '--k'"
        )

    def test_help_comes_before_unknown_options(self):
        self.assertIn("knear search", self.ok("search", "--bogus", "x", "--help"))

    def test_wrong_values_have_status_1(self):
        for more, says in (
            (["-k", "0"], "-k"),
            (["-k", "-3"], "-3"),
            (["-k", "99999999999999999999"], "-k"),
            (["-k", "1000000000000000"], "k = 1000000000000000"),
            (["-k", "5", "--threads", "-1"], "-1"),
            (["-k", "5", "--threads", "5000"], "5000"),
            (["-k", "5", "--recall", "0"], "--recall"),
            (["-k", "5", "--recall", "1.01"], "1.01"),
            (["-k", "5", "--recall", "-1"], "--recall"),
            (["-k", "5", "--method", "exact", "--recall", "0.9"], "0.9"),
            (["-k", "5", "--metric", "l7"], "l7"),
            (["-k", "5", "--method", "magic"], "magic"),
            (["-k", "5", "--method", "threshold-heap", "--recall", "0.9"], "0.9"),
            (["-k", "5", "--method", "threshold-heap", "--samples", "4"], "but are 4"),
            (["-k", "5", "--method", "threshold-heap", "--samples", "-4"], "-4"),
            (["-k", "5", "--method", "exact", "--samples", "50"], "50"),
            (["-k", "5", "--method", "partial-reduce", "--radius", "9"], "--radius 9"),
            (["-k", "5", "--method", "partial-reduce", "--first-pass", "direct"], "direct"),
            (["-k", "5", "--type", "f8"], "f8"),
            (["-k", "5", "--device", "abacus"], "abacus"),
            (["-k", "5", "--first-pass", "int4"], "int4"),
            (["-k", "5", "--choose", "group=3"], "group=3"),
            (["-k", "5", "--choose", "tile=0"], "tile=0"),
            (["-k", "5", "--choose", "refine=yes"], "refine=yes"),
            (["-k", "5", "--first-pass", "fp32", "--choose", "refine=on"], "fp32"),
            (["-k", "5", "--choose", "columns=8"], "not prefix"),
            (["-k", "5", "--first-pass", "direct", "--choose", "tile=4"], "direct"),
            (["-k", "5", "--memory", "0"], "--memory"),
            (["-k", "5", "--memory", "-5M"], "-5M"),
            (["-k", "5", "--memory", "1"], "memory"),
            (["-k", "5", "--out", "a.txt"], "--out"),
            (["-k", "5", "--out", "none/a.ivecs"], "none/a.ivecs"),
            (["-k", "5", "--out", "a.ivecs", "--distances", "none/d.fvecs"], "none/d.fvecs"),
            (["-k", "5", "--out", "a.npy", "--distances", "a.npy"], "same file, a.npy"),
            (["-k", "5", "--out", "a.npy", "--distances", "./a.npy"], "same file, a.npy"),
            (["-k", "5", "--truth", "none.ivecs"], "none.ivecs"),
        ):
            with self.subTest(more=more):
                self.fails(
                    1,
                    "search",
                    "--base",
                    "base.bvecs",
                    "--queries",
                    "queries.bvecs",
                    *more,
                    says=says,
                )
        self.fails(
            1,
            "truth",
            "--base",
            "base.bvecs",
            "--queries",
            "queries.bvecs",
            "-k",
            "5",
            "--recall",
            "0.9",
            "--out",
            "a.ivecs",
            says="0.9",
        )

    def test_what_is_for_inverted_lists_says_so(self):
        for more, says in (
            (["--probes", "4"], "probes is 4, but there are no inverted lists"),
            (["--probes", "-1"], "--probes must be at least 1, but is -1"),
            (["--widen"], "widen is on, but there are no inverted lists"),
            (["--certify"], "certify is on, but there are no inverted lists"),
        ):
            with self.subTest(more=more):
                vectors = ["--base", "base.bvecs", "--queries", "queries.bvecs"]
                self.fails(1, "search", *vectors, "-k", "5", *more, says=says)

    def test_devices_that_are_not_here_say_so(self):
        vectors = ["--base", "base.bvecs", "--queries", "queries.bvecs", "-k", "5"]
        for device in "cuda:98", "cuda:99":
            with self.subTest(device=device):
                self.fails(1, "search", *vectors, "--device", device, says="device")
                self.fails(
                    1, "search", *vectors, "--radius", "9", "--device", device, says="device"
                )
                heap = ["--method", "threshold-heap", "--device", device]
                self.fails(1, "search", *vectors, *heap, says="device")
                # A plan of it is no other error.
                plain = self.fails(1, "search", *vectors, "--device", device, says="device")
                for more in ["--explain"], ["--explain", "--json"]:
                    words = [*vectors, "--device", device, *more]
                    said = self.fails(1, "search", *words, says="device").stderr
                    self.assertEqual(said, plain.stderr)
        self.fails(1, "search", *vectors, "--device", "gpu", says="cpu, cuda or cuda:N")

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
                self.fails(
                    1,
                    "search",
                    "--base",
                    base,
                    "--queries",
                    queries,
                    "-k",
                    "5",
                    "--out",
                    "a.ivecs",
                    *more,
                    says=says,
                )

    def test_an_input_is_never_overwritten(self):
        before = self.file("base.fvecs").read_bytes()
        os.link(self.path("base.fvecs"), self.path("same.fvecs"))
        for out in ("base.fvecs", "./base.fvecs", "same.fvecs"):
            self.fails(
                1,
                "search",
                "--base",
                "base.fvecs",
                "--queries",
                "queries.fvecs",
                "-k",
                "5",
                "--distances",
                out,
                says="overwrite",
            )
        self.assertEqual(self.file("base.fvecs").read_bytes(), before)

    def test_an_older_output_survives_an_error(self):
        self.file("a.ivecs").write_text("older")
        self.fails(
            1,
            "search",
            "--base",
            "base.bvecs",
            "--queries",
            "queries.bvecs",
            "-k",
            "5",
            "--out",
            "a.ivecs",
            "--distances",
            "none/d.fvecs",
        )
        self.assertEqual(self.file("a.ivecs").read_text(), "older")


if __name__ == "__main__":
    main()
