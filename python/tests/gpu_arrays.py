"""Checks of arrays in the memory of a GPU, for each library that is here.

    python python/tests/gpu_arrays.py        one line per library; fails if a check does

Needs neither pytest nor the other tests: scripts/gpu_check runs it on bare machines.
test_cuda_arrays.py runs the same.
"""

import importlib
import os
import re
import sys

import numpy as np

import knear

# JAX would take most of the memory for itself, beside the other libraries here.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

LIBRARIES = ["torch", "cupy", "jax", "numba"]


class Skipped(Exception):
    """There is nothing to check with; the message says why."""


class Library:
    """Makes arrays of one library on GPU 0 from NumPy's, and NumPy's from them."""

    def __init__(self, name):
        self.name = name
        if not knear._core.has_cuda:
            raise Skipped("this knear was built without CUDA")
        try:
            self.module = importlib.import_module("numba.cuda" if name == "numba" else name)
            there = {
                "torch": lambda m: m.cuda.is_available(),
                "cupy": lambda m: m.cuda.runtime.getDeviceCount() > 0,
                "jax": lambda m: len(m.devices("gpu")) > 0,
                "numba": lambda m: m.is_available(),
            }[name](self.module)
        except Exception as error:
            why = str(error).partition("\n")[0] or repr(error)
            raise Skipped(f"{name}: {why}") from None
        if not there:
            raise Skipped(f"{name} finds no GPU")

    def on_gpu(self, x):
        if self.name == "torch":
            return self.module.from_numpy(np.ascontiguousarray(x)).cuda()
        if self.name == "cupy":
            return self.module.asarray(x)
        if self.name == "jax":
            return self.module.device_put(x, self.module.devices("gpu")[0])
        return self.module.to_device(np.ascontiguousarray(x))

    def to_numpy(self, x):
        if self.name == "torch":
            return x.cpu().numpy()
        if self.name == "cupy":
            return self.module.asnumpy(x)
        if self.name == "jax":
            return np.asarray(x)
        return self.module.as_cuda_array(x).copy_to_host()

    def owns(self, x, example):
        if self.name == "numba":
            return isinstance(x, knear.DeviceArray)
        return isinstance(x, type(example))


def refused(kind, words, call):
    """Whether call() raises `kind` with a message that has `words`, a regular expression."""
    try:
        call()
    except kind as error:
        assert re.search(words, str(error)), f"{error} does not have {words}"
        return
    raise AssertionError(f"not refused: {words}")


def same(library, got, want, what):
    distances, ids = (library.to_numpy(each) for each in got)
    np.testing.assert_array_equal(distances.view(np.uint32), want[0].view(np.uint32), err_msg=what)
    np.testing.assert_array_equal(ids, want[1], err_msg=what)  # int32 from JAX


def same_within(library, got, want, what):
    """As same(), for (begin, distances, ids) of a range search."""
    np.testing.assert_array_equal(library.to_numpy(got[0]), want[0], err_msg=what)
    same(library, got[1:], want[1:], what)


def check_answers(library):
    """The processor's bits: metrics, element types, filters, padding, no queries."""
    rng = np.random.default_rng(3)
    made = {
        np.float32: rng.standard_normal((3000, 33)).astype(np.float32),
        np.float16: rng.standard_normal((700, 16)).astype(np.float16),
        np.uint8: rng.integers(0, 256, (2000, 20)).astype(np.uint8),
        np.int8: rng.integers(-128, 128, (900, 7)).astype(np.int8),
    }
    for dtype, base in made.items():
        queries = base[::37][:20].copy()
        there = library.on_gpu(queries), library.on_gpu(base)
        for metric in ("l2", "ip", "cosine"):
            what = f"{library.name}, {np.dtype(dtype).name}, {metric}"
            want = knear.knn(queries, base, 10, metric)
            report = {}
            got = knear.knn(*there, 10, metric, report=report)
            same(library, got, want, what)
            assert library.owns(got[0], there[0]), what
            assert library.owns(got[1], there[0]), what
            assert report["device"] == "cuda:0", what
        every_third = np.arange(0, len(base), 3)
        mask = np.zeros(len(base), bool)
        mask[every_third] = True
        want = knear.knn(queries, base, 5, filter=every_third)
        for which in (every_third, mask, library.on_gpu(every_third), library.on_gpu(mask)):
            same(library, knear.knn(*there, 5, filter=which), want, "filter")
    if library.name == "torch":  # NumPy has no bfloat16
        base = library.on_gpu(made[np.float32]).bfloat16()
        rounded = library.to_numpy(base.float())
        want = knear.knn(rounded[:20], rounded, 10)
        same(library, knear.knn(base[:20], base, 10), want, "torch, bfloat16")
    base = made[np.int8]
    few = base[:3].copy()
    want = knear.knn(queries, few, 5)
    same(library, knear.knn(there[0], library.on_gpu(few), 5), want, "padding")
    assert tuple(knear.knn(library.on_gpu(queries[:0]), there[1], 4)[0].shape) == (0, 4)


def check_devices(library):
    """The values of device=, and queries and base in different memories."""
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    there = library.on_gpu(x)
    bad = knear.InvalidArgument
    for search, alike, count in (
        (knear.knn, same, 2),
        (knear.self_join, same, 1),
        (knear.range_search, same_within, 2),
    ):
        want = search(*[x] * count, 2)
        asked = [there] * count
        for device in (None, "cuda", "cuda:0"):
            alike(library, search(*asked, 2, device=device), want, f"device={device}")
        for device in ("cpu", "cuda:7"):
            refused(
                bad,
                f"device is {device}, but base is ",
                lambda search=search, asked=asked, device=device: search(*asked, 2, device=device),
            )
    for search in (knear.knn, knear.range_search):
        refused(bad, "queries are in .*, but base is not", lambda s=search: s(there, x, 2))
        refused(bad, "base is in .*, but queries are not", lambda s=search: s(x, there, 2))


def check_self_join(library):
    """The nearest other rows: metrics, element types, filters, copies of rows, padding."""
    rng = np.random.default_rng(6)
    base = rng.standard_normal((2500, 24)).astype(np.float32)
    base[::50] = base[7]  # more copies than neighbours
    there = library.on_gpu(base)
    for metric in ("l2", "ip", "cosine"):
        report = {}
        got = knear.self_join(there, 10, metric, report=report)
        same(library, got, knear.self_join(base, 10, metric), f"self_join, {metric}")
        assert library.owns(got[0], there)
        assert (report["device"], report["k"]) == ("cuda:0", 10)
    some = np.arange(0, 2500, 7)
    got = knear.self_join(there, 3, filter=library.on_gpu(some))
    same(library, got, knear.self_join(base, 3, filter=some), "self_join, filter")
    for x in (
        rng.integers(0, 256, (900, 16)).astype(np.uint8),
        rng.standard_normal((300, 9)).astype(np.float16),
        base[:3].copy(),
    ):
        got = knear.self_join(library.on_gpu(x), 5)
        same(library, got, knear.self_join(x, 5), f"self_join, {x.dtype} {x.shape}")


def check_range_search(library):
    """All rows within a radius: metrics, element types, filters, none found, no queries."""
    rng = np.random.default_rng(9)
    for base in (
        rng.standard_normal((2500, 24)).astype(np.float32),
        rng.standard_normal((300, 9)).astype(np.float16),
        rng.integers(0, 256, (900, 16)).astype(np.uint8),
        rng.integers(-128, 128, (900, 7)).astype(np.int8),
    ):
        queries = base[::31].copy()
        there = library.on_gpu(queries), library.on_gpu(base)
        for metric in ("l2", "ip", "cosine"):
            what = f"range_search, {base.dtype}, {metric}"
            radius = float(np.median(knear.knn(queries, base, 20, metric)[0][:, -1]))
            report = {}
            got = knear.range_search(*there, radius, metric, report=report)
            want = knear.range_search(queries, base, radius, metric)
            assert len(want[1]) > len(queries), what
            same_within(library, got, want, what)
            assert all(library.owns(each, there[0]) for each in got), what
            assert report["device"] == "cuda:0", what
    # A filter, on the last base.
    some = np.arange(0, len(base), 7)
    got = knear.range_search(*there, 20000.0, filter=library.on_gpu(some))
    want = knear.range_search(queries, base, 20000.0, filter=some)
    same_within(library, got, want, "range_search, filter")
    got = knear.range_search(*there, -1.0)
    same_within(library, got, knear.range_search(queries, base, -1.0), "range_search, none found")
    got = knear.range_search(library.on_gpu(queries[:0]), there[1], 20000.0)
    want = knear.range_search(queries[:0], base, 20000.0)
    same_within(library, got, want, "range_search, no queries")


def check_select(library):
    """The k best of rows: both extremes, both orders, ties, NaN, padding, lengths, one row."""
    rng = np.random.default_rng(7)
    x = rng.integers(-500, 500, (40, 3000)).astype(np.float32)
    x[3, ::5] = np.nan
    x[4] = np.nan
    x[5, :9] = np.inf
    there = library.on_gpu(x)
    lengths = rng.integers(0, 3001, 40)
    lengths[:2] = 0, 3000
    for k in (1, 10, 300, 2000, 3100):
        for largest in (False, True):
            words = {"largest": largest, "sorted": k != 300}
            got = knear.select_k(there, k, **words)
            same(library, got, knear.select_k(x, k, **words), f"select_k, {k}, {words}")
            assert library.owns(got[0], there)
            assert library.owns(got[1], there)
    for which in (lengths, library.on_gpu(lengths)):
        got = knear.select_k(there, 20, lengths=which)
        same(library, got, knear.select_k(x, 20, lengths=lengths), "select_k, lengths")
    row = x[3].copy()
    got = knear.select_k(library.on_gpu(row), 7)
    same(library, got, knear.select_k(row, 7), "select_k, one row")
    assert tuple(got[0].shape) == (7,)
    got = knear.select_k(library.on_gpu(x[:0].copy()), 7)
    assert tuple(got[0].shape) == (0, 7)
    if library.name != "jax":  # there a slice is a copy
        for view, same_view in ((there[:, 5:900], x[:, 5:900]), (there[::2], x[::2])):
            got = knear.select_k(view, 50)
            same(library, got, knear.select_k(same_view, 50), "select_k, rows apart")
    bad = knear.InvalidArgument
    refused(bad, "k must be between 1", lambda: knear.select_k(there, 0))
    refused(bad, "threads is 2", lambda: knear.select_k(there, 1, threads=2))
    refused(bad, "method is 'radix'", lambda: knear.select_k(there, 1, method="radix"))
    refused(bad, r"lengths\[1\] is 3001", lambda: knear.select_k(there, 1, lengths=lengths + 1))
    refused(knear.ShapeMismatch, "lengths", lambda: knear.select_k(there, 1, lengths=[3]))
    half = library.on_gpu(x.astype(np.float16))
    refused(bad, "x has elements of type .*f", lambda: knear.select_k(half, 1))


def check_index(library):
    """Vectors, ids, queries and filters on the GPU, of an index of the processor."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal((2000, 20)).astype(np.float32)
    ids = np.arange(2000) * 3
    index, there = knear.Index("Flat", dim=20), knear.Index("Flat", dim=20)
    index.add(x, ids)
    there.add(library.on_gpu(x), library.on_gpu(ids))
    index.replace(ids[:5], x[5:10])
    there.replace(library.on_gpu(ids[:5]), library.on_gpu(x[5:10].copy()))
    index.remove(ids[100:130])
    there.remove(library.on_gpu(ids[100:130].copy()))
    np.testing.assert_array_equal(there.ids, index.ids)
    kept = ids[:90]
    np.testing.assert_array_equal(
        there.reconstruct(library.on_gpu(kept.copy())), index.reconstruct(kept)
    )
    q = x[::97].copy()
    asked = library.on_gpu(q)
    want = index.search(q, 6)
    for device, where in ((None, "cuda:0"), ("cuda", "cuda:0"), ("cpu", "cpu")):
        report = {}
        got = there.search(asked, 6, device=device, report=report)
        same(library, got, want, f"index, {device}")
        assert library.owns(got[0], asked)
        assert report["device"] == where
    got = there.search(asked, 6, filter=library.on_gpu(kept.copy()))
    same(library, got, index.search(q, 6, filter=kept), "index, filter")
    want = index.range_search(q, 20.0)
    for device, where in ((None, "cuda:0"), ("cuda", "cuda:0"), ("cpu", "cpu")):
        report = {}
        got = there.range_search(asked, 20.0, device=device, report=report)
        same_within(library, got, want, f"index, range, {device}")
        assert library.owns(got[0], asked)
        assert report["device"] == where
    for dtype in (np.float16, np.uint8, np.int8):
        some = rng.integers(0, 100, (50, 20)).astype(dtype)
        one = knear.Index("Flat", dim=20)
        one.add(library.on_gpu(some))
        got = one.reconstruct(np.arange(50))
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, some)
    if library.name != "jax":
        moved = library.on_gpu(x)
        for view, here in ((moved[::2], x[::2]), (moved[:20].T, x[:20].T)):
            one = knear.Index("Flat", dim=20)
            one.add(view)
            np.testing.assert_array_equal(one.reconstruct(np.arange(len(here))), here)


def check_index_device(library):
    """An index that is searched on the GPU: queries there are used in place, after changes too."""
    rng = np.random.default_rng(11)
    for metric, dtype in (("l2", np.float32), ("ip", np.float32), ("cosine", np.float16)):
        x = rng.standard_normal((3000, 24)).astype(dtype)
        x[1::9] = x[: len(x[1::9])]  # copies: ids decide
        index = knear.Index("Flat", dim=24, metric=metric)
        there = knear.Index("Flat", dim=24, metric=metric, device="cuda")
        for each in (index, there):
            each.add(x[:2000])
            each.add(x[2000:], np.arange(9000, 8000, -1))  # ids that do not ascend
        q = rng.standard_normal((700, 24)).astype(dtype)
        q[5] = 0  # as near to every row by ip and cosine

        def check(count, k, what, **words):
            want = index.search(q[:count], k, **words)  # noqa: B023
            report = {}
            asked = library.on_gpu(q[:count].copy())  # noqa: B023
            got = there.search(asked, k, report=report, **words)  # noqa: B023
            same(library, got, want, f"index on the GPU, {metric}, {what}")  # noqa: B023
            assert library.owns(got[0], asked)
            assert (report["device"], report["fallback_queries"]) == ("cuda:0", 0), report
            got = there.search(q[:count], k, **words)  # noqa: B023
            for each, wanted in zip(got, want, strict=True):
                np.testing.assert_array_equal(each, wanted)

        check(700, 10, "many")
        check(3, 1, "few")
        check(130, 300, "large k")
        check(200, 5, "filter", filter=np.arange(0, 2000, 3))
        check(20, 2, "few allowed", filter=[7, 8500])
        for each in (index, there):
            each.remove(np.arange(0, 500, 4))
        check(300, 10, "removed")
        for each in (index, there):
            each.add(x[:50])
        check(300, 10, "added")
        report = {}
        there.search(q, 10, report=report)
        there.search(library.on_gpu(q), 10, device="cpu", report=report)
        assert report["device"] == "cpu"
    whole = rng.integers(0, 200, (900, 16)).astype(np.uint8)
    index, there = knear.Index("Flat", dim=16), knear.Index("Flat", dim=16, device="cuda:0")
    index.add(whole)
    there.add(library.on_gpu(whole))
    got = there.search(library.on_gpu(whole[:200].copy()), 6)
    same(library, got, index.search(whole[:200], 6), "index on the GPU, uint8")
    refused(
        knear.DeviceUnavailable, "cuda:77", lambda: knear.Index("Flat", dim=4, device="cuda:77")
    )
    refused(
        knear.InvalidArgument, "GPU 0 twice", lambda: knear.Index("Flat", dim=4, device="cuda:0,0")
    )
    lists = knear.Index("IVF16,Flat", dim=16, device="cuda")
    lists.train(whole)
    lists.add(whole)
    want = lists.search(whole[:40], 6, probes=3, device="cpu")
    got = lists.search(library.on_gpu(whole[:40].copy()), 6, probes=3)
    same(library, got, want, "lists on the GPU")


def check_refusals(library):
    """Types and layouts that no search converts; options that a GPU does not have; k; NaN."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((50, 8)).astype(np.float32)
    there = library.on_gpu(x)
    bad = knear.InvalidArgument
    if library.name != "jax":  # an array of JAX is contiguous, and no float64 unless asked for
        double = library.on_gpu(x.astype(np.float64))
        assert (knear.knn(there, double, 2)[1] == knear.knn(there, there, 2)[1]).all()
        whole = library.on_gpu(x.astype(np.int32))
        refused(bad, "base has elements of type .*i.*4|int32", lambda: knear.knn(there, whole, 2))
        for odd in (there[::2], there[:, :4]):
            refused(bad, "queries must be C-contig", lambda odd=odd: knear.knn(odd, there, 2))
    refused(bad, "k must be at least 1, but is 0", lambda: knear.knn(there, there, 0))
    refused(bad, "method|recall", lambda: knear.knn(there, there, 2, method="threshold-heap"))
    for search in (knear.knn, knear.range_search):
        refused(bad, "first_pass", lambda s=search: s(there, there, 2, first_pass="fp32"))
    refused(bad, "group", lambda: knear.knn(there, there, 2, choices={"group": 4}))
    refused(
        knear.ShapeMismatch,
        "queries have 3 columns, base has 8",
        lambda: knear.knn(library.on_gpu(x[:, :3].copy()), there, 2),
    )
    refused(bad, "radius must be", lambda: knear.range_search(there, there, np.nan))
    x[7, 2] = np.nan
    holed = library.on_gpu(x)
    for search in (knear.knn, knear.range_search):
        refused(bad, "base .*row 7", lambda s=search: s(there, holed, 2))


def check_order(library):
    """An answer is complete when the call returns, and the work is ordered after that which made
    its arrays; the memory of answers is freed."""
    if library.name not in ("torch", "cupy"):
        return
    m = library.module
    rng = np.random.default_rng(5)
    x = rng.standard_normal((4000, 64)).astype(np.float32)
    plain = library.on_gpu(x)
    want = knear.knn(2 * x[:10], 2 * x, 3)
    radius = float(want[0][:, -1].max())
    if library.name == "torch":
        stream = m.cuda.Stream()
        within = m.cuda.stream(stream)
        busy = m.ones((4096, 4096), device="cuda")
    else:
        stream = m.cuda.Stream(non_blocking=True)
        within = stream
        busy = m.ones((4096, 4096), np.float32)
    (m.cuda.synchronize if library.name == "torch" else m.cuda.Device().synchronize)()
    for _ in range(5):
        with within:
            for _ in range(20):
                busy = busy @ busy * 0  # the next work on the stream waits for this
            late = plain * 2
            got = knear.knn(late[:10], late, 3)
            close = knear.range_search(late[:10], late, radius)
            chosen = knear.select_k(late[:9], 5)
            copied = knear.Index("Flat", dim=64)
            copied.add(late)
        same(library, got, want, "a stream of its own")
        held = knear.range_search(2 * x[:10], 2 * x, radius)
        same_within(library, close, held, "range_search after a stream")
        same(library, chosen, knear.select_k(2 * x[:9], 5), "select_k after a stream")
        np.testing.assert_array_equal(copied.reconstruct(np.arange(4000)), 2 * x)


CHECKS = [
    check_answers,
    check_devices,
    check_self_join,
    check_range_search,
    check_select,
    check_index,
    check_index_device,
    check_refusals,
    check_order,
]


def main():
    failed = False
    for name in LIBRARIES:
        try:
            library = Library(name)
        except Skipped as why:
            print(f"skipped knear of {name} arrays: {why}")
            continue
        for check in CHECKS:
            try:
                check(library)
            except Exception as error:
                failed = True
                print(f"FAILED knear of {name} arrays, {check.__name__}: {error!r}")
                break
        else:
            print(f"knear of {name} arrays: the processor's bits")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
