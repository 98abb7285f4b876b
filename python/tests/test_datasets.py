"""knear.datasets: the answers of brute force for columns of datasets, and what goes wrong."""

import copy
import doctest
import pickle
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from conftest import brute_force

datasets = pytest.importorskip("datasets", reason="knear.datasets needs datasets")

import knear.datasets as ours

import knear

ROWS, DIM, K = 300, 8, 6


@pytest.fixture
def x(rng):
    return rng.standard_normal((ROWS, DIM)).astype(np.float32)


def dataset_of(x, length=-1, dtype=None):
    kind = datasets.List(datasets.Value(dtype or str(x.dtype)), length=length)
    features = datasets.Features({"row": datasets.Value("int64"), "x": kind})
    return datasets.Dataset.from_dict({"row": range(len(x)), "x": list(x)}, features=features)


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("length", [-1, DIM])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8, np.uint8])
def test_answers_are_those_of_brute_force(x, metric, length, dtype):
    x = (np.abs(x) * 20).astype(dtype)
    dataset = dataset_of(x, length)
    assert ours.add_index(dataset, "x", metric=metric, batch_size=77) is dataset
    distances, ids = brute_force(x[:4], x, K, metric)
    total = dataset.search_batch("x", x[:4], K)
    np.testing.assert_array_equal(total.total_indices, ids)
    np.testing.assert_allclose(total.total_scores, distances, rtol=1e-6, atol=1e-6)
    batch = dataset.get_nearest_examples_batch("x", x[:4], K)
    for row in range(4):
        for query in (x[row], x[row : row + 1], x[row].tolist()):
            scores, indices = dataset.search("x", query, K)
            np.testing.assert_array_equal(indices, ids[row])
            np.testing.assert_array_equal(scores, total.total_scores[row])
        found = dataset.get_nearest_examples("x", x[row], K)
        assert found.examples["row"] == ids[row].tolist()
        assert batch.total_examples[row]["row"] == ids[row].tolist()
        np.testing.assert_array_equal(found.scores, batch.total_scores[row])


def test_faiss_of_datasets_finds_the_same(x):
    pytest.importorskip("faiss", reason="needs faiss-cpu")
    dataset = dataset_of(x).with_format("numpy", dtype=np.float32)
    dataset.add_faiss_index("x", index_name="theirs")
    ours.add_index(dataset, "x")
    assert dataset.list_indexes() == ["theirs", "x"]
    for k in (1, 5, ROWS + 5):
        theirs = dataset.search_batch("theirs", x[:9], k)
        found = dataset.search_batch("x", x[:9], k)
        np.testing.assert_array_equal(found.total_indices, theirs.total_indices)
        real = theirs.total_indices >= 0
        np.testing.assert_allclose(
            found.total_scores[real], theirs.total_scores[real], rtol=1e-4, atol=1e-4
        )
        one, other = (dataset.get_nearest_examples(name, x[3], k) for name in ("theirs", "x"))
        assert len(one.scores) == len(other.scores) == min(k, ROWS)
        np.testing.assert_array_equal(one.examples["row"], other.examples["row"])


def test_more_than_there_are(x):
    dataset = ours.add_index(dataset_of(x[:5]), "x")
    scores, indices = dataset.search("x", x[0], 8)
    assert indices[5:].tolist() == [-1] * 3 and np.isinf(scores[5:]).all()
    scores, examples = dataset.get_nearest_examples("x", x[0], k=8)
    assert len(scores) == 5 and sorted(examples["row"]) == list(range(5))
    scores, examples = dataset.get_nearest_examples("x", x[0], k=8, filter=[4, 2])
    assert len(scores) == 2 and sorted(examples["row"]) == [2, 4]
    scores, examples = dataset.get_nearest_examples("x", x[0], filter=[])
    assert len(scores) == 0 and len(examples["row"]) == 0


def test_the_order_and_format_of_the_dataset_are_kept_to(x):
    shuffled = dataset_of(x).shuffle(seed=3).select(range(0, ROWS, 2))
    order = np.array(shuffled["row"])
    assert (np.diff(order) < 0).any()
    for kind in (None, "numpy", "arrow"):
        dataset = ours.add_index(shuffled.with_format(kind), "x", batch_size=40)
        _, places = brute_force(x[:3], x[order], K, "l2")
        for row in range(3):
            np.testing.assert_array_equal(dataset.search("x", x[row], K).indices, places[row])
            found = dataset.get_nearest_examples("x", x[row], K).examples
            rows = found["row"].to_pylist() if kind == "arrow" else found["row"]
            np.testing.assert_array_equal(rows, order[places[row]])


def test_an_index_that_learns(x):
    dataset = dataset_of(x)
    ours.add_index(dataset, "x", "lists", factory="IVF8,Flat", batch_size=50)
    _, ids = brute_force(x[:20], x, K, "l2")
    for options in ({"probes": 8}, {"recall": 1}):
        found = dataset.search_batch("lists", x[:20], K, **options)
        np.testing.assert_array_equal(found.total_indices, ids)
    assert (dataset.search_batch("lists", x[:20], K, probes=1).total_indices != ids).any()
    with pytest.raises(knear.InvalidArgument, match="neither probes nor recall"):
        dataset.search("lists", x[0])
    examples = dataset.get_nearest_examples_batch("lists", x[:20], K, recall=1).total_examples
    assert [each["row"] for each in examples] == ids.tolist()
    # Learning from some of them, drawn from everywhere: a sample of the first rows would have
    # nothing near the last.
    far = x.copy()
    far[150:] += 1000
    dataset = ours.add_index(dataset_of(far), "x", factory="IVF2,Flat", train_size=100)
    centres = dataset.get_index("x").index.centroids
    assert (centres.mean(axis=1) > 900).sum() == 1
    for size, text in (
        (0, "train_size must be from 1 to 300, but is 0"),
        (301, "train_size must be from 1 to 300, but is 301"),
        (7, "column 'x', rows .*: vectors are 7 rows, but training 8 lists"),
    ):
        with pytest.raises(knear.InvalidArgument, match=text):
            ours.add_index(dataset, "x", factory="IVF8,Flat", train_size=size)
    with pytest.raises(knear.InvalidArgument, match="train_size is 7, but index Flat learns noth"):
        ours.add_index(dataset, "x", train_size=7)
    dataset = ours.add_index(dataset_of(x), "x", factory="auto")
    assert len(dataset.get_index("x")) == ROWS


def test_vectors_that_are_no_column(x):
    dataset = dataset_of(x).remove_columns("x")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    halves = x.astype(ml_dtypes.bfloat16)
    for name, rows in (("f32", x), ("bf16", halves), ("list", x.tolist()), ("columns", x.T.T)):
        ours.add_index_from_external_arrays(dataset, rows, name, batch_size=64)
        values = np.asarray(rows).astype(np.float64)
        _, ids = brute_force(x[:5], values, K, "l2")
        np.testing.assert_array_equal(dataset.search_batch(name, x[:5], K).total_indices, ids)
    for bad in (x[:9], x[0], [[1.0]]):
        with pytest.raises(knear.ShapeMismatch, match="external_arrays have shape .* 300 rows"):
            ours.add_index_from_external_arrays(dataset, bad, "bad")
    bad = x.copy()
    bad[200, 3] = np.nan
    with pytest.raises(knear.InvalidArgument, match="external_arrays, rows 192:256: vectors must"):
        ours.add_index_from_external_arrays(dataset, bad, "bad", batch_size=64)
    assert dataset.list_indexes() == ["f32", "bf16", "list", "columns"]


def test_what_is_refused_leaves_the_dataset_as_it_was():
    columns = {
        "null": [[1.0, 2.0], None],
        "ragged": [[1.0, 2.0], [1.0]],
        "number": [1, 2],
        "text": ["a", "b"],
        "deep": [[[1.0, 2.0]], [[1.0, 2.0]]],
        "hole": [[1.0, 2.0], [1.0, None]],
        "nan": [[1.0, 2.0], [1.0, np.nan]],
        "empty": [[], []],
        "words": [["a"], ["b"]],
        "good": [[1.0, 2.0], [2.0, 1.0]],
    }
    dataset = ours.add_index(datasets.Dataset.from_dict(columns), "good")
    for column, words, text in (
        ("null", {}, "column 'null', rows 0:2: vectors have 1 rows without a value"),
        ("null", {"batch_size": 1}, "column 'null', rows 1:2: vectors have 1 rows without"),
        ("ragged", {}, "column 'ragged', rows 0:2: vectors have 2 columns in row 0, but 1 in"),
        ("ragged", {"batch_size": 1}, "column 'ragged', rows 1:2: vectors have 1 columns, index"),
        ("number", {}, "column 'number', rows 0:1: vectors are a column of int64"),
        ("text", {}, "column 'text', rows 0:1: vectors are a column of string"),
        ("deep", {}, "column 'deep', rows 0:2: x must not have elements of type object"),
        ("hole", {}, "column 'hole', rows 0:2: vectors have 1 elements without a value"),
        ("nan", {}, "column 'nan', rows 0:2: vectors must be finite, but row 1 column 1 is nan"),
        ("empty", {}, "dim"),
        ("words", {}, "elements of type"),
        ("none", {}, "column 'none' is none of the dataset's: 'null', 'ragged', "),
        (7, {}, "column must be text, but is 7"),
        ("good", {"index_name": 7}, "index_name must be text, but is 7"),
        ("good", {"batch_size": 0}, "batch_size must be at least 1, but is 0"),
        (
            "good",
            {"metric": "l3"},
            "metric must be one of l2, ip, cosine, l1, hamming, but is 'l3'",
        ),
        ("good", {"factory": "none"}, "factory 'none'"),
    ):
        with pytest.raises(ValueError, match=text) as caught:
            ours.add_index(dataset, column, **words)
        assert isinstance(caught.value, knear.Error)
        assert dataset.list_indexes() == ["good"]
    with pytest.raises(TypeError, match="colour"):
        ours.add_index(dataset, "good", colour=1)
    for bad in (None, {"good": [[1.0]]}, dataset.to_iterable_dataset()):
        with pytest.raises(knear.InvalidArgument, match="dataset must be a datasets.Dataset"):
            ours.add_index(bad, "good")
    with pytest.raises(knear.InvalidArgument, match="the dataset has no rows"):
        ours.add_index(dataset_of(np.zeros((0, 2), np.float32)), "x")
    for query, k, options, kind, text in (
        ([1.0, 2.0], 0, {}, knear.InvalidArgument, "k must be at least 1"),
        ([1.0], 1, {}, knear.ShapeMismatch, "queries have 1 columns, index has 2"),
        (np.eye(2), 1, {}, knear.InvalidArgument, r"query must be one vector.* shape \(2, 2\)"),
        ([1.0, 2.0], 1, {"nprobe": 3}, TypeError, "unexpected keyword argument 'nprobe'"),
        ([1.0, np.nan], 1, {}, knear.InvalidArgument, "queries must be finite"),
        ([1.0, 2.0], 1, {"filter": [5]}, knear.InvalidArgument, "filter holds id 5"),
    ):
        with pytest.raises(kind, match=text):
            dataset.search("good", query, k, **options)
        with pytest.raises(kind):
            dataset.get_nearest_examples("good", query, k, **options)
    with pytest.raises(datasets.search.MissingIndex):
        dataset.search("none", [1.0, 2.0])


def test_a_version_that_keeps_its_indexes_elsewhere_is_refused(x):
    dataset = dataset_of(x)
    del dataset._indexes
    for call in (
        lambda: ours.add_index(dataset, "x"),
        lambda: ours.load_index(dataset, "x", "none"),
        lambda: ours.save_index(dataset, "x", "none"),
    ):
        with pytest.raises(knear.InvalidArgument, match="keeps its indexes elsewhere"):
            call()


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat"])
def test_what_was_saved_is_loaded(x, tmp_path, factory):
    dataset = ours.add_index(dataset_of(x), "x", factory=factory, metric="cosine")
    options = {"probes": 1} if factory != "Flat" else {}
    want = dataset.search_batch("x", x[:9], K, **options)
    file = tmp_path / "x.knear"
    ours.save_index(dataset, "x", file)
    dataset.get_index("x").save(tmp_path / "same.knear")
    for path in (file, str(file), tmp_path / "same.knear"):
        other = ours.load_index(dataset_of(x), "another", path)
        found = other.search_batch("another", x[:9], K, **options)
        np.testing.assert_array_equal(found.total_indices, want.total_indices)
        np.testing.assert_array_equal(found.total_scores, want.total_scores)
    assert len(ours.KnearIndex.load(file)) == ROWS
    short = dataset_of(x[:9])
    with pytest.raises(knear.ShapeMismatch, match="has 300 vectors, but the dataset 9 rows"):
        ours.load_index(short, "x", file)
    gaps = knear.Index("Flat", dim=DIM)
    gaps.add(x[:9], ids=np.arange(1, 10))
    gaps.save(file)
    with pytest.raises(knear.ShapeMismatch, match="has 9 vectors, but the dataset 9 rows, whose"):
        ours.load_index(short, "x", file)
    with pytest.raises(knear.IoError):
        ours.load_index(short, "x", tmp_path / "none.knear")
    file.write_bytes(b"no index")
    with pytest.raises(knear.CorruptFile):
        ours.load_index(short, "x", file)
    assert short.list_indexes() == []
    with pytest.raises(datasets.search.MissingIndex):
        ours.save_index(short, "x", file)


def test_indexes_of_others_are_not_saved(x, tmp_path):
    dataset = dataset_of(x)
    dataset._indexes["x"] = datasets.search.BaseIndex()
    with pytest.raises(knear.InvalidArgument, match="index_name 'x' is a BaseIndex, not one of"):
        ours.save_index(dataset, "x", tmp_path / "x.knear")
    with pytest.raises(knear.InvalidArgument, match="index must be a knear.Index, but is list"):
        ours.KnearIndex([])


def test_copies_of_the_dataset_have_the_same_index(x):
    dataset = ours.add_index(dataset_of(x), "x")
    index = dataset.get_index("x")
    for other in (dataset.with_format("numpy"), copy.deepcopy(dataset), copy.copy(dataset)):
        assert other.get_index("x") is index
    other = pickle.loads(pickle.dumps(dataset))
    assert other.search("x", x[3], 1).indices.tolist() == [3]
    dataset.drop_index("x")
    assert dataset.list_indexes() == [] and other.list_indexes() == ["x"]


def test_a_column_is_not_read_as_a_whole(rng):
    rows, dim = 20_000, 64
    x = rng.standard_normal((rows, dim)).astype(np.float32)
    dataset = dataset_of(x, dim)
    tracemalloc.start()
    ours.add_index(dataset, "x", batch_size=500)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 5  # of what Python and NumPy take; a list of floats would be 8 times
    assert dataset.search("x", x[77], 1).indices.tolist() == [77]


def test_datasets_is_imported_with_its_module_alone():
    code = "import sys, knear; assert not {'datasets', 'pyarrow', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys; sys.modules['datasets'] = None; import knear.datasets"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install ".[datasets]" in a clone of knear' in done.stderr


def test_the_examples_of_the_docstrings_run():
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    for name in ours.__all__:
        assert getattr(ours, name).__doc__
        for test in finder.find(getattr(ours, name), name, globs={}):
            runner.run(test)
    assert runner.summarize().failed == 0 and runner.tries > 5
