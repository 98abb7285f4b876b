"""The chart stands where its figures are, and can be read on light and dark pages."""

import json
import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from test_bench import BENCH, run

sys.path.insert(0, str(BENCH))
from support import chart

SVG = "{http://www.w3.org/2000/svg}"


def results() -> list[dict]:
    def entry(name, rate, recall=None):
        graph = {} if recall is None else {"recall_queries": 100}
        return {"name": name, "queries_per_second": rate, "recall": recall or 1.0, **graph}

    systems = {
        "knear": entry("knear index", 60_000),
        "faiss": entry("faiss-cpu", 2_000),
        "panorama": entry("faiss-cpu Panorama, 32 levels", 2_050),
        "hnswlib-80": entry("hnswlib, ef 80", 9_000, 0.999),
        "hnswlib-10": entry("hnswlib, ef 10", 30_000, 0.9),
        "hnswlib-999": entry("hnswlib, ef 999", 1_000, 1.0),
    }
    first = {"set": "fashion-mnist", "rows": 60_000, "dim": 784, "k": 10, "threads": 2}
    return [{**first, "systems": systems}, {**first, "set": "<&>", "systems": systems}]


def test_points_stand_where_their_figures_are():
    root = ElementTree.fromstring(chart.draw(results(), "A & B"))
    panels = root.findall(f"{SVG}g")
    assert len(panels) == 2
    dots = {}
    for dot in panels[0].iter(f"{SVG}circle"):
        x, y = (float(dot.get(axis)) for axis in ("cx", "cy"))
        dots.setdefault(dot.get("fill"), []).append((x, y))
    graph, (ours,) = dots[chart.COLOURS["hnswlib"]], dots[chart.COLOURS["knear"]]
    (flat,) = dots[chart.COLOURS["faiss"]]
    ticks = {}  # of both axes, by their labels
    for text in panels[0].iter(f"{SVG}text"):
        ticks[text.text] = float(text.get("x")), float(text.get("y")) - 4
    for (x, y), recall, rate in zip(
        graph, ("0.9", "0.999", "0.9999"), (3e4, 9e3, 1e3), strict=True
    ):
        assert x == pytest.approx(ticks[recall][0], abs=0.2)
        low, high = ticks["1,000"][1], ticks["100,000"][1]
        decades = {1e3: 0, 9e3: 0.9542, 3e4: 1.4771}[rate]
        assert y == pytest.approx(low + decades / 2 * (high - low), abs=0.2)
    assert ours[1] < graph[0][1] < graph[1][1] < flat[1]
    assert ours[0] == flat[0] == ticks["exact"][0] > graph[2][0]
    assert abs(ticks["Panorama"][1] - ticks["faiss-cpu"][1]) >= 13  # though their rates are near


def legible(colour: str) -> bool:
    """At least 4 to 1 on a white page and on a dark one."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    pairs = [sorted((luminance(colour), luminance(page))) for page in ("#ffffff", "#0d1117")]
    return all((light + 0.05) / (dark + 0.05) >= 4 for dark, light in pairs)


def test_colours_are_legible_on_both_pages():
    text = chart.draw(results(), "")
    used = set(re.findall(r"#[0-9a-f]{6}", text))
    assert used == {*chart.COLOURS.values(), chart.TEXT}
    assert all(legible(colour) for colour in used)
    assert not legible("#ffff00")


def test_several_curves_are_named_below():
    curves = [
        chart.Curve(
            "a & b", "#d1501f", [chart.Point(0.99, 500, "x<1"), chart.Point(0.5, 900, "y")]
        ),
        chart.Curve("c", "#757575", [chart.Point(1.0, 0.5, "z")], "7 4"),
    ]
    panel = chart.Panel("<title>", curves, [chart.Exact("e", "#757575", 20)])
    text = chart.draw_panels([panel, panel._replace(curves=[], title="t")], "machine")
    root = ElementTree.fromstring(text)
    first, second = root.findall(f"{SVG}g")
    lines = first.findall(f"{SVG}polyline")
    assert [line.get("stroke-dasharray") for line in lines] == [None, "7 4"]
    xs = [float(pair.split(",")[0]) for pair in lines[0].get("points").split()]
    assert xs == sorted(xs)
    below = {t.text: float(t.get("y")) for t in first.iter(f"{SVG}text")}
    height = float(root.get("height"))
    assert chart.HEIGHT <= below["a & b"] < below["c"] < height - 20
    shown = [t.text for t in first.iter(f"{SVG}title")]
    assert shown == ["y", "x<1", "z"]  # where a mouse rests
    assert {"0.1", "1", "1,000", "<title>"} <= set(below)
    assert not second.findall(f"{SVG}polyline")


def test_the_command_draws_what_was_measured(tmp_path):
    figures, out = tmp_path / "figures.json", tmp_path / "out.svg"
    machine = {"processor": "P", "commit": "c", "date": "2026-01-02T03:04"}
    figures.write_text(json.dumps({"machine": machine, "results": results()}))
    done = run("chart", "--from", str(figures), "--out", str(out), cache=tmp_path)
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size < 8000
    assert "P, 2 threads, commit c, 2026-01-02: bench/chart" in out.read_text()
