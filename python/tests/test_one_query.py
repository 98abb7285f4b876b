"""Searches of one query with usual arguments, which are read and answered in one call of _core: the
same answers, errors and reports as with arguments that take the longer way."""

import copy
import pickle
import threading

import numpy as np
import pytest

import knear

KINDS = {
    "few": ("Flat", 20, {}),
    "few, recall": ("Flat", 20, {"recall": 0.9}),
    "flat": ("Flat", 3000, {}),
    "flat, recall": ("Flat", 3000, {"recall": 0.9}),
    "lists": ("IVF16,Flat", 3000, {"probes": 3}),
    "lists, recall": ("IVF16,Flat", 3000, {"recall": 0.9}),
    "codes": ("IVF16,PQ4,RFlat", 3000, {"probes": 3, "refine_factor": 8}),
    "graph": ("Graph16", 3000, {"ef": 20}),
    "graph, recall": ("Graph16", 3000, {"recall": 0.9}),
}
TIMES = {name for name in ("seconds", "prepare_seconds", "merge_seconds")}


def made(name: str, metric: str = "l2"):
    factory, rows, words = KINDS[name]
    x = np.random.default_rng(3).standard_normal((rows, 12), dtype=np.float32)
    index = knear.Index(factory, dim=12, metric=metric)
    index.train(x)
    index.add(x)
    index.optimize()
    q = np.random.default_rng(4).standard_normal((3, 12), dtype=np.float32)
    return index, q, words


def without_times(plan):
    return {name: value for name, value in plan.items() if not name.endswith("seconds")}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rows", [1, 3])
def test_is_what_the_longer_way_finds(name, rows):
    index, q, words = made(name)
    q = q[:rows].copy()
    index.search(q, 5, **words)  # calibrates
    got = index.search(q, 5, **words)
    want = index.search(q, 5, progress=lambda stage, share: None, **words)
    assert type(got) is knear.SearchResult
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape == (rows, 5)
        np.testing.assert_array_equal(a, b)
    assert got.certified.tolist() == want.certified.tolist()
    assert got.promised_recall == want.promised_recall
    assert got.expected_recall == want.expected_recall
    for name in ("uncertified",):
        assert list(got.plan.pop(name, [])) == list(want.plan.pop(name, []))
    assert without_times(got.plan) == without_times(want.plan)
    assert got.plan.keys() == want.plan.keys()


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine", "l1"])
def test_few_rows_of_every_metric(metric):
    index, q, _ = made("few", metric)
    for k in (1, 5, 20, 40):
        got, want = index.search(q[:1], k), index.search(q, k)
        np.testing.assert_array_equal(got.distances, want.distances[:1])
        np.testing.assert_array_equal(got.ids, want.ids[:1])


def test_every_array_has_memory_of_its_own():
    index, q, _ = made("few")
    first = index.search(q[:1], 5)
    kept = first.distances.copy(), first.ids.copy()
    second = index.search(q[1:2], 5)
    second.distances[:], second.ids[:] = -7, -7
    del index, second
    np.testing.assert_array_equal(first.distances, kept[0])
    np.testing.assert_array_equal(first.ids, kept[1])
    for array in first:
        assert array.flags.owndata and array.flags.writeable and array.flags.c_contiguous
    assert first.ids.dtype.char == "l"


def test_the_report_is_that_of_the_call():
    index, q, _ = made("few")
    found = index.search(q[:1], 5, threads=1)
    index.add(q)
    assert found.plan["rows"] == 20 and found.plan["version"] == 1 and found.plan["threads"] == 1
    assert found.plan is found.plan and 0 <= found.plan["seconds"] < 10
    assert index.search(q[:1], 5).plan["rows"] == 23
    report = {"old": 1}
    index.search(q[:1], 5, report=report)
    assert "old" not in report and report["method"] == "exact"


def test_a_result_is_copied_and_pickled_with_its_report():
    index, q, _ = made("few")
    found = index.search(q[:1], 5)
    for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found), found._replace()):
        assert type(other) is knear.SearchResult
        np.testing.assert_array_equal(other.ids, found.ids)
        assert other.plan == found.plan


@pytest.mark.parametrize("name", ["few", "lists"])
def test_arrays_of_other_kinds(name):
    index, q, words = made(name)
    want = index.search(q[:1], 5, **words)
    wide = np.zeros((1, 24), np.float32)
    wide[:, ::2] = q[:1]
    apart = np.frombuffer(b"\0" + q[:1].tobytes(), np.uint8)[1:].view(np.float32).reshape(1, 12)
    readonly = q[:1].copy()
    readonly.flags.writeable = False
    for same in (
        q[:1].astype(np.float64),
        q[:1].astype(">f4"),
        wide[:, ::2],
        np.asfortranarray(q)[:1],
        apart,
        readonly,
        q[:1].tolist(),
        np.ma.masked_array(q[:1]),
        q[:1].view(np.recarray),
    ):
        got = index.search(same, 5, **words)
        np.testing.assert_array_equal(got.distances, want.distances)
        np.testing.assert_array_equal(got.ids, want.ids)


@pytest.mark.parametrize("name", ["few", "lists"])
def test_errors_are_those_of_the_longer_way(name):
    index, q, words = made(name)
    one = q[:1]

    def message(*arguments, **options):
        with pytest.raises((knear.errors.Error, TypeError)) as caught:
            index.search(*arguments, **{**words, **options})
        return type(caught.value), str(caught.value)

    def same(*arguments, **options):
        quick = message(*arguments, **options)
        assert quick == message(*arguments, progress=lambda stage, share: None, **options)
        return quick[1]

    assert "k must be at least 1, but is 0" in same(one, 0)
    assert "k must be a whole number" in same(one, True)
    assert "k must be a whole number" in same(one, 2.0)
    assert "k must fit 64 bits" in same(one, 2**70)
    assert "11 columns" in same(one[:, :11].copy(), 5)
    assert "11 columns" in same(q[0, :11], 5)
    assert "3 dimensions" in same(q[None], 5)
    assert "nan" in same(np.full((1, 12), np.nan, np.float32), 5)
    assert "inf" in same(np.full((1, 12), np.inf, np.float32), 5)
    assert "threads" in same(one, 5, threads=-1)
    assert "threads" in same(one, 5, threads=5000)
    assert "threads" in same(one, 5, threads=1.0)
    assert "recall" in same(one, 5, recall=1.5, probes=None)
    assert "recall" in same(one, 5, recall="0.9", probes=None)
    assert "probes" in same(one, 5, probes=0)
    assert "probes" in same(one, 5, probes=400)
    assert "ef" in same(one, 5, ef=3)
    assert "refine_factor" in same(one, 5, refine_factor=2)
    assert "unexpected keyword" in same(one, 5, sample=3)
    assert "report must be a dict" in same(one, 5, report=3)


def test_a_class_of_ones_own_and_indexes_with_a_device_or_shards():
    class Own(knear.Index):
        pass

    x = np.random.default_rng(3).standard_normal((20, 12), dtype=np.float32)
    for index in (
        Own("Flat", dim=12),
        knear.Index("Flat", dim=12, device="cpu"),
        knear.Index("Flat", dim=12, shards=2),
        knear.Index("Flat", dim=12, replicas=2),
    ):
        index.add(x)
        found = index.search(x[:1], 3)
        assert found.ids[0, 0] == 0 and found.distances[0, 0] == 0
        assert found.plan["rows"] == 20
    with pytest.raises(knear.errors.InvalidArgument, match="'l3' is no device|device"):
        index.search(x[:1], 3, device="l3")


def test_an_empty_index_and_no_queries():
    index = knear.Index("Flat", dim=4)
    q = np.ones((1, 4), np.float32)
    assert index.search(q, 3).ids.tolist() == [[-1, -1, -1]]
    index.add(q)
    assert index.search(q, 3).ids.tolist() == [[0, -1, -1]]
    assert index.search(q[:0], 3).ids.shape == (0, 3)
    index.remove([0])
    assert index.search(q, 3).ids.tolist() == [[-1, -1, -1]]


def test_searches_beside_changes():
    index = knear.Index("Flat", dim=4)
    rows = np.arange(400, dtype=np.float32).reshape(100, 4)
    index.add(rows)
    wrong = []

    def search():
        for i in range(2000):
            found = index.search(rows[i % 50][None], 1)
            if found.ids[0, 0] != i % 50 or found.plan["rows"] not in (99, 100):
                wrong.append(found)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        index.remove([99])
        index.add(rows[99:], ids=[99])
    for thread in threads:
        thread.join()
    assert not wrong
