"""knear.faiss beside the real FAISS, where it is installed: the same script, the same results.

What test_faiss_*.py share. Two kinds of test:

    @needs_faiss
    def test_it(rows):          # compares what `ours` and `theirs` say
    def test_it(rows, faiss):   # runs with each: what holds of ours has to hold of FAISS

The fixtures, `rows` and `faiss`, are in conftest.py. `theirs` is None without FAISS.
"""

import contextlib

import knear.faiss as ours
import numpy as np
import pytest

try:
    import faiss as theirs
except ImportError:
    theirs = None

needs_faiss = pytest.mark.skipif(theirs is None, reason="faiss is not installed")
METRICS = [pytest.param(1, id="l2"), pytest.param(0, id="ip")]


def index_module(index):
    """Which of the two has made it."""
    return ours if isinstance(index, ours.Index) else theirs


def across(module, index):
    """An index of one of the two as one of the other."""
    data = index_module(index).serialize_index(index)
    return module.deserialize_index(data)


def filled(module, string, metric, rows):
    """An index by its factory string, trained on `rows` and with them in it."""
    index = module.index_factory(
        12, string.replace("PQ4x6", "PQ4x6np").replace("npnp", "np"), metric
    )
    if "(IVF" in string:
        module.downcast_index(index.quantizer).make_direct_map()
    if string.startswith("OPQ"):
        module.downcast_VectorTransform(index.chain.at(0)).niter = 5
    index.train(rows)
    assert index.is_trained
    if string.startswith("IDMap"):
        index.add_with_ids(rows, np.arange(3000) * 2)
    else:
        index.add(rows)
    asked(module, index)
    return index


def asked(module, index):
    """More lists and codes than by default; of a refined index the outermost is enough."""
    lists = module.try_extract_index_ivf(index)
    if lists is not None:
        lists.nprobe = 5
    if hasattr(index, "k_factor"):
        index.k_factor = 20


THIRD = np.packbits(np.arange(3000) % 3 == 0, bitorder="little")
SOME = np.arange(0, 3000, 70)  # of neither FAISS's selectors keep a reference


def selectors(faiss):
    """One of each kind, for ids of `rows`."""
    some = faiss.IDSelectorRange(100, 900)
    third = faiss.IDSelectorBitmap(THIRD)
    return {
        "range": some,
        "batch": faiss.IDSelectorBatch(np.arange(0, 3000, 7)),
        "array": faiss.IDSelectorArray(SOME),
        "bitmap": third,
        "all": faiss.IDSelectorAll(),
        "not": faiss.IDSelectorNot(some),
        "and": faiss.IDSelectorAnd(some, third),
        "or": faiss.IDSelectorOr(some, third),
        "xor": faiss.IDSelectorXOr(some, third),
        "none": faiss.IDSelectorBatch(np.array([5000])),  # a range beyond the end crashes FAISS
    }


@contextlib.contextmanager
def refused(match=None):
    """What is wrong is a RuntimeError, and not one of what is not there, which is one, too."""
    with pytest.raises(RuntimeError, match=match) as caught:
        yield
    assert type(caught.value) is RuntimeError


def same(a, b):
    """Equal neighbours, but for the order of equal distances and for which of them is the last;
    distances as float32 sums have them."""
    (a, i), (b, j) = a, b
    np.testing.assert_array_equal(i < 0, j < 0)
    far = np.finfo(np.float32).max
    np.testing.assert_array_equal(np.abs(a) == far, np.abs(b) == far)
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    if a.ndim == 1:
        np.testing.assert_array_equal(i, j)
        return
    for row in np.flatnonzero((i != j).any(1)):
        clear = np.abs(a[row] - a[row, -1]) > 1e-4
        assert set(i[row][clear]) <= set(j[row]), (row, i[row], j[row], a[row])
        moved = i[row] != j[row]
        steps = np.abs(np.diff(a[row]))
        tied = np.concatenate([[False], steps < 1e-4]) | np.concatenate([steps < 1e-4, [False]])
        assert tied[moved].all() or a.shape[1] == 1, (row, i[row], j[row], a[row])


def near(a, b, string):
    """Nearly all neighbours equal, where codes make distances that hardly differ; of short codes,
    which many rows have, those that are clearly nearer than the last."""
    coarse = any(word in string for word in ("PQ", "SQ4", "SQ6", "SQ8"))
    np.testing.assert_allclose(a[0], b[0], rtol=2e-3, atol=2e-3)
    if "x4" in string or "x6" in string:
        clear = np.abs(a[0] - a[0][:, -1:]) > 4e-3
        share = np.mean([ids in other for i, j, c in zip(a[1], b[1], clear, strict=True)
                         for other in [set(j)] for ids in i[c]])  # fmt: skip
    else:
        share = (a[1] == b[1]).mean()
    assert share > (0.85 if coarse else 0.999), share


def sets(found):
    """What a range search found of each query, whatever the order."""
    begin, distances, ids = found
    begin = begin.astype(int)
    return [set(ids[a:b].tolist()) for a, b in zip(begin, begin[1:], strict=False)]


def near_sets(a, b, radius, metric):
    """What two range searches found, equal but for distances next to the radius."""
    found = []
    for begin, distances, ids in (a, b):
        inside = distances < radius if metric else distances > radius
        assert inside.all()
        clear = np.abs(distances - radius) > 2e-3 * (1 + abs(radius))
        query = np.repeat(np.arange(len(begin) - 1), np.diff(begin.astype(int)))
        found.append([set(zip(query[some].tolist(), ids[some].tolist(), strict=True))
                      for some in (inside, clear)])  # fmt: skip
    (all_a, clear_a), (all_b, clear_b) = found
    assert clear_a <= all_b and clear_b <= all_a, (clear_a - all_b, clear_b - all_a)
