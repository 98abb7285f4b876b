"""How long a smoothest path takes, in Python and over the page of `knear explore`."""

import argparse
import http.client
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import knear


def summary(seconds: list[float]) -> dict[str, float]:
    middle, most, longest = 1000 * np.quantile(seconds, [0.5, 0.9, 1])
    return {"median": middle, "of 90 %": most, "longest": longest}


def timed(pairs: np.ndarray, ask: Callable[[int, int], object]) -> dict[str, float]:
    """Milliseconds of a call for each pair, after one that makes what all need."""
    ask(*map(int, pairs[0]))
    seconds = []
    for start, end in pairs:
        begin = time.perf_counter()
        ask(int(start), int(end))
        seconds.append(time.perf_counter() - begin)
    return summary(seconds)


def over_the_page(program: Path, base: Path, graph: Path, pairs: np.ndarray) -> dict:
    """Of requests to a server on this machine, once its map is drawn."""
    words = [program, "explore", "--base", base, "--graph", graph, "--port", "0", "--epochs", "1"]
    begin = time.perf_counter()
    server = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, text=True)
    try:
        port = int(re.match(r"http://127\.0\.0\.1:(\d+)/", server.stdout.readline())[1])
        up = time.perf_counter() - begin

        def ask(address: str) -> dict:
            link = http.client.HTTPConnection("127.0.0.1", port)
            link.request("GET", address)
            answer = json.loads(link.getresponse().read())
            link.close()
            return answer

        while ask("/api/progress")["progress"] < 1:
            time.sleep(0.1)
        out = timed(pairs, lambda start, end: ask(f"/api/path?from={start}&to={end}"))
        return {"first page after": up, **out}
    finally:
        server.terminate()
        server.wait()


def measure(name: str, x: np.ndarray, options: argparse.Namespace) -> dict:
    """Random pairs of rows of one graph; prints a line for each way to ask."""
    recall = options.recall or 1.0
    pairs = np.random.default_rng(1).integers(len(x), size=(options.paths, 2))
    out: dict = {"set": name, "rows": len(x)}
    with tempfile.TemporaryDirectory() as folder:
        base, file = Path(folder, "base.npy"), Path(folder, "graph.knear")
        np.save(base, x)
        graph = knear.build_graph(x, options.k, file, recall=recall, threads=options.threads)
        begin = time.perf_counter()
        finder = knear.PathFinder(graph, threads=options.threads)
        made = time.perf_counter() - begin
        lengths = [len(finder.path(int(a), int(b))[0]) for a, b in pairs]
        print(
            f"{name}: {len(x):,} x {x.shape[1]}, k = {options.k}, recall {recall}: "
            f"{finder.components} components, paths of {np.median(lengths):.0f} rows; "
            f"PathFinder takes {made:.1f} s"
        )
        out["finder"] = made
        out["path()"] = timed(pairs, finder.path)
        if Path(options.program).exists():
            out["page"] = over_the_page(Path(options.program), base, file, pairs)
        for way in ("path()", "page"):
            if way in out:
                figures = ", ".join(f"{key} {out[way][key]:.1f}" for key in summary([0.0]))
                print(f"  {way:7} milliseconds: {figures}")
    return out
