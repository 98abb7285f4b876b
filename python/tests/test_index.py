"""knear.Index: growth, element types, and its properties."""

import copy
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import brute_force

import knear


def test_says_what_it_is(rng):
    index = knear.Index("Flat", dim=6, metric="cosine")
    assert (index.dim, index.metric, len(index)) == (6, "cosine", 0)
    index.add(rng.standard_normal((7, 6)).astype(np.float32))
    assert len(index) == 7
    assert repr(index) == "<knear.Index 'Flat', dim=6, metric='cosine', 7 vectors, 168 bytes>"
    assert knear.Index("Flat", dim=1).metric == "l2"


def test_ids_count_on_over_adds(rng):
    base = rng.integers(0, 5, (90, 4)).astype(np.uint8)
    index = knear.Index("Flat", dim=4)
    for begin in range(0, 90, 30):
        index.add(base[begin : begin + 30])
        known = base[: begin + 30]
        distances, ids = index.search(base[:8], 12)
        want = brute_force(base[:8], known, 12, "l2")
        np.testing.assert_array_equal(distances, want[0])
        np.testing.assert_array_equal(ids, want[1])


def test_keeps_a_copy(rng):
    base = rng.standard_normal((20, 3)).astype(np.float32)
    index = knear.Index("Flat", dim=3)
    index.add(base)
    before = index.search(base[:2], 3)
    queries = base[:2].copy()
    base[:] = 0
    after = index.search(queries, 3)
    np.testing.assert_array_equal(before[0], after[0])
    np.testing.assert_array_equal(before[1], after[1])


def test_the_first_rows_decide_the_element_type():
    index = knear.Index("Flat", dim=2)
    index.add(np.array([[1, 2]], np.uint8))
    index.add(np.array([[255, 0], [3, 4]], np.float32))
    assert index.search(np.array([[3, 4]], np.int8), 3)[1].tolist() == [[2, 0, 1]]
    with pytest.raises(knear.InvalidArgument, match="type f32 .* row 1 .* type u8"):
        index.add(np.array([[1, 2], [0.5, 0]], np.float32))
    assert len(index) == 3


def test_report_is_filled_anew(rng):
    base = rng.standard_normal((40, 8)).astype(np.float32)
    index = knear.Index("Flat", dim=8, metric="ip")
    index.add(base)
    report = {"old": 1}
    index.search(base[:6], 3, report=report, threads=1)
    assert "old" not in report
    assert (report["rows"], report["queries"], report["dim"], report["k"]) == (40, 6, 8, 3)
    assert (report["metric"], report["threads"], report["certified_queries"]) == ("ip", 1, 6)
    assert report["first_pass"]
    assert report["seconds"] >= 0
    knear.knn(base[:2], base, 5, "cosine", report=report)
    assert (report["queries"], report["k"], report["metric"]) == (2, 5, "cosine")


def test_ids_stay_with_their_vectors(rng):
    base = rng.standard_normal((600, 5)).astype(np.float32)
    index = knear.Index("Flat", dim=5)
    index.reserve(1000)
    index.add(base[:300])
    index.add(base[300:], ids=np.arange(600, 300, -1), threads=1)
    assert (len(index), index.next_id, index.version) == (600, 601, 2)
    vector_of = {i: base[i] for i in range(300)} | {600 - i: base[300 + i] for i in range(300)}
    index.remove([4, 599, 17])
    for i in (4, 599, 17):
        del vector_of[i]
    index.replace([8, 600], base[[1, 2]])
    vector_of[8], vector_of[600] = base[1], base[2]
    assert 8 in index and 4 not in index and -1 not in index
    for _ in range(2):
        ids = np.array(sorted(vector_of))
        np.testing.assert_array_equal(index.ids, ids)
        known = np.stack([vector_of[i] for i in ids])
        np.testing.assert_array_equal(index.reconstruct(ids[::-1]), known[::-1])
        distances, near = index.search(base[:9], 7)
        want = brute_force(base[:9], known, 7, "l2")
        np.testing.assert_array_equal(distances, want[0])
        np.testing.assert_array_equal(near, ids[want[1]])
        report = {}
        near = index.search(base[:9], 3, filter=[600, 5, 8], report=report)[1]
        assert set(near.ravel()) == {600, 5, 8} and report["version"] == index.version
        index.compact()
    other = knear.Index("Flat", dim=5)
    other.add(base[:2])
    index.merge(other, ids="shifted")
    assert index.next_id == 603 and len(index) == 599
    np.testing.assert_array_equal(index.reconstruct([601, 602]), base[:2])
    assert index.reconstruct([]).shape == (0, 5)


def test_what_is_saved_comes_back(rng, tmp_path):
    base = rng.standard_normal((900, 5)).astype(np.float32)
    index = knear.Index("Flat", dim=5, metric="cosine")
    index.add(base, ids=np.arange(900) * 7)
    index.remove([7, 21])
    index.save(tmp_path / "a.knear")
    loaded = knear.Index.load(str(tmp_path / "a.knear"))
    assert repr(loaded) == repr(index)
    for one, other in zip(loaded.search(base[:20], 9), index.search(base[:20], 9), strict=True):
        np.testing.assert_array_equal(one, other)
    loaded.add(base[:2])
    loaded.save(tmp_path / "a.knear")
    assert len(knear.Index.load(tmp_path / "a.knear")) == 900
    with pytest.raises(knear.IoError, match="none.knear"):
        knear.Index.load(tmp_path / "none.knear")
    data = (tmp_path / "a.knear").read_bytes()
    (tmp_path / "cut.knear").write_bytes(data[: len(data) // 2])
    with pytest.raises(knear.CorruptFile, match=r"section '\d/.*' is cut off"):
        knear.Index.load(tmp_path / "cut.knear")
    for name, says in (
        ("other", "other is neither a .knear file nor a FAISS index file"),
        ("other.knear", "other.knear is no .knear file"),
        ("other.faiss", "no index of FAISS begins like this"),
    ):
        (tmp_path / name).write_bytes(bytes(range(7, 250)))
        with pytest.raises(knear.CorruptFile, match=says):
            knear.Index.load(tmp_path / name)


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_the_first_search_after_optimize_goes_by_the_prefix(rng, tmp_path, metric):
    falling = (1 + np.arange(256)) ** -1.0
    base = (rng.standard_normal((9000, 256)) * falling).astype(np.float32)
    queries = (rng.standard_normal((40, 256)) * falling).astype(np.float32)
    index = knear.Index("Flat", dim=256, metric=metric)
    index.add(base)
    before = index.search(queries, 10)
    assert index.optimize(threads=2) == 9000
    index.save(tmp_path / "a.knear")
    for each in (index, knear.Index.load(tmp_path / "a.knear")):
        report = {}
        each.search(queries[:1], 10, threads=2, report=report)
        assert report["first_pass"] == "prefix"
        for got, want in zip(each.search(queries, 10), before, strict=True):
            np.testing.assert_array_equal(got, want)


def test_optimize_says_that_nothing_would_gain(rng):
    index = knear.Index("Flat", dim=4)
    assert index.optimize() == 0
    index.add(rng.standard_normal((100, 4)).astype(np.float32))
    assert index.optimize() == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int8, "bfloat16"])
def test_reconstruct_gives_back_every_type(rng, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    base = rng.integers(0, 100, (700, 9)).astype(dtype)
    index = knear.Index("Flat", dim=9)
    index.add(base[:3])
    index.add(base[3:])
    rows = index.reconstruct(np.arange(700))
    assert rows.dtype == base.dtype
    np.testing.assert_array_equal(rows, base)
    # Whole numbers are kept in a byte each.
    assert index.memory_bytes < 700 * (12 * 1.1 + 16) + 4096


def test_memory_bytes_does_not_stop_a_search_that_packs():
    # This once deadlocked between the interpreter lock and the lock of the rows being packed.
    program = """
import threading
import numpy as np
import knear

base = np.random.default_rng(1).random((300_000, 64), np.float32)
index = knear.Index("Flat", dim=64)
index.add(base)
searching = threading.Thread(target=lambda: index.search(base[:50], 10))
searching.start()
asked = 0
while searching.is_alive():
    assert index.memory_bytes > 0
    asked += 1
print(asked)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat", "PCA4,IVF4,PQ2x4"])
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))]
)
def test_copies_and_pickles_are_indexes_of_their_own(rng, factory, duplicate):
    x = rng.standard_normal((300, 8)).astype(np.float32)
    index = knear.Index(factory, dim=8)
    index.train(x) if factory != "Flat" else None
    index.add(x, np.arange(300) * 7)
    same = duplicate(index)
    how = {} if factory == "Flat" else {"probes": 4}
    for a, b in zip(index.search(x[:9], 5, **how), same.search(x[:9], 5, **how), strict=True):
        np.testing.assert_array_equal(a, b)
    same.remove([0, 7])
    assert (len(index), len(same), 7 in index, 7 in same) == (300, 298, True, False)


class Named(knear.Index):
    name = "none"


def test_a_class_of_ones_own_stays_what_it_is(rng):
    index = Named("Flat", dim=4)
    index.add(rng.standard_normal((5, 4)))
    index.name = "mine"
    for same in (copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        assert type(same) is Named and same.name == "mine" and len(same) == 5


def test_numbers_out_of_range_are_named(rng):
    index = knear.Index("Flat", dim=4)
    for threads in (-5, 2**31, 2**62):
        with pytest.raises(knear.InvalidArgument, match=f"threads must .* but is {threads}"):
            index.optimize(threads=threads)
    with pytest.raises(knear.InvalidArgument, match="iterations must .* but is -3"):
        knear.KMeans(2, iterations=-3).train(rng.standard_normal((9, 4)))
    knear.Index("IVF2,Flat", dim=4).train(rng.standard_normal((9, 4)), iterations=2**40)  # at most


def test_public_functions_are_documented():
    for name in knear.__all__:
        assert getattr(knear, name).__doc__, name
    for name in dir(knear.Index):
        if not name.startswith("_"):
            assert getattr(knear.Index, name).__doc__, name


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_inverted_lists(rng, metric, tmp_path):
    centres = rng.standard_normal((20, 8))
    base = (centres[rng.integers(0, 20, 3000)] + 0.3 * rng.standard_normal((3000, 8))).astype(
        np.float32
    )
    queries = base[:50] + np.float32(0.01)
    index = knear.Index("IVF16,Flat", dim=8, metric=metric)
    assert not index.is_trained
    index.train(base, iterations=5, seed=2)
    assert index.is_trained
    index.add(base[:1000])
    index.add(base[1000:])
    assert index.factory == "IVF16,Flat"
    want = brute_force(queries, base, 5, metric)
    report = {}
    distances, ids = index.search(queries, 5, probes=3, certify=True, report=report)
    assert report["lists"] == 16 and report["probes"] == 3
    assert 0 < report["probed_rows"] < 3000
    certain = np.setdiff1d(np.arange(50), report["uncertified"])
    assert len(certain) == report["certified_queries"]
    np.testing.assert_array_equal(ids[certain], want[1][certain])
    assert np.mean([len(set(a) & set(b)) for a, b in zip(ids, want[1], strict=True)]) > 4
    for more in ({"probes": 16}, {"recall": 1}):
        distances, ids = index.search(queries, 5, report=report, **more)
        np.testing.assert_array_equal(ids, want[1])
        np.testing.assert_array_equal(distances, want[0])
        assert report["certified_queries"] == 50 and report["promised_recall"] == 1
    few = [1, 2000, 2999, 5]
    _, ids = index.search(queries, 4, probes=1, filter=few)
    assert (ids == -1).any()
    _, ids = index.search(queries, 4, probes=1, filter=few, widen=True)
    np.testing.assert_array_equal(np.sort(ids), np.tile(np.sort(few), (50, 1)))
    index.save(tmp_path / "a.knear")
    again = knear.Index.load(tmp_path / "a.knear")
    assert again.factory == "IVF16,Flat"
    for a, b in zip(
        again.search(queries, 5, probes=3), index.search(queries, 5, probes=3), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    begin, _, ids = index.range_search(queries, want[0][0, 4], probes=16)
    np.testing.assert_array_equal(ids[begin[0] : begin[1]][:4], want[1][0][:4])


CODED = [
    "PQ8",
    "SQ8",
    "IVF16,PQ8",
    "IVF16,PQ8x4,RFlat",
    "PCA12,IVF16,PQ6,Refine(SQ8)",
    "OPQ8,IVF16,SQ4",
]


@pytest.fixture(scope="module")
def clustered():
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((30, 16))
    return (centres[rng.integers(0, 30, 5000)] + 0.3 * rng.standard_normal((5000, 16))).astype(
        np.float32
    )


@pytest.mark.parametrize("string", CODED)
def test_codes_find_their_neighbours(clustered, string, tmp_path):
    index = knear.Index(string, dim=16)
    assert not index.is_trained
    with pytest.raises(knear.InvalidArgument, match="is not trained"):
        index.add(clustered)
    index.train(clustered)
    index.add(clustered[:4000])
    index.add(clustered[4000:], ids=np.arange(9000, 10000))
    queries = clustered[::50] + np.float32(0.01)
    truth = knear.knn(queries, clustered, k=10)[1]
    truth = np.where(truth < 4000, truth, truth + 5000)
    asked = {"probes": 16} if index.lists else {}
    report = {}
    distances, ids = index.search(queries, 10, **asked, report=report)
    assert (report["recall_argument"], report["certified_queries"]) == ("none", 0)
    found = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids, truth, strict=True)])
    assert found > (0.8 if "R" in string else 0.3)
    assert (np.diff(distances, axis=1) >= 0).all()
    points = index.tune(10)
    reached = points[-1]["promised_recall"]
    again = index.search(queries, 10, recall=reached, report=report)[1]
    # Fewer queries are promised less of the same search.
    assert report["recall_argument"] == "calibrated"
    assert reached - 0.1 < report["promised_recall"] < reached
    index.search(clustered[::5] + np.float32(0.01), 10, recall=reached, report=report)
    assert (report["recall_argument"], report["promised_recall"]) == ("calibrated", reached)
    met = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(again, truth, strict=True)])
    assert met > reached - 0.05  # of 100 queries
    if reached < 0.99:
        with pytest.raises(knear.InvalidArgument, match="is the highest that is promised"):
            index.search(queries, 10, recall=0.999)
    index.remove([3, 9000])
    index.save(tmp_path / "a.knear")
    loaded = knear.Index.load(tmp_path / "a.knear")
    assert (loaded.factory, len(loaded)) == (index.factory, 4998)
    for a, b in zip(
        loaded.search(queries, 10, **asked), index.search(queries, 10, **asked), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    back = index.reconstruct([0, 9001])
    assert np.abs(back - clustered[[0, 4001]]).max() < 1.5


def test_a_graph(clustered, tmp_path):
    index = knear.Index("Graph16", dim=16)
    index.add(clustered)
    assert index.factory == "Graph16"
    assert index.optimize() == len(clustered)
    queries = clustered[:300] + 0.01
    truth = knear.knn(queries, clustered, k=5)
    few, many = (index.search(queries, 5, ef=ef) for ef in (5, 100))
    shares = [(found.ids == truth.ids).mean() for found in (few, many)]
    assert shares[0] < shares[1] > 0.95
    assert many.plan["method"] == "graph"
    assert many.plan["ef"] == 100 < many.plan["probed_rows"]
    asked = index.search(queries, 5, recall=0.9)
    assert (asked.ids == truth.ids).mean() >= 0.9
    np.testing.assert_array_equal(index.search(queries, 5, recall=1).ids, truth.ids)
    index.remove(truth.ids[0])
    assert not np.isin(index.search(queries[:1], 5, ef=50).ids, truth.ids[0]).any()
    index.save(tmp_path / "graph.knear")
    again = knear.Index.load(tmp_path / "graph.knear")
    np.testing.assert_array_equal(
        again.search(queries, 5, ef=50).ids, index.search(queries, 5, ef=50).ids
    )
    assert len(index.tune(5)) > 1
    with pytest.raises(knear.InvalidArgument, match="neither ef nor recall is given"):
        index.search(queries, 5)
    with pytest.raises(knear.InvalidArgument, match="ef is 4, but 5 neighbours"):
        index.search(queries, 5, ef=4)
    plain = knear.Index("Flat", dim=16)
    plain.add(clustered)
    with pytest.raises(knear.InvalidArgument, match="ef is 9, but there is no graph"):
        plain.search(clustered[:2], 5, ef=9)


def test_refine_factor(clustered):
    index = knear.Index("IVF16,PQ4x4,RFlat", dim=16)
    index.train(clustered)
    index.add(clustered)
    truth = knear.knn(clustered[:200], clustered, k=5)[1]
    found = [
        (index.search(clustered[:200], 5, probes=16, refine_factor=f)[1] == truth).mean()
        for f in (1, 4, 64)
    ]
    assert found[0] < found[1] < found[2] > 0.95
    with pytest.raises(knear.InvalidArgument, match="refine_factor must be at least 1, but is 0"):
        index.search(clustered[:2], 5, probes=1, refine_factor=0)
    plain = knear.Index("Flat", dim=16)
    plain.add(clustered)
    with pytest.raises(knear.InvalidArgument, match="refine_factor is 2, but there are no codes"):
        plain.search(clustered[:2], 5, refine_factor=2)
    codes = knear.Index("IVF16,PQ4x4", dim=16)
    codes.train(clustered)
    codes.add(clustered)
    with pytest.raises(knear.InvalidArgument, match="without base"):
        codes.tune(5, clustered[:2])
    # Beside RFlat there are vectors, which tell what is nearest.
    assert index.tune(5, clustered[::5])[-1]["promised_recall"] > 0.9
    index.remove(np.arange(0, 2000))
    moved = clustered[::5] + np.float32(0.05)
    points = index.tune(5, moved, base=clustered)
    assert points[-1]["promised_recall"] > 0.9
    with pytest.raises(knear.InvalidArgument, match="base has "):
        index.tune(5, base=clustered[:3000])
    with pytest.raises(knear.InvalidArgument, match="ids are given, but no base"):
        index.tune(5, ids=[1, 2])


def test_an_index_is_chosen_by_numbers():
    choice = knear.choose_index(1_000_000, 96, memory="150M", recall=0.9)
    assert choice.factory == "IVF2048,PQ48x4,Refine(SQ8)"
    assert choice.reason.startswith(choice.factory + ": ")
    assert 100 << 20 < choice.memory_bytes <= 150 << 20
    factory, _, _ = knear.choose_index(1_000_000, 96, memory="150M", dtype=np.uint8)
    assert factory == "IVF1024,Flat"
    index = knear.Index("auto", dim=96, rows=300_000, recall=0.98, batch=1)
    assert index.factory == "IVF1024,Flat"
    assert index.reason == knear.choose_index(300_000, 96, recall=0.98, batch=1).reason
    assert index.reason.startswith("IVF1024,Flat: ")
    assert copy.deepcopy(index).reason == index.reason
    assert knear.Index("Flat", dim=96).reason is None
    assert knear.Index("auto", dim=96, rows=100_000, recall=1).factory == "Flat"
    for wrong, says in (
        (dict(factory="auto"), "needs rows"),
        (dict(factory="Flat", rows=3), "rows is 3, but only factory 'auto' takes it"),
        (dict(factory="auto", rows=0), "rows must be at least 1, but is 0"),
        (dict(factory="auto", rows=10, recall=0.0), "recall must be in"),
        (dict(factory="auto", rows=10, dtype="int32"), "dtype is int32"),
        (dict(factory="auto", rows=10, dtype="pears"), "dtype must be a type of NumPy"),
        (dict(factory="auto", rows=10**6, memory=1000), "memory is 1000 bytes"),
    ):
        with pytest.raises(knear.InvalidArgument, match=re.escape(says)):
            knear.Index(dim=96, **wrong)


def sentences(rows, dim=128):
    """Directions of sums of a few of many words, some much more frequent: like text."""
    rng = np.random.default_rng(7)
    words = rng.standard_normal((4000, dim), dtype=np.float32)
    ranks = np.exp(rng.random((rows, 8)) * np.log(4000)).astype(np.int64) - 1
    x = words[ranks].sum(axis=1)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def same_answers(index, other, x, **words):
    found, wanted = index.search(x[:50], 10, **words), other.search(x[:50], 10, **words)
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_array_equal(found.distances, wanted.distances)


def test_auto_measures_what_it_is_trained_by(tmp_path):
    x = sentences(6000)
    index = knear.Index("auto", dim=128, rows=240_000, batch=1)
    assert index.factory == "IVF1024,Flat" and not index.is_trained
    assert index.reason.endswith("guessed without a sample of the vectors")
    early = pickle.loads(pickle.dumps(index))
    wrong = x.copy()
    wrong[77, 3] = np.nan
    with pytest.raises(knear.InvalidArgument, match="must be finite, but row 77 column 3 is nan"):
        index.add(wrong)
    assert index.factory == "IVF1024,Flat" and not index.is_trained and len(index) == 0
    index.train(x, iterations=3)
    assert index.factory.startswith("Graph") and index.is_trained and len(index) == 0
    begin = f"{index.factory}: measured on 5800 vectors for 240000 x 128, "
    assert index.reason.startswith(begin)
    choice = knear.choose_index(240_000, 128, batch=1, sample=x)
    assert choice.reason == index.reason and not choice.guessed
    assert choice.forecasts[0].factory == index.factory
    times = [form.seconds for form in choice.forecasts]
    assert times == sorted(times) and len(times) == 8
    index.add(x)
    graph = knear.Index(index.factory, dim=128)
    graph.add(x)
    same_answers(index, graph, x, ef=30)
    path = tmp_path / "index.knear"
    index.save(path)
    assert knear.Index.load(path).factory == index.factory
    early.add(x)
    assert early.factory == index.factory and early.reason == index.reason


def test_auto_trains_itself_by_what_is_added_first():
    x = sentences(6000, 32)
    index = knear.Index("auto", dim=32, metric="ip", rows=240_000, recall=0.9, batch=10_000)
    index.add(x[:5000])
    index.add(x[5000:])
    assert index.factory.startswith("IVF") and index.is_trained
    assert "measured on 4800 vectors" in index.reason
    lists = knear.Index(index.factory, dim=32, metric="ip")
    lists.train(x[:5000])
    lists.add(x)
    same_answers(index, lists, x, probes=7)


def test_auto_measures_codes_where_vectors_do_not_fit():
    needs = dict(dim=128, metric="ip", rows=100_000, memory="30M", recall=0.8, batch=1)
    index = knear.Index("auto", **needs)
    assert index.reason.endswith("guessed without a sample of the vectors")
    index.train(sentences(3000))
    assert index.reason.startswith(f"{index.factory}: measured on 2300 vectors for 100000 x 128")
    assert "SQ8" in index.factory and index.is_trained


def test_auto_that_vectors_do_not_decide_is_what_it_was_made_as():
    assert knear.Index("auto", dim=8, rows=1000).is_trained  # so few are compared
    assert knear.Index("auto", dim=96, rows=10**6, recall=1).is_trained
    x = sentences(1999)
    few = knear.Index("auto", dim=128, metric="ip", rows=240_000, batch=1)
    few.train(x)
    assert few.factory == "Graph32" and few.is_trained
    assert few.reason.endswith("as 1999 vectors are too few to measure: 2000 are needed")
    flat = knear.Index("auto", dim=128, metric="ip", rows=240_000, batch=1)
    graph = knear.Index("Graph32", dim=128, metric="ip")
    graph.add(x)
    flat.merge(graph)
    assert flat.is_trained and flat.factory == "Graph32" and len(flat) == 1999


def test_a_sample_of_other_columns_is_refused():
    with pytest.raises(knear.ShapeMismatch, match="^sample has 16 columns, but dim is 96$"):
        knear.choose_index(100_000, 96, sample=np.ones((3000, 16), np.float32))
    index = knear.Index("auto", dim=96, rows=100_000)
    with pytest.raises(knear.ShapeMismatch, match="have 16 columns"):
        index.add(np.ones((3000, 16), np.float32))
    assert not index.is_trained
    # The sample's type is that of the vectors.
    bytes_ = (100 * np.abs(sentences(3000, 96))).astype(np.uint8)
    choice = knear.choose_index(100_000, 96, sample=bytes_)
    assert choice.memory_bytes < 130 * 100_000 and not choice.guessed


def test_a_flat_index_takes_a_recall():
    rng = np.random.default_rng(3)
    centres = rng.standard_normal((300, 32), np.float32)

    def drawn(rows):
        return centres[rng.integers(0, 300, rows)] + 0.5 * rng.standard_normal(
            (rows, 32), np.float32
        )

    base, queries = drawn(60000), drawn(1500)
    index = knear.Index("Flat", dim=32)
    index.add(base)
    truth = index.search(queries, 5)[1]
    points = index.tune(5)
    assert points[-1]["promised_recall"] > 0.9
    for recall in (0.5, 0.9):
        report = {}
        ids = index.search(queries, 5, recall=recall, report=report)[1]
        found = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(ids, truth, strict=True)])
        assert found >= recall
        assert (report["method"], report["recall_argument"]) == ("inverted-lists", "calibrated")
        assert report["promised_recall"] == recall
    np.testing.assert_array_equal(index.search(queries, 5)[1], truth)
    with pytest.raises(knear.InvalidArgument, match="below 16384 all are compared"):
        knear.Index("Flat", dim=4).tune(5)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nprobe", r"search\(queries, k, probes=4\)"),
        ("efSearch", r"search\(queries, k, ef=64\)"),
        ("nlist", "index.lists"),
        ("verbos", "has no attribute 'verbos'"),
    ],
)
def test_attributes_that_there_are_not(name, hint):
    """What FAISS has would be taken and do nothing."""
    index = knear.Index("Flat", dim=4)
    with pytest.raises(AttributeError, match=hint):
        setattr(index, name, 4)
    with pytest.raises(AttributeError, match=hint):
        getattr(index, name)
    for other in (
        knear.KMeans(3),
        knear.PCA(2),
        knear.ProductQuantizer(2),
        knear.ScalarQuantizer(),
    ):
        with pytest.raises(AttributeError, match="has no attribute 'iteration'"):
            other.iteration = 4

    class Named(knear.Index):
        pass

    named = Named("Flat", dim=4)
    named.title = "mine"  # a derived class may have others
    with pytest.raises(AttributeError, match=hint):
        getattr(named, name)


@pytest.mark.parametrize("shards", [1, 2])
def test_an_index_is_not_merged_with_itself(shards):
    index = knear.Index("Flat", dim=4, shards=shards)
    index.add(np.eye(4))
    for ids in ("keep", "shifted"):
        with pytest.raises(knear.InvalidArgument, match="other is the index itself"):
            index.merge(index, ids)
    assert len(index) == 4


@pytest.mark.parametrize("apart", [1, 300, 1e6])
def test_candidates_as_many_as_rows_are_all_of_them(apart):
    """Codes of 8 bits cannot tell the rows of far clusters apart, so that no fewer would do."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((5, 24)) * apart
    x = (np.repeat(centres, 400, 0) + random.standard_normal((2000, 24))).astype(np.float32)
    index = knear.Index("Graph16", dim=24)
    index.add(x)
    for ef in (2000, 5000):
        found = index.search(x[::40], 10, ef=ef)
        np.testing.assert_array_equal(found.ids, knear.knn(x[::40], x, 10).ids)


def test_lists_by_products_of_the_most_columns():
    """A lift is one column more than vectors may have: lists are in the order of products then."""
    x = np.random.default_rng(1).standard_normal((40, 65536), dtype=np.float32)
    for factory in ("IVF2,Flat", "IVF2(IVF2,Flat),Flat"):
        index = knear.Index(factory, dim=65536, metric="ip")
        index.train(x, iterations=1)
        index.add(x)
        want = knear.knn(x[:3], x, 4, metric="ip")
        np.testing.assert_array_equal(index.search(x[:3], 4, probes=2).ids, want.ids)
        np.testing.assert_array_equal(index.search(x[:3], 4, recall=1).ids, want.ids)
    with pytest.raises(knear.InvalidArgument, match="^dim must be between 1 and 65536"):
        knear.Index("IVF2,Flat", dim=65537, metric="ip")


def test_whole_numbers_are_rounded_if_asked():
    index = knear.Index("Flat", dim=3)
    index.add(np.zeros((2, 3), np.float32))
    beyond = np.full((1, 3), 2**24 + 1)
    with pytest.raises(knear.InvalidArgument, match="not exact in float32"):
        index.add(beyond)
    index.add(beyond, convert=True)
    index.replace([0], -beyond, convert=True)
    assert index.reconstruct([0, 2])[:, 0].tolist() == [-(2.0**24), 2.0**24]


def test_a_filter_without_values_is_named():
    arrow = pytest.importorskip("pyarrow")
    index = knear.Index("Flat", dim=3)
    index.add(np.zeros((5, 3), np.float32))
    with pytest.raises(knear.InvalidArgument, match=r"filter has no value \(null\) in 1 of 3"):
        index.search(np.zeros((1, 3), np.float32), 1, filter=arrow.array([1, None, 3]))


class TestAudit:
    """An index that audits itself (docs/recall.md)."""

    @staticmethod
    def lists(**more):
        x = np.random.default_rng(1).standard_normal((4000, 8), dtype=np.float32)
        index = knear.Index("IVF32,Flat", dim=8, **more)
        index.train(x)
        index.add(x)
        return index, x

    def test_queries_unlike_the_vectors_are_promised_what_audits_find(self):
        index, x = self.lists(audit=0.02)
        assert index.audit == 0.02
        far = 2 * np.random.default_rng(2).standard_normal((600, 8), dtype=np.float32)
        for q in range(0, 320, 16):
            found = index.search(far[q : q + 16], 5, recall=0.9, traffic="far")
        assert found.plan["audited_queries"] == 256
        (report,) = index.audits()
        assert report["traffic"] == "far" and report["k"] == 5
        assert report["served_queries"] == 320
        assert report["audited_queries"] == 256
        assert report["recall"] == 0.9
        low, high = report["interval"]
        assert 0.9 <= low <= report["measured_recall"] <= high <= 1
        exact = knear.knn(far[320:], x, 5).ids
        found = index.search(far[320:], 5, recall=0.9, traffic="far").ids
        right = [len(set(a) & set(b)) for a, b in zip(exact, found, strict=True)]
        assert np.mean(right) / 5 >= 0.9
        index.audit = 0
        index.tune(5)
        assert index.audits() == []

    def test_bad_input(self, tmp_path):
        with pytest.raises(knear.errors.InvalidArgument, match="^audit must be a number"):
            self.lists(audit="0.02")
        with pytest.raises(knear.errors.InvalidArgument, match="^audit must be between 0 and 1"):
            self.lists(audit=2)
        with pytest.raises(knear.errors.InvalidArgument, match="^audit is 0.02, but index Flat"):
            knear.Index("Flat", dim=8, audit=0.02)
        index, x = self.lists()
        assert index.audit == 0
        with pytest.raises(knear.errors.InvalidArgument, match="^traffic is 'x', but audit is 0"):
            index.search(x[:2], 5, recall=0.9, traffic="x")
        index.save(tmp_path / "index.knear")
        index = knear.Index.load(tmp_path / "index.knear", audit=0.02)
        assert index.audit == 0.02
        with pytest.raises(knear.errors.InvalidArgument, match="^traffic must be text"):
            index.search(x[:2], 5, recall=0.9, traffic=3)
        with pytest.raises(knear.errors.InvalidArgument, match="recall below 1$"):
            index.search(x[:2], 5, probes=2, traffic="x")
        with pytest.raises(knear.errors.InvalidArgument, match="byte 1 is 0x0a$"):
            index.search(x[:2], 5, recall=0.9, traffic="a\nb")

    def test_auto_is_given_its_share_once_it_is_decided(self):
        x = sentences(6000, 32)
        needs = dict(dim=32, metric="ip", rows=240_000, recall=0.9, batch=10_000)
        index = knear.Index("auto", audit=0.02, **needs)
        assert index.audit == 0.02
        with pytest.raises(knear.errors.InvalidArgument, match="^audit must be between 0 and 1"):
            index.audit = -1
        index.reserve(7000)
        index.add(np.empty((0, 32), np.float32))
        assert not index.is_trained and len(index) == 0
        index.add(x)
        assert index.factory.startswith("IVF") and index.audit == 0.02
        exact = knear.Index("auto", audit=0.02, **{**needs, "recall": 0.9999})
        exact.add(x)
        if exact.factory == "Flat":
            assert exact.audit == 0 and "it does not audit itself: audit is 0.02" in exact.reason
        else:
            assert exact.audit == 0.02

    def test_a_failure_leaves_auto_undecided(self):
        x = sentences(6000)
        index = knear.Index("auto", dim=128, metric="ip", rows=240_000, recall=0.9, batch=10_000)
        with pytest.raises(knear.errors.InvalidArgument, match="twice|given"):
            index.add(x, ids=np.zeros(len(x), np.int64))
        assert not index.is_trained and len(index) == 0
        far = x.copy()
        far[17, 3] = np.nan
        with pytest.raises(knear.errors.InvalidArgument, match="^x must be finite, but row 17"):
            index.add(far)
        index.train(x, iterations=2)
        assert index.is_trained and len(index) == 0
