"""knn of torch arrays that are on a GPU, beside torch's own product and selection.

    PYTHONPATH=build/python bench/gpu/torch_arrays.py     a line for each number of columns

Needs torch, a GPU and a knear built with CUDA. The base is coded anew in each call, since an array
is not an index. Medians of 5 calls (torch: 2), milliseconds.
"""

import time

import torch

import knear

ROWS, QUERIES, K = 1_000_000, 10_000, 10


def milliseconds(call, runs):
    call()
    seconds = []
    for _ in range(runs):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[len(seconds) // 2] * 1e3


def by_torch(queries, base):
    squares = (base * base).sum(1)
    for first in range(0, len(queries), 1000):
        some = queries[first : first + 1000]
        torch.topk(torch.addmm(squares, some, base.T, alpha=-2), K, largest=False)


def main():
    torch.manual_seed(1)
    for dim in (96, 128, 256, 768):
        centres = torch.randn(1000, dim, device="cuda")
        base, queries = (
            centres[torch.randint(1000, (count,), device="cuda")]
            + 0.5 * torch.randn(count, dim, device="cuda")
            for count in (ROWS, QUERIES)
        )
        ours = milliseconds(lambda base=base, queries=queries: knear.knn(queries, base, K), 5)
        theirs = milliseconds(lambda base=base, queries=queries: by_torch(queries, base), 2)
        print(f"{dim} columns: knear {ours:.1f} ms, torch {theirs:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
