"""knear.Index(shards=, replicas=): the answers of one index, files, and shards that are missing."""

import copy
import os
import pickle

import numpy as np
import pytest

import knear


def filled(x, **parts):
    index = knear.Index("Flat", dim=x.shape[1], **parts)
    index.add(x)
    return index


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("factory", ["Flat", "IVF16,Flat", "IVF16,PQ4"])
def test_answers_are_those_of_one_index(rows, factory, metric):
    one = knear.Index(factory, dim=12, metric=metric)
    all_ = knear.Index(factory, dim=12, metric=metric, shards=3, replicas=2)
    assert (one.shards, one.replicas, all_.shards, all_.replicas) == (1, 1, 3, 2)
    own = np.arange(1000) * 3 + 5000
    for index in (one, all_):
        if not index.is_trained:
            index.train(rows)
        index.add(rows[:2000])
        index.add(rows[2000:], own)
        index.remove(np.arange(0, 2000, 9))
        index.replace(own[:50], rows[:50])
    assert all_.factory == one.factory and len(all_) == len(one)
    np.testing.assert_array_equal(all_.ids, one.ids)
    assert all_.shard_sizes.sum() == len(one) and one.shard_sizes.tolist() == [len(one)]
    probes = {"probes": 4} if one.lists else {}
    allowed = one.ids[::3]
    for options in ({}, {"filter": allowed}, {"threads": 2}, {"threads": 1, "filter": allowed}):
        found = all_.search(rows[:400], 7, **probes, **options)
        wanted = one.search(rows[:400], 7, **probes, **options)
        np.testing.assert_array_equal(found.ids, wanted.ids)
        np.testing.assert_array_equal(found.distances, wanted.distances)
        np.testing.assert_array_equal(found.certified, wanted.certified)
        assert found.promised_recall == wanted.promised_recall
        assert found.plan["shards"] == 3 and "shards" not in wanted.plan
    if metric == "l2":
        within = all_.range_search(rows[:50], 1.0, **probes)
        for got, expected in zip(within, one.range_search(rows[:50], 1.0, **probes), strict=True):
            np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(all_.reconstruct(own[:60]), one.reconstruct(own[:60]))
    assert own[3] in all_ and 4999 not in all_


def test_distances_are_merged_before_they_are_rounded():
    x = 1 - 1e-12 * np.arange(60)[:, None] * np.ones(3)
    distances, ids = filled(x, shards=3).search(np.zeros((1, 3)), 50)
    assert ids[0].tolist() == list(range(59, 9, -1))
    assert distances[0, 0] == distances[0, -1]


@pytest.fixture
def groups(monkeypatch):
    """Two groups of processors, between which queries are divided; without them they are not."""
    first, *_, last = sorted(os.sched_getaffinity(0))
    if first == last:
        pytest.skip("one processor is no two groups")
    monkeypatch.setenv("KNEAR_CPU_GROUPS", f"{first}:{last}")


def test_plan_tells_of_the_parts(rows, groups):
    index = filled(rows, shards=2, replicas=2)
    plan = index.search(rows, 5, threads=2).plan
    assert (plan["shards"], plan["replicas"], plan["rows"]) == (2, 2, 3000)
    assert 0 <= plan["merge_seconds"] <= plan["seconds"]
    assert "unsearched_rows" not in plan
    assert index.missing_shards == []


def test_files_and_copies(rows, tmp_path, groups):
    index = filled(rows, shards=3, replicas=2)
    path = tmp_path / "base.knear"
    index.save(path)
    assert len(list(tmp_path.iterdir())) == 4
    wanted = index.search(rows[:20], 5)
    for other in (
        knear.Index.load(path),
        knear.Index.load(str(path), replicas=1),
        pickle.loads(pickle.dumps(index)),
        copy.deepcopy(index),
    ):
        np.testing.assert_array_equal(other.search(rows[:20], 5).ids, wanted.ids)
        assert (other.shards, other.shard_sizes.tolist()) == (3, [1000, 1000, 1000])
    assert knear.Index.load(path).replicas == 2
    assert knear.Index.load(path, replicas=5).replicas == 5
    index.add(rows[:10])
    index.save(path)  # and takes the files of before away
    assert len(list(tmp_path.iterdir())) == 4 and len(knear.Index.load(path)) == 3010
    one = tmp_path / "one.knear"
    filled(rows).save(one)
    assert knear.Index.load(one, replicas=2).search(rows, 3, threads=2).plan["replicas"] == 2
    with pytest.raises(knear.InvalidArgument, match=r"allow_partial .* is one file"):
        knear.Index.load(one, allow_partial=True)


def test_a_missing_shard_is_named(rows, tmp_path):
    path = tmp_path / "base.knear"
    filled(rows, shards=3).save(path)
    lost = sorted(tmp_path.glob("*.1.shard"))[0]
    data = lost.read_bytes()
    for damage in (lambda: lost.unlink(), lambda: lost.write_bytes(data[:-4096])):
        damage()
        with pytest.raises((knear.IoError, knear.CorruptFile), match=lost.name) as raised:
            knear.Index.load(path)
        assert "\n" not in str(raised.value)
    index = knear.Index.load(path, allow_partial=True)
    assert index.missing_shards == [lost.name] and len(index) == 2000
    found = index.search(rows[:10], 5)
    assert found.plan["unsearched_rows"] == 1000
    assert found.plan["unsearched_shards"] == [lost.name] and lost.name in found.plan["note"]
    assert found.promised_recall == 0 and not found.certified.any()
    assert not np.isin(found.ids, np.arange(1000, 2000)).any()
    for change in (lambda: index.add(rows[:1]), lambda: index.save(path)):
        with pytest.raises(knear.InvalidArgument, match=lost.name):
            change()


def test_merging(rows):
    index, other = filled(rows[:100], shards=2), filled(rows[100:200], shards=3)
    index.merge(other, "shifted")
    index.merge(filled(rows[200:220]), "shifted")
    np.testing.assert_array_equal(index.ids, np.arange(220))
    np.testing.assert_array_equal(
        index.search(rows[:50], 5).ids, knear.knn(rows[:50], rows[:220], 5).ids
    )
    with pytest.raises(knear.InvalidArgument, match="holds id 0"):
        index.merge(other)
    one = filled(rows[:10])  # which is not in shards
    one.merge(other, "shifted")
    one.merge(filled(rows[10:30], replicas=2), "shifted")
    np.testing.assert_array_equal(one.ids, np.arange(130))


def test_faiss_gets_all_of_them(rows, tmp_path):
    index = filled(rows, shards=3)
    index.write_faiss(tmp_path / "x.faiss")
    one = knear.Index.load(tmp_path / "x.faiss")
    assert one.shards == 1
    np.testing.assert_array_equal(one.search(rows[:9], 4).ids, index.search(rows[:9], 4).ids)


@pytest.mark.parametrize("name", ["shards", "replicas"])
def test_numbers_out_of_range(name):
    for value in (0, -1, 4097):
        with pytest.raises(
            knear.InvalidArgument, match=f"{name} must be between 1 and 4096.*{value}"
        ):
            knear.Index("Flat", dim=3, **{name: value})
    with pytest.raises(knear.InvalidArgument, match=name):
        knear.Index("Flat", dim=3, **{name: 1.5})


def test_replicas_of_a_file_out_of_range(rows, tmp_path):
    for parts in ({}, {"shards": 2}):
        filled(rows, **parts).save(tmp_path / "x.knear")
        for value in (0, 4097):
            with pytest.raises(knear.InvalidArgument, match=f"replicas .*{value}"):
                knear.Index.load(tmp_path / "x.knear", replicas=value)
