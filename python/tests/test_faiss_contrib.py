"""knear.faiss.contrib beside FAISS's: tools for searches in blocks, evaluation, lists, clustering,
factory strings and files of vectors."""

import importlib

import numpy as np
import pytest
from faiss_pair import METRICS, filled, needs_faiss, ours, same, theirs


def contrib(faiss, name):
    return importlib.import_module(f"{faiss.__name__}.contrib.{name}")


def blocks(x, size):
    return (x[begin : begin + size] for begin in range(0, len(x), size))


@pytest.mark.parametrize("metric", METRICS)
def test_searches_of_blocks(rows, metric, faiss):
    search = contrib(faiss, "exhaustive_search")
    flat = faiss.IndexFlat(12, metric)
    flat.add(rows)
    found = search.knn_ground_truth(rows[:40], blocks(rows, 700), 5, metric)
    same(flat.search(rows[:40], 5), found)
    radius = float(np.median(found[0][:, -1]))
    ranges = flat.range_search(rows[:40], radius)
    by_blocks = search.range_ground_truth(rows[:40], blocks(rows, 700), radius, metric, ngpu=0)
    evaluation = contrib(faiss, "evaluation")
    evaluation.check_ref_range_results(*ranges, *by_blocks)
    most = int(ranges[0][-1]) // 2
    radius, *fewer = search.range_search_max_results(
        flat, search.exponential_query_iterator(rows[:40], 4), radius, max_results=most
    )
    assert fewer[0][-1] <= most
    evaluation.check_ref_range_results(*flat.range_search(rows[:40], radius), *fewer)


def test_shares_of_neighbours(faiss):
    """Where there are none in both, FAISS counts one."""
    measure = contrib(faiss, "evaluation")
    a, b = np.array([[1, 2, -1, -1], [4, 5, 6, 7]]), np.array([[2, 3, -1, -1], [7, 8, 4, -1]])
    assert measure.knn_intersection_measure(a, b) == 0.5


@needs_faiss
def test_evaluations_are_those_of_faiss(rows):
    flat = ours.IndexFlatL2(12)
    flat.add(rows)
    due = flat.range_search(rows[:40], 1.5)
    coarse = filled(ours, "SQ4", 1, rows)
    found = coarse.range_search(rows[:40], 1.6)
    modules = [contrib(module, "evaluation") for module in (ours, theirs)]
    for mode in ("overall", "average"):
        for call in (
            lambda m, mode: m.range_PR(due[0], due[2], found[0], found[2], mode=mode),
            lambda m, mode: m.range_PR_multiple_thresholds(
                due[0], due[2], *found, np.array([0.1, 0.8, 1.5]), mode=mode
            ),
        ):
            a, b = (call(module, mode) for module in modules)
            np.testing.assert_allclose(a, b)
    for a, b in zip(*(m.filter_range_results(*found, 0.9) for m in modules), strict=True):
        np.testing.assert_array_equal(a, b)
    a, b = (m.sort_range_res_2(*found) for m in modules)
    np.testing.assert_array_equal(a[1], b[1])


def test_operating_points(faiss):
    evaluation = contrib(faiss, "evaluation")
    points = evaluation.OperatingPoints()
    added = [
        points.add_operating_point(*each) for each in (("a", 0.5, 1), ("b", 0.9, 1), ("c", 0.8, 2))
    ]
    assert added == [True, True, False] and points.operating_points == [("b", 0.9, 1)]
    ranges = evaluation.OperatingPointsWithRanges()
    ranges.add_range("nprobe", [1, 2, 4])
    ranges.add_range("k_factor", [1, 2])
    assert ranges.num_experiments() == 6 and sorted(ranges.sample_experiments(0)) == list(range(6))
    key = ranges.cno_to_key(4)
    assert ranges.get_parameters(key) == {"nprobe": 2, "k_factor": 2}
    assert ranges.compare_keys(key, ranges.do_nothing_key()) == 1
    ranges.add_operating_point(ranges.do_nothing_key(), 0.6, 3)
    assert ranges.predict_bounds(key) == (1, 3)
    ranges.restrict_range("nprobe", 3)
    assert ranges.num_experiments() == 4


def test_timers(faiss):
    timer = contrib(faiss, "evaluation").RepeatTimer(warmup=1, runs=3)
    assert sum(1 for _ in timer) == 3 and timer.nruns() == 2 and timer.ms() >= 0


@pytest.mark.parametrize("string", ["IVF20,Flat", "IVF20,SQ8", "PCA8,IVF20,SQ8"])
def test_tools_for_lists(rows, string, faiss):
    tools, inspect = contrib(faiss, "ivf_tools"), contrib(faiss, "inspect_tools")
    index = filled(faiss, string, 1, rows)
    lists = faiss.extract_index_ivf(index)
    lists.nprobe = 4
    x = index.chain.at(0).apply(rows[:30]) if "PCA" in string else rows[:30]
    near, numbers = lists.quantizer.search(x, 4)
    found = index.search(rows[:30], 5)
    same(found, tools.search_preassigned(index, rows[:30], 5, numbers, near))
    tools.sort_invlists_by_size(lists)
    sizes = inspect.get_invlist_sizes(lists.invlists)
    assert (np.diff(sizes) >= 0).all() and sizes.sum() == 3000
    same(found, index.search(rows[:30], 5))
    ids, codes = inspect.get_invlist(lists.invlists, 19)
    assert len(ids) == sizes[19] and codes.shape == (sizes[19], lists.code_size)


@pytest.mark.parametrize("method", ["knn_function", "pairwise_distances", "index"])
@pytest.mark.parametrize("metric", METRICS)
def test_big_batches(rows, method, metric, tmp_path):
    search = contrib(ours, "big_batch_search").big_batch_search
    index = filled(ours, "IVF20,SQ8", metric, rows)
    index.nprobe = 4
    same(index.search(rows[:300], 5), search(index, rows[:300], 5, method=method))
    saved = str(tmp_path / "so_far")
    options = {"checkpoint": saved, "checkpoint_freq": 0}
    with pytest.raises(ZeroDivisionError):
        search(index, rows[:300], 5, method=method, crash_at=9, **options)
    same(index.search(rows[:300], 5), search(index, rows[:300], 5, method=method, **options))


def test_clustering_of_contrib(rows, faiss):
    clustering = contrib(faiss, "clustering")
    km = faiss.Kmeans(12, 40)
    km.train(rows)
    least = faiss.knn(rows, km.centroids, 1)[0].sum()
    two_levels, _ = clustering.two_level_clustering(rows, 6, 40)
    by_itself = clustering.kmeans(40, clustering.DatasetAssign(rows), 15, verbose=False)
    for centroids in (two_levels, by_itself):
        assert centroids.shape == (40, 12)
        assert faiss.knn(rows, centroids, 1)[0].sum() < 1.3 * least
    numbers, stats = clustering.balanced_assignment_with_penalties(rows, km.centroids, maxk=20)
    assert stats["imf"] < clustering.imbalance_factor(40, km.assign(rows)[1])
    assert stats["binsize_max"] == np.bincount(numbers).max()
    index = faiss.index_factory(12, "PCA8,IVF30,SQ8")
    clustering.train_ivf_index_with_2level(index, rows)
    index.add(rows)
    assert index.is_trained and index.search(rows[:5], 1)[1].ravel().tolist() == list(range(5))


def test_strings_of_indexes(faiss):
    tools = contrib(faiss, "factory_tools")
    for string, size in (
        ("Flat", 48),
        ("IVF32,Flat,Refine(PQ4x6)", 51),
        ("PCA8,SQ4", 4),
        ("IVF32,PQ4x4", 2),
        ("SQfp16,RFlat", 72),
        ("HNSW16", 48 + 128),
        ("IVF64_HNSW16,PQ4x8", 4),
    ):
        assert tools.get_code_size(12, string) == size
    for string in (
        "Flat",
        "IVF32,SQ8",
        "PQ4x6",
        "IDMap2,SQ4",
        "OPQ4_8,IVF16,PQ4x8",
        "SQ6,Refine(Flat)",
    ):
        assert tools.reverse_index_factory(faiss.index_factory(12, string)) == string


def test_files_of_vectors(rows, tmp_path, faiss):
    files = contrib(faiss, "vecs_io")
    name = str(tmp_path / "a.fvecs")
    files.fvecs_write(name, rows)
    np.testing.assert_array_equal(files.fvecs_read(name), rows)
    np.testing.assert_array_equal(files.fvecs_mmap(name)[7], rows[7])


def test_data_sets_are_those_of_faiss(faiss):
    data = contrib(faiss, "datasets").SyntheticDataset(8, 200, 100, 20)
    data.check_sizes()
    assert sum(len(block) for block in data.database_iterator(bs=7)) == 100
    np.testing.assert_array_equal(
        np.vstack(list(data.database_iterator(split=(3, 1)))), data.xb[33:66]
    )
