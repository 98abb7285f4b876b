"""Queries per second at recall, as an SVG: text alone, no library, for light and dark pages.

    chart.draw([result, ...], "the machine, the date")    # results of bench/peers
    chart.draw_panels([Panel(...), ...], "the machine")   # any curves: bench/ann

Up: queries per second, by decades. To the right: recall, each step one digit nearer to 1; systems
that are exact stand in a column of their own behind it.
"""

import math
from html import escape
from typing import NamedTuple

# Each is at least 4 to 1 against white and against #0d1117, so the background can stay out.
COLOURS = {
    "knear": "#d1501f",
    "faiss": "#757575",
    "panorama": "#1f883d",
    "hnswlib": "#2f7ec2",
}
TEXT = "#757575"
TITLES = {
    "fashion-mnist": "Fashion-MNIST",
    "sift": "SIFT",
    "unit96": "made, unit norm",
    "uint8": "made, clustered",
    "text": "text",
}
WIDTH, HEIGHT = 430, 300  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 62, 10, 46, 42
EXACT = 134  # width of the column of exact systems
LEGEND = 16  # height of a line that names one of several curves
DIGITS = 4  # the axis of recall ends where 1 - recall is 10^-DIGITS


class Point(NamedTuple):
    recall: float
    rate: float  # queries per second
    name: str


class Curve(NamedTuple):
    """An approximate system; a label of its own for each point if it is the only one."""

    label: str
    colour: str
    points: list[Point]
    dashes: str = ""  # of stroke-dasharray


class Exact(NamedTuple):
    """A system that finds all; `across`: a line through the panel, to compare others with."""

    label: str
    colour: str
    rate: float
    across: bool = False


class Panel(NamedTuple):
    title: str
    curves: list[Curve]
    exact: list[Exact]


def draw(results: list[dict], machine: str) -> str:
    return draw_panels([_panel_of(result) for result in results], machine)


def draw_panels(panels: list[Panel], machine: str) -> str:
    legend = max([0, *(LEGEND * len(p.curves) for p in panels if len(p.curves) > 1)])
    width, height = WIDTH * len(panels), HEIGHT + legend + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12" fill="{TEXT}">',
        "<title>Queries per second at recall</title>",
    ]
    for place, panel in enumerate(panels):
        parts.append(f'<g transform="translate({place * WIDTH} 0)">')
        parts += _panel(panel)
        parts.append("</g>")
    left = LEFT if len(panels) > 1 else RIGHT  # one panel has little room
    parts.append(f'<text x="{left}" y="{height - 8}" font-size="10">{escape(machine)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def family(key: str) -> str:
    return key.split("-")[0]


def _panel_of(result: dict) -> Panel:
    """A result of bench/peers: the one graph, and what is exact."""
    labels = {"knear": "knear", "faiss": "faiss-cpu", "panorama": "Panorama"}
    graph, exact = [], []
    for key, system in result["systems"].items():
        rate = system["queries_per_second"]
        if family(key) not in COLOURS:
            continue
        if "recall_queries" in system:
            ef = system["name"].split(", ")[-1]
            graph.append(Point(system["recall"], rate, ef))
        else:
            exact.append(Exact(labels[key], COLOURS[family(key)], rate, key == "knear"))
    name = TITLES.get(result["set"], result["set"])
    title = f"{name}: {result['rows']:,} x {result['dim']}, {result['k']} nearest"
    curves = [Curve("hnswlib", COLOURS["hnswlib"], graph)] if graph else []
    return Panel(title, curves, exact)


def _panel(panel: Panel) -> list[str]:
    points = [point for curve in panel.curves for point in curve.points]
    rates = [point.rate for point in points] + [system.rate for system in panel.exact]
    low, high = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)))
    high = max(high, low + 1)
    least = math.floor(min([1, *(_nines(point.recall) for point in points)]))
    x_end, y_end = WIDTH - RIGHT - EXACT, HEIGHT - BOTTOM

    def x_of(nines: float) -> float:
        return round(LEFT + (nines - least) / (DIGITS - least) * (x_end - LEFT), 1)

    def y_of(rate: float) -> float:
        return round(y_end - (math.log10(rate) - low) / (high - low) * (y_end - TOP), 1)

    out = [
        f'<text x="{LEFT}" y="16" font-weight="bold">{escape(panel.title)}</text>',
        f'<text x="{LEFT}" y="34" font-size="11">queries per second</text>',
    ]
    for decade in range(low, high + 1):
        y = y_of(10**decade)
        out.append(_line(LEFT, y, WIDTH - RIGHT, y, TEXT, 'stroke-opacity="0.35"'))
        label = f"{10**decade:,}" if decade >= 0 else f"{10.0**decade:g}"
        out.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{label}</text>')
    for nines in range(least, DIGITS + 1):
        x = x_of(nines)
        out.append(_line(x, y_end, x, y_end + 5, TEXT))
        label = f"{1 - 10.0**-nines:.{max(nines, 1)}f}" if nines else "0"
        out.append(f'<text x="{x}" y="{y_end + 18}" text-anchor="middle">{label}</text>')
    middle, exact_x = (LEFT + x_end) / 2, x_end + 52
    out.append(f'<text x="{middle}" y="{y_end + 34}" text-anchor="middle">recall</text>')
    out.append(f'<text x="{exact_x}" y="{y_end + 18}" text-anchor="middle">exact</text>')

    alone = len(panel.curves) == 1
    for place, curve in enumerate(panel.curves):
        ordered = sorted(curve.points, key=lambda point: point.recall)
        placed = [(x_of(_nines(point.recall)), y_of(point.rate)) for point in ordered]
        path = " ".join(f"{x},{y}" for x, y in placed)
        dashes = f' stroke-dasharray="{curve.dashes}"' if curve.dashes else ""
        stroke = f'fill="none" stroke="{curve.colour}" stroke-width="2"{dashes}'
        out.append(f'<polyline points="{path}" {stroke}/>')
        if alone:
            x, y = placed[0]
            out.append(_label(x, y - 10, curve.colour, curve.label))
        else:
            y = HEIGHT + LEGEND * place + 4
            out.append(_line(LEFT, y, LEFT + 36, y, curve.colour, f'stroke-width="2"{dashes}'))
            out.append(_label(LEFT + 44, y + 4, curve.colour, curve.label))
        for (x, y), point in zip(placed, ordered, strict=True):
            if alone:
                out.append(_dot(x, y, curve.colour))
                name = escape(point.name)
                at = f'x="{x - 5}" y="{y + 14}"'
                out.append(f'<text {at} font-size="10" text-anchor="end">{name}</text>')
            else:
                out.append(_dot(x, y, curve.colour, point.name, 3))
    label_y = -math.inf
    for system in sorted(panel.exact, key=lambda system: -system.rate):
        y = y_of(system.rate)
        label_y = max(y + 4, label_y + 14)  # not one upon another
        if system.across:  # to be compared with every point of the curves
            out.append(_line(LEFT, y, exact_x, y, system.colour, 'stroke-dasharray="5 4"'))
        out.append(_dot(exact_x, y, system.colour))
        out.append(_label(exact_x + 9, label_y, system.colour, system.label))
    return out


def _nines(recall: float) -> float:
    return -math.log10(max(1 - recall, 10**-DIGITS))


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" {more}/>'


def _dot(x: float, y: float, colour: str, title: str = "", radius: int = 4) -> str:
    """`title` is shown where a mouse rests on it."""
    circle = f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{colour}"'
    return f"{circle}><title>{escape(title)}</title></circle>" if title else f"{circle}/>"


def _label(x: float, y: float, colour: str, text: str) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" font-weight="bold">{escape(text)}</text>'
