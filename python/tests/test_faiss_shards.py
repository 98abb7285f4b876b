"""knear.faiss: several indexes as one, IndexShards and IndexReplicas."""

import numpy as np
import pytest
from faiss_pair import METRICS, needs_faiss, ours, refused, same, theirs


def equal(a, b):
    for got, wanted in zip(a, b, strict=True):
        np.testing.assert_array_equal(got, wanted)


def shards(faiss, strings, rows, *arguments, metric=1):
    index = faiss.IndexShards(12, *arguments)
    for string in strings:
        index.add_shard(faiss.index_factory(12, string, metric))
    if not index.is_trained:
        index.train(rows)
    return index


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("string", ["Flat", "IVF20,Flat", "SQ8", "PCA8,Flat"])
def test_shards_answer_as_one_index(rows, faiss, string, metric, threaded):
    index = shards(faiss, [string] * 3, rows, threaded, True, metric=metric)
    index.add(rows)
    assert index.ntotal == 3000 and index.count() == 3 and index.at(1).ntotal == 1000
    one = faiss.index_factory(12, string, metric)
    one.train(rows)
    one.add(rows)
    for k in (1, 10):
        same(index.search(rows[:40], k), one.search(rows[:40], k))
    with refused():  # ids would move
        index.add(rows)
    with refused():
        index.add_with_ids(rows, np.arange(3000))
    index.reset()
    assert index.ntotal == 0 and (index.search(rows[:2], 3)[1] == -1).all()


@needs_faiss
def test_shards_beside_faiss(rows):
    pair = []
    for faiss in (ours, theirs):
        # One after another: FAISS's shards share a selector that IndexIDMap exchanges meanwhile.
        index = shards(faiss, ["IDMap2,Flat", "IDMap2,Flat"], rows, False, False)
        index.add(rows[:101])
        index.add_with_ids(rows[200:300], np.arange(100) * 5 + 1000)
        pair.append(index)
    assert [index.at(0).ntotal for index in pair] == [100, 100]
    same(pair[0].search(rows[:20], 6), pair[1].search(rows[:20], 6))
    both = [
        index.search(rows[:20], 6, params=faiss.SearchParameters(sel=faiss.IDSelectorRange(9, 40)))
        for index, faiss in zip(pair, (ours, theirs), strict=True)
    ]
    same(*both)


def test_what_shards_refuse(rows, faiss):
    index = shards(faiss, ["Flat", "Flat"], rows)
    with refused():
        index.add_shard(faiss.IndexFlatL2(13))
    with refused():
        index.add_shard(faiss.IndexFlatIP(12))
    with refused():
        index.add_shard(index.at(0))
    first = index.at(0)
    first.add(rows[:10])
    index.at(1).add(rows[10:30])
    index.syncWithSubIndexes()
    assert index.ntotal == 30
    assert index.search(rows[:30], 1)[1].ravel().tolist() == list(range(30))
    index.remove_shard(first)
    assert index.ntotal == 20
    unsized = faiss.IndexShards(True, False)
    unsized.add_shard(faiss.IndexFlatIP(5))
    assert (unsized.d, unsized.metric_type) == (5, faiss.METRIC_INNER_PRODUCT)


def test_without_shards(rows):
    """FAISS crashes here."""
    for index in (ours.IndexShards(12), ours.IndexReplicas(12)):
        for call in (lambda i=index: i.search(rows, 3), lambda i=index: i.add(rows)):
            with refused("no (shard|replica)"):
                call()
        with refused("no (shard|replica) 0"):
            index.at(0)
    with pytest.raises(TypeError):
        ours.IndexShards(12, True, False, 3)
    with pytest.raises(TypeError, match="sharded"):
        ours.IndexShards(12, sharded=True)


def test_selectors_are_of_the_ids_of_all(rows):
    """FAISS takes them for those of each shard."""
    index = shards(ours, ["Flat"] * 3, rows)
    index.add(rows)
    one = ours.IndexFlatL2(12)
    one.add(rows)
    params = ours.SearchParameters(sel=ours.IDSelectorRange(900, 1100))
    for a, b in zip(
        index.search(rows[:30], 5, params=params),
        one.search(rows[:30], 5, params=params),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_ties_are_those_of_one_index():
    """Distances that float32 cannot tell apart, and equal ones, in other shards."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 3, (300, 12)).astype(np.float32)
    x[:100] *= np.float32(1 + 1e-7)  # a bit more than the whole number
    x[200:] += np.float32(3e-8)
    for string in ("Flat", "IVF1,Flat"):
        index = shards(ours, [string] * 3, x)
        index.add(x)
        one = ours.index_factory(12, string)
        one.train(x)
        one.add(x)
        for k in (1, 5, 60):
            equal(index.search(x[:50], k), one.search(x[:50], k))


def test_what_shards_can_beyond_faiss(rows):
    index = shards(ours, ["Flat"] * 3, rows, True)
    index.add(rows)
    one = ours.IndexFlatL2(12)
    one.add(rows)
    for a, b in zip(
        index.range_search(rows[:20], 1.0), one.range_search(rows[:20], 1.0), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(
        index.reconstruct_batch([0, 999, 1000, 2999]), rows[[0, 999, 1000, 2999]]
    )
    with refused("not in the index"):
        index.reconstruct(3000)
    found = index.search_and_reconstruct(rows[:5], 3)
    np.testing.assert_array_equal(found[2], rows[found[1]])
    gone = np.arange(0, 3000, 7)
    assert index.remove_ids(gone) == one.remove_ids(gone) == len(gone)
    same(index.search(rows[:20], 5), one.search(rows[:20], 5))


@pytest.mark.parametrize("threaded", [False, True])
def test_replicas(rows, faiss, threaded):
    index = faiss.IndexReplicas(12, threaded)
    kept = [faiss.IndexFlatL2(12), faiss.IndexFlatL2(12)]  # which FAISS does not
    for replica in kept:
        index.add_replica(replica)
    index.add(rows)
    assert index.ntotal == index.at(1).ntotal == 3000
    one = faiss.IndexFlatL2(12)
    one.add(rows)
    for queries in (rows[:1], rows[:33]):
        same(index.search(queries, 4), one.search(queries, 4))
    np.testing.assert_array_equal(index.reconstruct(7), rows[7])
    for columns in (12, 11):  # one that is empty, and one of other columns
        other = faiss.IndexFlatL2(columns)
        with refused():
            index.add_replica(other)
    index.reset()
    assert index.ntotal == 0


def test_what_replicas_can_beyond_faiss(rows):
    index = ours.IndexReplicas(12)
    for _ in range(2):
        index.add_replica(ours.IndexFlatL2(12))
    index.add(rows)
    one = ours.IndexFlatL2(12)
    one.add(rows)
    for a, b in zip(
        index.range_search(rows[:9], 1.0), one.range_search(rows[:9], 1.0), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert index.remove_ids(np.arange(5)) == 5 and index.ntotal == 2995
    index.at(0).add(rows[:1])
    with refused(r"other numbers of vectors: \[2996, 2995\]"):
        index.search(rows, 3)


def test_an_error_names_the_shard(rows):
    index = ours.IndexShards(12)
    index.add_shard(ours.IndexFlatL2(12))
    index.add_shard(ours.index_factory(12, "IVF20,Flat"))
    with refused("shard 1: "):
        index.add(rows)
