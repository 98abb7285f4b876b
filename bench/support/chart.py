"""Queries per second at recall, as an SVG: text alone, no library, for light and dark pages.

    chart.draw([result, ...], "the machine, the date")    # results of bench/peers

A panel for each result. Up: queries per second, by decades. To the right: recall, each step one
digit nearer to 1; systems that are exact stand in a column of their own behind it.
"""

import math
from html import escape

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
}
WIDTH, HEIGHT = 430, 300  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 62, 10, 46, 42
EXACT = 134  # width of the column of exact systems
DIGITS = 4  # the axis of recall ends where 1 - recall is 10^-DIGITS


def draw(results: list[dict], machine: str) -> str:
    width, height = WIDTH * len(results), HEIGHT + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12" fill="{TEXT}">',
        "<title>Queries per second at recall</title>",
    ]
    for place, result in enumerate(results):
        parts.append(f'<g transform="translate({place * WIDTH} 0)">')
        parts += _panel(result)
        parts.append("</g>")
    parts.append(f'<text x="{LEFT}" y="{height - 8}" font-size="10">{escape(machine)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def family(key: str) -> str:
    return key.split("-")[0]


def _panel(result: dict) -> list[str]:
    systems = {key: s for key, s in result["systems"].items() if family(key) in COLOURS}
    exact = {key: s for key, s in systems.items() if "recall_queries" not in s}
    graph = sorted(
        (s for s in systems.values() if "recall_queries" in s), key=lambda s: s["recall"]
    )
    rates = [s["queries_per_second"] for s in systems.values()]
    low, high = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)))
    high = max(high, low + 1)
    digits = [-math.log10(max(1 - s["recall"], 10**-DIGITS)) for s in graph]
    least = math.floor(min([1, *digits]))
    x_end, y_end = WIDTH - RIGHT - EXACT, HEIGHT - BOTTOM

    def x_of(nines: float) -> float:
        return round(LEFT + (nines - least) / (DIGITS - least) * (x_end - LEFT), 1)

    def y_of(rate: float) -> float:
        return round(y_end - (math.log10(rate) - low) / (high - low) * (y_end - TOP), 1)

    name = TITLES.get(result["set"], result["set"])
    out = [
        f'<text x="{LEFT}" y="16" font-weight="bold">{escape(name)}: {result["rows"]:,} x '
        f"{result['dim']}, {result['k']} nearest</text>",
        f'<text x="{LEFT}" y="34" font-size="11">queries per second</text>',
    ]
    for decade in range(low, high + 1):
        y = y_of(10**decade)
        out.append(_line(LEFT, y, WIDTH - RIGHT, y, TEXT, 'stroke-opacity="0.35"'))
        out.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{10**decade:,}</text>')
    for nines in range(least, DIGITS + 1):
        x = x_of(nines)
        out.append(_line(x, y_end, x, y_end + 5, TEXT))
        label = f"{1 - 10.0**-nines:.{max(nines, 1)}f}" if nines else "0"
        out.append(f'<text x="{x}" y="{y_end + 18}" text-anchor="middle">{label}</text>')
    middle, exact_x = (LEFT + x_end) / 2, x_end + 52
    out.append(f'<text x="{middle}" y="{y_end + 34}" text-anchor="middle">recall</text>')
    out.append(f'<text x="{exact_x}" y="{y_end + 18}" text-anchor="middle">exact</text>')

    colour = COLOURS["hnswlib"]
    points = [(x_of(n), y_of(s["queries_per_second"])) for n, s in zip(digits, graph, strict=True)]
    if points:
        path = " ".join(f"{x},{y}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = points[0]
        out.append(_label(x, y - 10, colour, "hnswlib"))
    for (x, y), system in zip(points, graph, strict=True):
        out.append(_dot(x, y, colour))
        ef = escape(system["name"].split(", ")[-1])
        out.append(f'<text x="{x - 5}" y="{y + 14}" font-size="10" text-anchor="end">{ef}</text>')
    label_y = -math.inf
    for key, system in sorted(exact.items(), key=lambda item: -item[1]["queries_per_second"]):
        colour, y = COLOURS[family(key)], y_of(system["queries_per_second"])
        label_y = max(y + 4, label_y + 14)  # not one upon another
        if key == "knear":  # to be compared with every point of the curve
            out.append(_line(LEFT, y, exact_x, y, colour, 'stroke-dasharray="5 4"'))
        out.append(_dot(exact_x, y, colour))
        label = {"knear": "knear", "faiss": "faiss-cpu", "panorama": "Panorama"}[key]
        out.append(_label(exact_x + 9, label_y, colour, label))
    return out


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" {more}/>'


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>'


def _label(x: float, y: float, colour: str, text: str) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" font-weight="bold">{text}</text>'
