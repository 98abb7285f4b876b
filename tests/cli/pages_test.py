"""The pages that the program writes and serves: their markup has a rule for each of its classes.

An SVG path without a rule is filled with black, so that a class that is misspelt, or a part of the
style that a page leaves out, shows as black shapes.
"""

import re
import signal

import server_cases
from program_cases import ProgramTest, main, write_vecs


class ExploreServer(server_cases.Server):
    command = "explore"
    says = r"http://127\.0\.0\.1:(\d+)/ shows .*"


class IndexServer(server_cases.Server):
    command = "serve"
    says = r"http://127\.0\.0\.1:(\d+)/? serves .*"
    ends = signal.SIGTERM


def classes_used(page):
    """Classes of the markup, and those that scripts give to elements; parts of a name that a script
    puts together are left out."""
    style = re.compile(r"<style>.*?</style>", re.S)
    page = style.sub("", page)
    scripts = "\n".join(re.findall(r"<script[^>]*>(.*?)</script>", page, re.S))
    scripts = re.sub(r"^\s*//.*", "", scripts, flags=re.M)
    markup = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.S)
    lists = re.findall(r"""<[^<>]*?\sclass=(?:'([^']*)'|"([^"]*)"|([^\s'">]+))""", markup)
    names = [name for found in lists for name in found]
    names += re.findall(r"""classList\.(?:add|toggle|remove)\(\s*['"]([^'"]+)['"]""", scripts)
    for given in re.findall(r"className\s*[:=]\s*([^\n,;})]*)", scripts):
        quoted = ["".join(pair) for pair in re.findall(r"'([^']*)'|`([^`]*)`?", given)]
        names += [re.sub(r"\$\{[^}]*\}?", " ", text) for text in quoted]
    return {name for found in names for name in found.split()}


def classes_styled(page):
    rules = "\n".join(re.findall(r"<style>(.*?)</style>", page, re.S))
    selectors = " ".join(re.findall(r"([^{}]*)\{", re.sub(r"/\*.*?\*/", "", rules, flags=re.S)))
    return set(re.findall(r"\.([A-Za-z_][\w-]*)", selectors))


class Pages(ProgramTest):
    def check(self, page, *expected):
        used = classes_used(page)
        self.assertLessEqual(set(expected), used, "the page lacks what is to be checked")
        self.assertEqual(used - classes_styled(page), set(), "classes without a rule")

    def test_what_is_looked_for(self):
        page = (
            "<style>.a, .b > i { } @media (x) { .c:hover { } } /* .d { } */</style>"
            "<p class='a d'></p><svg><path class=\"curve-1\"/></svg><script>"
            "x.classList.add('e'); element({ className: `b ${kind}` });\n  // className: 'z'\n"
            "y.className = yes ? 'f' : 'g h';</script>"
        )
        self.assertEqual(classes_used(page), {*"abdefgh", "curve-1"})
        self.assertEqual(classes_styled(page), {"a", "b", "c"})

    def test_report_of_the_demo(self):
        # Enough rows for every index of the chart.
        rows = [[(7 * i + 3 * j * i) % 97 for j in range(12)] for i in range(1500)]
        write_vecs(self.path("many.bvecs"), rows, "B")
        self.file("base.txt").write_text("".join(f"row {i}\n" for i in range(1500)))
        self.file("queries.txt").write_text("".join(f"query {i}\n" for i in range(17)))
        words = ["--base", "many.bvecs", "--queries", "queries.bvecs"]
        words += ["--labels", "base.txt", "--query-labels", "queries.txt"]
        self.ok("demo", *words, "--report", "r.html")
        self.check(self.file("r.html").read_text(), "curve-1", "curve-2", "mark")

    def test_report_of_bench_recall(self):
        words = ["--base", "base.bvecs", "--queries", "queries.bvecs", "--repeat", 1, "--alone", 0]
        kinds = [f"IVF{2 + i},Flat" for i in range(8)]
        for kind in kinds:
            words += ["--index", kind]
        self.ok("bench", "recall", *words, "--report", "r.html", "--json")
        curves = [f"curve-{1 + i}" for i in range(len(kinds))]
        self.check(self.file("r.html").read_text(), *curves, "mark", "pair")

    def test_page_of_explore(self):
        words = ["--base", "base.fvecs", "-k", 5]
        self.ok("explore", *words, "--html", "r.html")
        self.check(self.file("r.html").read_text(), "grid", "tile")
        server = ExploreServer(self, *words)
        status, _, page = server.ask("/")
        self.assertEqual(status, 200)
        page = page.decode()
        for path in re.findall(r'<link rel="stylesheet" href="([^"]*)"', page):
            page += f"<style>{server.ask('/' + path)[2].decode()}</style>"
        for path in re.findall(r'<script src="([^"]*)"', page):
            page += f"<script>{server.ask('/' + path)[2].decode()}</script>"
        self.check(page, "grid", "tile")

    def test_page_of_the_server(self):
        self.ok("build", "--base", "base.fvecs", "--index", "Flat", "--out", "a.knear")
        status, _, page = IndexServer(self, "--index", "a.knear").ask("/")
        self.assertEqual(status, 200)
        self.check(page.decode(), "hint", "problem")


if __name__ == "__main__":
    main()
