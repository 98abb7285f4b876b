"""The page of `knear explore` in headless Chromium: what it shows, its keys, and what it asks for.

    KNEAR_PROGRAM=build/release/bin/knear python -m pytest tests/page

Needs Debian's chromium and chromium-driver, and Selenium (scripts/setup --page); without them it is
skipped. On pictures, texts and numbers that are made here.
"""

import base64
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import time
import zlib

import numpy as np
import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="no Selenium (scripts/setup --page)")
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

root = pathlib.Path(__file__).resolve().parents[2]
program = pathlib.Path(os.environ.get("KNEAR_PROGRAM", root / "build/release/bin/knear")).resolve()
chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not chromium or not driver or not program.exists(),
    reason="no chromium, chromedriver or program (scripts/setup --page, KNEAR_PROGRAM)",
)

ROWS, WIDTH, HEIGHT = 400, 8, 6
ENDS = (0, ROWS - 1)


def pictures():
    """A bright bar that wanders over a dark ground: a path leads from each to every other."""
    state, out = 1, []
    for i in range(ROWS):
        pixels = []
        for y in range(HEIGHT):
            for x in range(WIDTH):
                state = (state * 1103515245 + 12345) % 2**31
                bar = max(0, 200 - 90 * abs(x - i * (WIDTH - 1) / ROWS))
                pixels.append(min(255, int(bar + 10 * y) + state // 2**16 % 24))
        out.append(bytes(pixels))
    return out


def grey_png(pixels):
    def chunk(name, data):
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    lines = b"".join(b"\0" + pixels[y * WIDTH : (y + 1) * WIDTH] for y in range(HEIGHT))
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("page")
    head = bytes([0, 0, 8, 3]) + struct.pack(">3i", ROWS, HEIGHT, WIDTH)
    (out / "base-idx3-ubyte").write_bytes(head + b"".join(pictures()))
    labels = (
        bytes([0, 0, 8, 1]) + struct.pack(">i", ROWS) + bytes(i * 3 // ROWS for i in range(ROWS))
    )
    (out / "labels-idx1-ubyte").write_bytes(labels)
    (out / "item17.png").write_bytes(grey_png(pictures()[17]))
    words = [program, "graph", "--base", "base-idx3-ubyte", "-k", "6", "--out", "g.knear"]
    subprocess.run(words, cwd=out, check=True, stdout=subprocess.DEVNULL)
    # Two clusters that nothing connects, of plain numbers.
    rows = [[100.0 * (i // 30) + i % 30 * j for j in range(1, 6)] for i in range(60)]
    (out / "parts.fvecs").write_bytes(b"".join(struct.pack("<i5f", 5, *row) for row in rows))
    (out / "texts.txt").write_text(
        "".join(f"Satz {i} <i>von</i> ß{' und weiter' * 12}\n" for i in range(60))
    )
    return out


def path_of_command(folder, start, end):
    words = [
        "path",
        "--graph",
        "g.knear",
        "--base",
        "base-idx3-ubyte",
        "--from",
        start,
        "--to",
        end,
    ]
    done = subprocess.run(
        [program, *map(str, words), "--json"], cwd=folder, check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout)["path"]


def graph_of_command(folder, graph="g.knear"):
    """The ids of every row's neighbours [rows x k]."""
    words = ["convert", graph, "ids.npy"]
    subprocess.run([program, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return np.load(folder / "ids.npy")


def gap_of_command(folder):
    words = ["graph", *PARTS, "--out", "parts.knear"]
    subprocess.run([program, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    words = ["path", "--graph", "parts.knear", *PARTS[:2], "--from", "0", "--to", "59", "--json"]
    done = subprocess.run([program, *words], cwd=folder, check=True, stdout=subprocess.PIPE)
    (gap,) = json.loads(done.stdout)["gaps"]
    return gap


PICTURES = [
    "--base",
    "base-idx3-ubyte",
    "--labels",
    "labels-idx1-ubyte",
    "--names",
    "left,middle,right",
]
PARTS = ["--base", "parts.fvecs", "-k", "4"]


class Address:
    """A page of these words, served or written."""

    def __init__(self, folder, kind, words):
        self.process = None
        if kind == "html":
            subprocess.run(
                [program, "explore", *words, "--html", "page.html"],
                cwd=folder,
                check=True,
                stdout=subprocess.DEVNULL,
            )
            self.url = (folder / "page.html").as_uri()
            return
        self.process = subprocess.Popen(
            [program, "explore", *words, "--port", "0"],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url = self.process.stdout.readline().split()[0]

    def end(self):
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            self.process.communicate(timeout=60)


class Browser:
    def __init__(self, width):
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        self.width = width

    def open(self, url):
        self.url = url
        self.driver.get(url)
        self.wait(lambda: self.run("return document.documentElement.dataset.ready"), "it starts")

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition, what):
        for _ in range(600):
            if condition():
                return
            time.sleep(0.05)
        raise AssertionError(f"{what}: not within 30 s; the page says {self.text('problem')!r}")

    def text(self, element):
        return self.run("return document.getElementById(arguments[0]).textContent", element)

    def ids(self, element):
        tiles = "return [...document.querySelectorAll(`#${arguments[0]} .tile`)]"
        return [int(i) for i in self.run(f"{tiles}.map((tile) => tile.dataset.id)", element)]

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def check(self):
        """No complaint, nothing asked of anybody else, nothing wider than the screen."""
        assert self.driver.get_log("browser") == []
        asked = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.append(message["params"]["request"]["url"])
        origin = self.url if self.url.startswith("file:") else self.url.split("#")[0]
        strangers = [u for u in asked if not u.startswith((origin, "data:", "blob:"))]
        assert asked and strangers == []
        assert self.run("return document.documentElement.scrollWidth") <= self.width
        # A text that does not fit its tile shows how it begins.
        assert self.run(
            """return [...document.querySelectorAll(".shown .text")].every((box) => {
                 const text = document.createRange();
                 text.selectNodeContents(box);
                 return text.getBoundingClientRect().top >= box.getBoundingClientRect().top;
               })"""
        )


@pytest.fixture(params=[360, 1280])
def browser(request):
    out = Browser(request.param)
    yield out
    out.driver.quit()


@pytest.fixture
def page(folder, browser):
    """As a file in a narrow window, and served in a wide one."""
    kind = "html" if browser.width == 360 else "served"
    address = Address(folder, kind, [*PICTURES, "--graph", "g.knear"])
    browser.open(address.url)
    yield browser
    address.end()


def test_the_path_is_that_of_the_command(page, folder):
    start = [
        page.run("return document.getElementById(arguments[0]).value", e) for e in ("from", "to")
    ]
    assert page.ids("film") == path_of_command(folder, *start)
    for ends in (ENDS, (250, 31), (5, 5)):
        for name, row in zip(("from", "to"), ends, strict=True):
            box = page.find(f"#{name}")
            box.clear()
            box.send_keys(str(row))
        page.find("#ends button[type=submit]").click()
        wanted = path_of_command(folder, *ends)
        page.wait(lambda wanted=wanted: page.ids("film") == wanted, f"the path of {ends}")
    paint = page.run("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    print(f"first paint after {paint} ms")
    page.check()


def test_keys_walk_along_the_path(page):
    path = page.ids("film")
    page.press("/")
    assert page.run("return document.activeElement.id") == "query"
    page.press("123", Keys.ENTER)
    page.wait(lambda: page.text("item-title") == "Item 123", "the item that was asked for")
    page.run("document.querySelector('#film .tile').focus()")
    for wanted in path[1:4]:
        page.press(Keys.ARROW_RIGHT)
        page.wait(
            lambda wanted=wanted: page.text("item-title") == f"Item {wanted}", f"item {wanted}"
        )
        assert int(page.run("return document.activeElement.dataset.id")) == wanted
    page.press(Keys.HOME)
    page.wait(lambda: page.text("item-title") == f"Item {path[0]}", "the beginning")
    page.run("document.getElementById('dots').focus()")
    page.press("+", Keys.ARROW_LEFT, Keys.ARROW_UP, "-", "0", Keys.ENTER)
    # Every control is reached by Tab.
    page.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    reached = set()
    for _ in range(90):
        page.press(Keys.TAB)
        reached.add(
            page.run("return document.activeElement.id || document.activeElement.className")
        )
    for name in (
        "query",
        "from",
        "swap",
        "to",
        "dots",
        "zoom-in",
        "walk-from",
        "file",
        "pasted",
        "search",
        "tile",
    ):
        assert any(name in each for each in reached), name
    page.check()


def test_a_picture_that_is_dropped_finds_itself(page, folder):
    page.find("#file").send_keys(str(folder / "item17.png"))
    page.wait(lambda: page.ids("answers"), "answers")
    assert page.ids("answers")[0] == 17
    assert page.text("answers").startswith("left0")  # at no distance
    # Dropped anywhere, as a mouse does.
    page.run(
        """
        const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([bytes], 'numbers.json', {type: 'application/json'}));
        document.getElementById('answers').replaceChildren();
        document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true}));
        """,
        base64.b64encode(json.dumps(list(pictures()[250])).encode()).decode(),
    )
    page.wait(lambda: page.ids("answers"), "answers")
    assert page.ids("answers")[0] == 250
    for words, said in (
        ("1, 2, 3", "3 numbers, but the base has 48 columns"),
        ("1, x", "'x' is no number"),
        ("[1,", "no JSON"),
        (" ".join(map(str, pictures()[99])), ""),
    ):
        box = page.find("#pasted")
        box.clear()
        box.send_keys(words)
        page.find("#search").click()
        page.wait(lambda said=said: said in page.text("search-said"), said)
    page.wait(lambda: page.ids("answers")[:1] == [99], "the row that was pasted")
    # The page says that a file is not a picture.
    (folder / "none.png").write_bytes(b"words")
    page.find("#file").send_keys(str(folder / "none.png"))
    wrong = "return document.getElementById('search-said').classList.contains('wrong')"
    page.wait(lambda: page.run(wrong), "that it is no picture")
    assert page.ids("answers") == []
    page.check()


def test_neighbours_hubs_and_buttons_are_those_of_the_graph(page, folder):
    ids = graph_of_command(folder)
    box = page.find("#query")
    box.send_keys("77", Keys.ENTER)
    page.wait(lambda: page.text("item-title") == "Item 77", "the item that was asked for")
    page.wait(lambda: page.ids("near") == ids[77].tolist(), "its neighbours")
    in_degrees = np.bincount(ids.ravel(), minlength=ROWS)
    hubs = page.ids("hubs")
    assert hubs and in_degrees[hubs].tolist() == np.sort(in_degrees)[::-1][: len(hubs)].tolist()
    assert f"of {in_degrees[hubs[0]]}" in page.text("hubs")

    def ends():
        return [int(page.run("return document.getElementById(arguments[0]).value", e))
                for e in ("from", "to")]  # fmt: skip

    def path_is(*wanted):
        page.wait(
            lambda: ends() == list(wanted) and page.ids("film") == path_of_command(folder, *wanted),
            f"the path of {wanted}",
        )

    start, end = ends()
    page.find("#swap").click()
    path_is(end, start)
    page.find("#walk-from").click()
    path_is(77, start)
    page.find("#swap").click()
    path_is(start, 77)
    box = page.find("#query")
    box.clear()
    box.send_keys("301", Keys.ENTER)
    page.wait(lambda: page.text("item-title") == "Item 301", "another item")
    page.find("#walk-to").click()
    path_is(start, 301)
    # A neighbour that is clicked is the next item.
    page.find("#near .tile").click()
    page.wait(lambda: page.text("item-title") == f"Item {ids[301][0]}", "its nearest neighbour")
    page.check()


def test_the_map_is_drawn_and_keys_move_it(page):
    page.wait(lambda: page.run("return document.getElementById('layout').hidden"), "the map")
    picture = """
      const dots = document.getElementById('dots'), copy = document.createElement('canvas');
      copy.width = dots.width, copy.height = dots.height;
      const drawing = copy.getContext('2d', { willReadFrequently: true });
      drawing.drawImage(dots, 0, 0);
      const pixels = new Uint32Array(
        drawing.getImageData(0, 0, copy.width, copy.height).data.buffer);
      let sum = 0;
      for (const pixel of pixels) sum = (sum * 31 + pixel) % 4294967291;
      return [new Set(pixels).size, sum];
    """
    colours, whole = page.run(picture)
    assert colours > 3, "dots of three classes on a ground"
    page.run("document.getElementById('dots').focus()")
    seen = {whole}
    for key in ("+", Keys.ARROW_LEFT, Keys.ARROW_UP, "-"):
        page.press(key)
        page.wait(lambda: page.run(picture)[1] not in seen, f"another map after {key!r}")
        seen.add(page.run(picture)[1])
    page.check()


@pytest.mark.parametrize("kind", ["served", "html"])
def test_files_of_pictures(browser, folder, kind):
    """Rows without a shape, each with a picture of its own."""
    (folder / "files").mkdir(exist_ok=True)
    for i in range(40):
        (folder / "files" / f"{i:03}.png").write_bytes(grey_png(pictures()[10 * i]))
    rows = [[float(i), i % 7.0] for i in range(40)]
    (folder / "rows.fvecs").write_bytes(b"".join(struct.pack("<i2f", 2, *row) for row in rows))
    words = ["--base", "rows.fvecs", "-k", "4", "--images", "files", "--from", "0", "--to", "39"]
    address = Address(folder, kind, words)
    try:
        browser.open(address.url)
        browser.wait(lambda: len(browser.ids("film")) > 1, "a path")
        sizes = """
          return [...document.querySelectorAll('#film .tile img')].map(
            (picture) => picture.complete ? [picture.naturalWidth, picture.naturalHeight] : [0, 0]);
        """
        browser.wait(
            lambda: browser.run(sizes) == [[WIDTH, HEIGHT]] * len(browser.ids("film")),
            "a picture of every step",
        )
        browser.check()
    finally:
        address.end()


@pytest.mark.parametrize("metric", ["ip", "cosine"])
def test_paths_of_other_metrics_in_one_file(browser, folder, metric):
    graph = f"{metric}.knear"
    words = ["graph", "--base", "base-idx3-ubyte", "-k", "6", "--metric", metric, "--out", graph]
    subprocess.run([program, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(
        [program, "path", "--graph", graph, "--base", "base-idx3-ubyte", "--from", "3", "--to",
         "390", "--json"],
        cwd=folder, stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    wanted = json.loads(done.stdout)["path"] if done.stdout else []
    words = [*PICTURES, "--graph", graph, "--from", "3", "--to", "390"]
    address = Address(folder, "html", words)
    try:
        browser.open(address.url)
        if wanted:
            browser.wait(lambda: browser.ids("film") == wanted, "the path of the command")
        else:
            assert "different components" in browser.text("path-said")
        browser.check()
    finally:
        address.end()


def test_what_is_not_there_is_said(page):
    box = page.find("#from")
    box.clear()
    box.send_keys("400")
    page.find("#ends button[type=submit]").click()
    page.wait(
        lambda: "'from' is row 400, but the base has 400 rows" in page.text("problem"), "the error"
    )
    page.check()


@pytest.mark.parametrize("kind", ["served", "html"])
@pytest.mark.parametrize("labels", [[], ["--labels", "texts.txt"]])
def test_parts_and_texts(browser, folder, kind, labels):
    address = Address(folder, kind, [*PARTS, *labels, "--from", "0", "--to", "59"])
    try:
        browser.open(address.url)
        assert "different components" in browser.text("path-said")
        browser.wait(lambda: browser.ids("film"), "the ends of the gap")
        wanted = gap_of_command(folder)
        assert browser.ids("film") == [wanted["from"], wanted["to"]]
        rows = f"between the rows {wanted['from']} and {wanted['to']}."
        assert browser.text("path-said").endswith(rows), browser.text("path-said")
        assert f"The gap to bridge is {wanted['distance']:,.0f}" in browser.text("path-said")
        assert browser.ids("parts") == [0, 30]
        if labels:
            assert "Satz 0 <i>von</i> ß" in browser.text("card")
            box = browser.find("#query")
            box.send_keys("satz 5", Keys.ENTER)
            browser.wait(lambda: len(browser.ids("found")) == 11, "5 and 50 to 59")
        browser.wait(
            lambda: browser.run("return document.getElementById('layout').hidden"), "the map"
        )
        browser.check()
    finally:
        address.end()


def test_long_paths_are_exact_beyond_what_a_double_counts(browser, folder):
    address = Address(folder, "html", PARTS)
    browser.open(address.url)
    # A ring of 20,000 rows: half way round, both ways are equally long in steps of one, and more
    # than 2^53 units; the one by the smaller id is taken, unless the other is one unit shorter.
    script = """
      const n = 20000, ids = new Int32Array(2 * n), distances = new Float32Array(2 * n).fill(1);
      for (let i = 0; i < n; ++i) { ids[2 * i] = (i + 1) % n; ids[2 * i + 1] = (i + n - 1) % n; }
      for (const at of arguments[0]) distances[at] = 1 - 2 ** -24;
      const {path} = new PathGraph(ids, distances, n, 2, 'l2').path(0, n / 2);
      return [path.length, path[1]];
    """
    try:
        assert browser.run(script, []) == [10001, 1]
        assert browser.run(script, [2 * 15000]) == [
            10001,
            19999,
        ]  # a step of the second half is shorter
    finally:
        address.end()
