"""What torch takes for the work that bench/gpu measures, on the same GPU: one line each.

    python3 bench/gpu/torch_peer.py [--json FILE]

Exact search is torch.addmm (fp32, no tf32) and torch.topk, some queries at a time so that their
distances take 4 GB at most; selection is torch.topk alone. Data are random: neither depends much
on them. Times are the median of five runs after two, by events of the device. Exit status 1, with
a line on standard error, where there is no torch or no GPU for it.
"""

import argparse
import json
import statistics
import sys


def median_seconds(torch, work):
    seconds = []
    for run in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if run >= 2:
            seconds.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(seconds)


def exact(torch, queries, rows, dim, ks):
    """Squared distances but for |q|^2, which does not change the order."""
    base = torch.randn(rows, dim, device="cuda")
    asked = torch.randn(queries, dim, device="cuda")
    squares = (base * base).sum(1)
    together = min(queries, 2**30 // rows)

    def search(k):
        for begin in range(0, queries, together):
            part = asked[begin : begin + together]
            if k == 0:
                torch.mm(part, base.T)
            else:
                torch.topk(torch.addmm(squares, part, base.T, alpha=-2), k, largest=False)

    for k in ks:
        yield {
            "name": "torch mm alone" if k == 0 else f"torch mm + topk k={k}",
            "what": f"{queries} x {rows} x {dim} fp32",
            "seconds": median_seconds(torch, lambda k=k: search(k)),
        }


def select(torch, rows, cols, ks):
    values = torch.rand(rows, cols, device="cuda")
    for k in ks:
        yield {
            "name": f"torch topk k={k}",
            "what": f"{rows} x {cols} fp32",
            "seconds": median_seconds(torch, lambda k=k: torch.topk(values, k, largest=False)),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the figures here, too")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"torch can't be imported: {error}")
    if not torch.cuda.is_available():
        sys.exit("torch sees no GPU")
    torch.backends.cuda.matmul.allow_tf32 = False

    work = (
        lambda: select(torch, 10000, 128000, (100, 1000)),
        lambda: exact(torch, 10000, 1000000, 128, (0, 10, 100)),
        lambda: exact(torch, 1, 10000000, 96, (10, 100)),
        lambda: exact(torch, 32, 10000000, 96, (10, 100)),
    )
    found = []
    for steps in work:
        try:
            for one in steps():
                found.append(one)
                milliseconds = one["seconds"] * 1e3
                print(
                    f"{one['name']:<22} {one['what']:<34} {'':>19} {milliseconds:>10.3f} ms",
                    flush=True,
                )
        except torch.cuda.OutOfMemoryError as error:
            print(f"skipped torch: {str(error).splitlines()[0]}", flush=True)
        torch.cuda.empty_cache()
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"torch": torch.__version__, "benches": found}, file, indent=2)


if __name__ == "__main__":
    main()
