"""Compares what knear_gpu measured with torch, CuPy, JAX and cuVS of the same run.

    python3 bench/gpu/compare.py gpu_check.json [peers.jsonl]

The second file is that of bench/gpu/peers.py, which may not be there yet. Prints the targets that
name a peer, as lines of knear_gpu's table of targets, then each peer's time beside our best for the
same shape and k. Exit status 1, with one line on standard error, for a file that can't
be read.
"""

import argparse
import json
import sys
from pathlib import Path


def read(path):
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")


def read_peers(path):
    """One object for each system, with its figures, of lines that have one each."""
    peers = {}
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            one = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break  # its writer was stopped in the middle
            sys.exit(f"{path}, line {number}: {error}")
        names = {key: one.pop(key) for key in ("system", "version")}
        peers.setdefault(names["system"], {**names, "benches": []})["benches"].append(one)
    return list(peers.values())


def ours(report, task, k, shape):
    """The fastest of our own runs of this shape, or None. Shapes as peers write them."""
    shape = shape.removesuffix(" fp32")
    name, end = {
        "exact": ("exact f32", ", whole run()"),
        "select": ("select", " fp32"),
        "lists": ("lists f32", ", whole call"),
    }[task]
    found = [
        one
        for one in report.get("benches", [])
        if one["name"] == f"{name} k={k}" and one["what"].startswith(shape + end)
    ]
    return min(found, key=lambda one: one["seconds"], default=None)


def theirs(peers, system, task, k, shape):
    found = [
        one
        for peer in peers
        if peer["system"] == system
        for one in peer["benches"]
        if (one.get("task"), one.get("k"), one["what"]) == (task, k, shape)
    ]
    return min(found, key=lambda one: one["seconds"], default=None)


# Name of the target, the work, its shape, the factor, the peer and what of it.
TARGETS = (
    (
        "select_k, 10,000 x 128,000 fp32",
        *("select", (100, 1000), "10000 x 128000 fp32"),
        *(4, "torch", " topk"),
    ),
    (
        "exact, 10,000 x 1M x 128",
        *("exact", (10, 100), "10000 x 1000000 x 128 fp32"),
        *(10, "torch", " mm + topk"),
    ),
    *(
        (
            f"IVF1024,{kind}, 10,000 x 1M x 128",
            *("lists", (10,), f"10000 x 1000000 x 128, IVF1024,{kind}, 32 probes"),
            *(2, "cuvs", ""),
        )
        for kind in ("Flat", "PQ32")
    ),
)


def targets(report, peers):
    for name, task, ks, shape, factor, system, what in TARGETS:
        for k in ks:
            work = f"{name}, k = {k}"
            target = f">= {factor} times as fast as {system}{what}"
            us, them = ours(report, task, k, shape), theirs(peers, system, task, k, shape)
            if us is None:
                reason = "not measured in this run" if report.get("device") else "no GPU"
                yield work, target, "skipped", reason
            elif them is None:
                yield work, target, "skipped", f"{system} was not measured in this run"
            else:
                times = them["seconds"] / us["seconds"]
                milliseconds = f"{us['seconds'] * 1e3:.2f} ms of {them['seconds'] * 1e3:.2f} ms"
                verdict = "met" if times >= factor else "not met"
                yield work, target, verdict, f"{times:.2f} times: {milliseconds}"


def beside(report, peers):
    for peer in peers:
        for one in peer["benches"]:
            us = ours(report, one["task"], one["k"], one["what"]) if "task" in one else None
            if us is not None:
                yield one, us


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", help="what knear_gpu --json wrote")
    parser.add_argument("peers", nargs="?", type=Path, help="what peers.py --json wrote")
    arguments = parser.parse_args()
    report = read(arguments.report)
    peers = read_peers(arguments.peers) if arguments.peers else []
    for work, target, verdict, measured in targets(report, peers):
        print(f"{work:<44} {target:<40} {verdict:<10} {measured}")
    pairs = list(beside(report, peers))
    if pairs:
        heads = f"{'theirs, ms':>11} {'ours, ms':>10} {'times':>7}"
        print(f"\n{'beside others':<32} {'what':<28} {heads}")
    for one, us in pairs:
        times = one["seconds"] / us["seconds"]
        print(
            f"{one['name']:<32} {one['what']:<28} {one['seconds'] * 1e3:>11.3f} "
            f"{us['seconds'] * 1e3:>10.3f} {times:>7.2f}"
            + (f"  recall {one['recall']:.4f}" if one["recall"] < 1 else "")
        )


if __name__ == "__main__":
    main()
