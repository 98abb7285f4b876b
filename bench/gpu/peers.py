"""Times torch, CuPy, JAX or cuVS at what bench/gpu measures, on the same GPU: one line each.

    python3 bench/gpu/peers.py torch|cupy|jax|cuvs [--json FILE] [--anywhere]

Exact search is a product of matrices in fp32 (no tf32) and a selection, some queries at a time so
that their distances fit; squared distances are without |q|^2, which does not change the order.
Selection is that of the rows of a matrix. The data are random: neither time depends much on them.

    torch   addmm and topk
    cupy    matmul and partition, then the places of the values up to the k-th (of rows with
            ties by argpartition); argpartition alone, which sorts whole rows there, for a tenth of
            the queries
    jax     top_k, and approx_max_k with a recall target of 0.95, each compiled with the product
    cuvs    ivf_flat and ivf_pq alone, of as many lists, probes and bytes a code as ours, with its
            own defaults for all else; rows and queries around 1,000 centres, in arrays of CuPy

Times are medians of five runs after two, or of fewer where those take long; by events of the
device, for jax and cuvs by the processor's clock. --anywhere runs small shapes once, without a GPU
too, to see that it works. Exit status 1, with one line on standard error, where there is no such
module or no GPU for it.
"""

import argparse
import json
import os
import statistics
import sys
import time

SYSTEMS = ("torch", "cupy", "jax", "cuvs")


class Torch:
    most_values = 2**30  # distances at a time

    def __init__(self, anywhere=False):
        import torch

        self.torch, self.version = torch, torch.__version__
        self.on_gpu = torch.cuda.is_available()
        if not self.on_gpu and not anywhere:
            sys.exit("torch sees no GPU")
        self.device = "cuda" if self.on_gpu else "cpu"
        self.out_of_memory = torch.cuda.OutOfMemoryError
        torch.backends.cuda.matmul.allow_tf32 = False

    def uniform(self, rows, cols):
        return self.torch.rand(rows, cols, device=self.device)

    def normal(self, rows, cols):
        return self.torch.randn(rows, cols, device=self.device)

    def seconds_of(self, work):
        if not self.on_gpu:
            return processor_seconds(work)
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3

    def give_back(self):
        self.torch.cuda.empty_cache()

    def product(self, base):
        return "torch mm alone", lambda asked: self.torch.mm(asked, base.T)

    # (name, share of the queries, asked -> places of the k nearest)
    def searches(self, base, k):
        squares = (base * base).sum(1)

        def search(asked):
            distances = self.torch.addmm(squares, asked, base.T, alpha=-2)
            return self.torch.topk(distances, k, largest=False).indices

        yield f"torch mm + topk k={k}", 1, search

    def selections(self, k):
        yield f"torch topk k={k}", lambda rows: self.torch.topk(rows, k, largest=False).indices


class Cupy:
    most_values = 2**28  # partition works on a copy, argpartition on places of eight bytes

    def __init__(self, anywhere=False, module=None):
        """module: stands in for CuPy; numpy in the tests."""
        if module is None:
            import cupy as module
        self.cupy, self.version = module, module.__version__
        self.generator = None
        self.on_gpu = hasattr(module, "cuda")
        if not self.on_gpu:
            self.out_of_memory = MemoryError
            return
        self.out_of_memory = module.cuda.memory.OutOfMemoryError
        try:
            devices = module.cuda.runtime.getDeviceCount()
        except module.cuda.runtime.CUDARuntimeError:
            devices = 0
        if devices == 0:
            sys.exit("cupy sees no GPU")

    @property
    def random(self):
        self.generator = self.generator or self.cupy.random.default_rng(1)
        return self.generator

    def uniform(self, rows, cols):
        return self.random.random((rows, cols), dtype="float32")

    def normal(self, rows, cols):
        return self.random.standard_normal((rows, cols), dtype="float32")

    def seconds_of(self, work):
        if not self.on_gpu:
            return processor_seconds(work)
        begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return self.cupy.cuda.get_elapsed_time(begin, end) * 1e-3

    def give_back(self):
        if self.on_gpu:
            self.cupy.get_default_memory_pool().free_all_blocks()

    def product(self, base):
        return "cupy matmul alone", lambda asked: asked @ base.T

    def distances(self, asked, base, squares):
        out = (-2 * asked) @ base.T  # the factor on the small side
        out += squares
        return out

    def places(self, values, k):
        """The places of the k smallest of each row, in any order."""
        kth = self.cupy.partition(values, k - 1, axis=1)[:, k - 1 : k]
        rows, places = self.cupy.nonzero(values <= kth)
        if len(places) == len(values) * k:
            return places.reshape(-1, k)
        clear = self.cupy.bincount(rows, minlength=len(values)) == k
        out = self.cupy.empty((len(values), k), places.dtype)
        out[clear] = places[clear[rows]].reshape(-1, k)
        out[~clear] = self.cupy.argpartition(values[~clear], k - 1, axis=1)[:, :k]
        return out

    def searches(self, base, k):
        squares = (base * base).sum(1)
        yield (
            f"cupy matmul + partition k={k}",
            1,
            lambda asked: self.places(self.distances(asked, base, squares), k),
        )
        yield (
            f"cupy matmul + argpartition k={k}",
            0.1,
            lambda asked: self.cupy.argpartition(
                self.distances(asked, base, squares), k - 1, axis=1
            )[:, :k],
        )

    def selections(self, k):
        yield f"cupy partition k={k}", lambda rows: self.places(rows, k)


class Jax:
    most_values = 2**29

    def __init__(self, anywhere=False):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax

        self.jax, self.version = jax, jax.__version__
        self.on_gpu = jax.devices()[0].platform == "gpu"
        if not self.on_gpu and not anywhere:
            sys.exit("jax sees no GPU")
        self.out_of_memory = jax.errors.JaxRuntimeError
        jax.config.update("jax_default_matmul_precision", "highest")  # fp32, no tf32
        self.key = jax.random.key(1)

    def made(self, make, rows, cols):
        self.key, key = self.jax.random.split(self.key)
        return make(key, (rows, cols), "float32")

    def uniform(self, rows, cols):
        return self.made(self.jax.random.uniform, rows, cols)

    def normal(self, rows, cols):
        return self.made(self.jax.random.normal, rows, cols)

    def seconds_of(self, work):
        return processor_seconds(work)

    def give_back(self):
        self.jax.clear_caches()

    def compiled(self, function, *fixed):
        """The fixed arguments are given each time: as constants they would be copied."""
        run = self.jax.jit(function)
        return lambda asked: self.jax.block_until_ready(run(asked, *fixed))

    def product(self, base):
        return "jax product alone", self.compiled(lambda asked, base: asked @ base.T, base)

    def searches(self, base, k):
        lax = self.jax.lax
        squares = (base * base).sum(1)
        selections = {
            f"jax top_k k={k}": lambda scores: lax.top_k(scores, k),
            f"jax approx_max_k k={k}": lambda scores: lax.approx_max_k(
                scores, k, recall_target=0.95
            ),
        }
        for name, select in selections.items():
            yield (
                name,
                1,
                self.compiled(
                    lambda asked, base, squares, select=select: select(
                        2 * asked @ base.T - squares
                    )[1],
                    base,
                    squares,
                ),
            )

    def selections(self, k):
        lax = self.jax.lax
        yield f"jax top_k of rows k={k}", self.compiled(lambda rows: lax.top_k(-rows, k)[1])
        yield (
            f"jax approx_min_k of rows k={k}",
            self.compiled(lambda rows: lax.approx_min_k(rows, k, recall_target=0.95)[1]),
        )


class Cuvs(Cupy):
    """Inverted lists of rows that are arrays of CuPy."""

    def __init__(self, anywhere=False, module=None, cuvs=None):
        """module, cuvs: stand in for CuPy and cuVS."""
        if cuvs is None:
            import cuvs
            import cuvs.neighbors.ivf_flat
            import cuvs.neighbors.ivf_pq
        super().__init__(anywhere, module)
        self.neighbors, self.version = cuvs.neighbors, cuvs.__version__

    # A search returns when its answers are there.
    def seconds_of(self, work):
        return processor_seconds(work)

    def clustered(self, rows, dim, centres):
        near = self.random.integers(0, len(centres), rows)
        return centres[near] + self.normal(rows, dim) * self.cupy.float32(0.2)

    def index(self, kind, base, lists):
        if kind == "Flat":
            way = self.neighbors.ivf_flat
            return way, way.build(way.IndexParams(n_lists=lists), base)
        way = self.neighbors.ivf_pq
        codes = {"pq_dim": int(kind.removeprefix("PQ")), "pq_bits": 8}
        return way, way.build(way.IndexParams(n_lists=lists, **codes), base)

    def search(self, made, asked, k, probes):
        """The places of the k nearest that it finds."""
        way, index = made
        _, places = way.search(way.SearchParams(n_probes=probes), index, asked, k)
        return self.cupy.asarray(places)


def processor_seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def median_seconds(system, work, budget):
    """The median of five runs after two; of fewer, at least one, within `budget` seconds."""
    seconds = []
    begin = time.monotonic()
    warm_ups = 2
    while len(seconds) < 5 and (not seconds or time.monotonic() - begin < budget):
        taken = system.seconds_of(work)
        if warm_ups > 0:
            warm_ups = warm_ups - 1 if time.monotonic() - begin < budget / 3 else 0
        else:
            seconds.append(taken)
    return statistics.median(seconds)


def recall(got, wanted):
    """The share of the wanted places of each row that were got."""
    rows, k = wanted.shape
    pairs = zip(got.tolist(), wanted.tolist(), strict=True)
    return sum(len(set(g) & set(w)) for g, w in pairs) / (rows * k)


def exact(system, queries, rows, dim, ks, budget):
    base, asked = system.normal(rows, dim), system.normal(queries, dim)
    together = max(1, min(queries, system.most_values // rows))

    def entry(name, search, count):
        def all_parts():
            for begin in range(0, count, together):
                search(asked[begin : min(count, begin + together)])

        what = f"{count} x {rows} x {dim} fp32"
        return {"name": name, "what": what, "seconds": median_seconds(system, all_parts, budget)}

    yield entry(*system.product(base), queries)
    for k in ks:
        first = None  # of the system's own ways, the exact one
        for name, share, search in system.searches(base, k):
            one = entry(name, search, max(1, int(queries * share)))
            places = search(asked[: min(queries, 100)])
            first = places if first is None else first
            yield {**one, "task": "exact", "k": k, "recall": recall(places, first)}


def select(system, rows, cols, ks, budget):
    values = system.uniform(rows, cols)
    together = max(1, system.most_values // cols)
    for k in ks:
        first = None
        for name, search in system.selections(k):

            def all_parts(search=search):
                for begin in range(0, rows, together):
                    search(values[begin : begin + together])

            seconds = median_seconds(system, all_parts, budget)
            places = search(values[:100])
            first = places if first is None else first
            yield {
                "name": name,
                "what": f"{rows} x {cols} fp32",
                "seconds": seconds,
                "task": "select",
                "k": k,
                "recall": recall(places, first),
            }


def inverted_lists(system, kind, all_queries, rows, dim, lists, all_probes, k, budget):
    centres = system.normal(min(rows, 1000), dim)
    base = system.clustered(rows, dim, centres)
    made = system.index(kind, base, lists)
    squares = (base * base).sum(1)
    for queries in all_queries:
        asked = system.clustered(queries, dim, centres)
        first = asked[:100]
        nearest = system.places(system.distances(first, base, squares), k)
        for probes in all_probes:
            seconds = median_seconds(
                system,
                lambda asked=asked, probes=probes: system.search(made, asked, k, probes),
                budget,
            )
            yield {
                "name": f"cuvs lists k={k}",
                "what": f"{queries} x {rows} x {dim}, IVF{lists},{kind}, {probes} probes",
                "seconds": seconds,
                "task": "lists",
                "k": k,
                "recall": recall(system.search(made, first, k, probes), nearest),
            }


def line(one):
    """A line of knear_gpu's table: name, what, two columns for its rate, milliseconds."""
    text = f"{one['name']:<30} {one['what']:<26} {'':>19} {one['seconds'] * 1e3:>10.3f} ms"
    if one.get("recall", 1) < 1:
        text += f"  recall {one['recall']:.4f}"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--json", help="append a line for each figure to this file, too")
    parser.add_argument("--anywhere", action="store_true", help="small shapes, without a GPU too")
    arguments = parser.parse_args()
    try:
        systems = {"torch": Torch, "cupy": Cupy, "jax": Jax, "cuvs": Cuvs}
        system = systems[arguments.system](arguments.anywhere)
    except ImportError as error:
        sys.exit(f"{arguments.system} can't be imported: {error}")

    if arguments.system == "cuvs":
        sizes = ((50,), 4000, 16, 20, (2,), 10, 1) if arguments.anywhere else None
        sizes = sizes or ((10000, 1), 1000000, 128, 1024, (8, 32), 10, 5)
        work = tuple(
            lambda kind=kind: inverted_lists(system, kind, *sizes) for kind in ("Flat", "PQ32")
        )
    elif arguments.anywhere:
        work = (
            lambda: select(system, 30, 5000, (10,), 1),
            lambda: exact(system, 50, 4000, 16, (10,), 1),
        )
    else:
        work = (
            lambda: select(system, 10000, 128000, (100, 1000), 10),
            lambda: exact(system, 10000, 1000000, 128, (10, 100), 10),
            lambda: exact(system, 1, 10000000, 96, (10, 100), 5),
            lambda: exact(system, 32, 10000000, 96, (10, 100), 5),
        )
    names = {"system": arguments.system, "version": system.version}
    for steps in work:
        try:
            for one in steps():
                print(line(one), flush=True)
                # Written at once, so that what was measured is kept if time runs out.
                if arguments.json:
                    with open(arguments.json, "a") as file:
                        file.write(json.dumps({**names, **one}) + "\n")
        except system.out_of_memory as error:
            print(f"skipped {arguments.system}: {str(error).splitlines()[0]}", flush=True)
        system.give_back()


if __name__ == "__main__":
    main()
