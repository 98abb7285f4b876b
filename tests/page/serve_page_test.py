"""The page of `knear serve` in headless Chromium: figures, a query, the token.

    KNEAR_PROGRAM=build/release/bin/knear python -m pytest tests/page

As page_test.py: without Chromium and Selenium (scripts/setup --page) it is skipped.
"""

import os
import pathlib
import shutil
import struct
import subprocess
import sys
import time

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="no Selenium (scripts/setup --page)")
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "bench" / "support"))
import running_server

program = pathlib.Path(os.environ.get("KNEAR_PROGRAM", root / "build/release/bin/knear")).resolve()
chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not chromium or not driver or not program.exists(),
    reason="no chromium, chromedriver or program (scripts/setup --page, KNEAR_PROGRAM)",
)

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    rows = [[float(i + j) for j in range(4)] for i in range(50)]
    (folder / "b.fvecs").write_bytes(b"".join(struct.pack("<i4f", 4, *row) for row in rows))
    (folder / "token").write_text(TOKEN)
    words = [program, "build", "--base", "b.fvecs", "--index", "Flat", "--out", "base.knear"]
    subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "base.knear"


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1000,1200"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    out = webdriver.Chrome(options=options, service=Service(driver))
    yield out
    out.quit()


def until(what):
    """Waits until it is true, and returns that."""
    for _ in range(300):
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError("it did not happen within half a minute")


def serve(*words):
    try:
        return running_server.Server(program, *words)
    except RuntimeError as error:
        if "KNEAR_SERVE is off" in str(error):
            pytest.skip("this build serves no indexes")
        raise


def test_a_query_and_the_figures(browser, index):
    with serve("--index", index, "--read-only") as server:
        browser.get(f"http://127.0.0.1:{server.port}/")
        until(lambda: "base (no changes)" in browser.find_element(By.ID, "indexes").text)
        browser.find_element(By.ID, "vector").send_keys("7, 8\n9 10")
        browser.find_element(By.CSS_SELECTOR, "#try button").click()
        found = until(lambda: browser.find_elements(By.CSS_SELECTOR, "#found tr"))
        assert len(found) == 10
        assert [each.text for each in found[0].find_elements(By.TAG_NAME, "td")] == ["1", "7", "0"]
        assert "proven to be exact" in browser.find_element(By.ID, "took").text
        until(lambda: "exact" in browser.find_element(By.ID, "plan").text)
        until(lambda: browser.find_element(By.ID, "rate").text != "–")
        browser.find_element(By.ID, "random").click()
        assert len(browser.find_element(By.ID, "vector").get_attribute("value").split()) == 4
        browser.find_element(By.ID, "vector").send_keys(" 1")
        browser.find_element(By.CSS_SELECTOR, "#try button").click()
        until(lambda: "more than 4 numbers" in browser.find_element(By.ID, "took").text)
    said = [each["message"] for each in browser.get_log("browser")]
    assert [each for each in said if "400 (Bad Request)" not in each] == [], "of the policy, say"


def test_lists_are_searched_for_a_recall_that_nobody_named(browser, index):
    words = [program, "build", "--base", "b.fvecs", "--index", "IVF4,Flat", "--out", "lists.knear"]
    subprocess.run(words, cwd=index.parent, check=True, stdout=subprocess.DEVNULL)
    with serve("--index", index.parent / "lists.knear", "--read-only") as server:
        browser.get(f"http://127.0.0.1:{server.port}/")
        recall = browser.find_element(By.ID, "recall")
        until(lambda: recall.get_attribute("placeholder") == "0.95")
        browser.find_element(By.ID, "vector").send_keys("7, 8, 9, 10")
        browser.find_element(By.CSS_SELECTOR, "#try button").click()
        assert until(lambda: browser.find_elements(By.CSS_SELECTOR, "#found tr"))


def test_the_token(browser, index):
    words = ("--index", index, "--read-only", "--token-file", index.parent / "token")
    with serve(*words) as server:
        browser.get(f"http://127.0.0.1:{server.port}/")
        until(lambda: browser.find_element(By.ID, "token-part").is_displayed())
        assert "token" in browser.find_element(By.ID, "problem").text
        browser.find_element(By.ID, "token").send_keys(TOKEN)
        browser.find_element(By.CSS_SELECTOR, "#token-form button").click()
        until(lambda: "base" in browser.find_element(By.ID, "indexes").text)
        until(lambda: not browser.find_element(By.ID, "problem").is_displayed())
