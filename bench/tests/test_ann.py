"""ann-benchmarks' protocol: what is submitted runs as there, and bench/ann measures by it."""

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from test_bench import BENCH, run
from test_chart import legible

for package in ("knear", "h5py", "yaml", "threadpoolctl"):
    pytest.importorskip(package, reason=f"bench/ann needs {package}")

import h5py
import yaml

sys.path.insert(0, str(BENCH))
from support import ann_protocol, sets, synthetic, truth
from support.ann_protocol import Definition

import knear

COUNT = 10
SMALL = 32  # lists, where the configuration has more than these rows bear


def data_of(metric: str, rows=3000, queries=40, dim=24) -> ann_protocol.Data:
    both = synthetic.unit(rows + queries, dim, 3) * np.float32(3)  # angular: not of length 1
    train, test = both[:rows].copy(), both[rows:].copy()
    train[-5:] = train[:5]  # ties
    test[:5] = train[:5]
    ids = knear.knn(test, train, 50, {"euclidean": "l2", "angular": "cosine"}[metric]).ids
    distances = [
        ann_protocol.distances_to(q, train[near], metric) for q, near in zip(test, ids, strict=True)
    ]
    return ann_protocol.Data("small", metric, train, test, ids, np.array(distances, np.float32))


def config() -> dict:
    return yaml.safe_load((ann_protocol.WRAPPER / "config.yml").read_text())


def definitions(metric: str, dimension: int, lists: int | None = None) -> list[Definition]:
    """Those of config.yml; with `lists`, the ones with 256 lists, with so many instead."""
    made = ann_protocol.definitions_of(config(), metric, dimension, COUNT)
    if lists is None:
        return made
    out = []
    for one in made:
        *first, factory = one.arguments
        if factory.startswith("IVF") and not factory.startswith("IVF256,"):
            continue
        queries = one.query_arguments
        if "probes" in arguments_of(one):
            queries = [given for given in queries if given[0] <= lists]
        factory = factory.replace("IVF256", f"IVF{lists}")
        out.append(one._replace(arguments=[*first, factory], query_arguments=queries))
    return out


def arguments_of(definition: Definition) -> tuple[str, ...]:
    return ann_protocol.instantiate(definition).arguments


def test_combinations_are_those_of_the_framework():
    product = ann_protocol.product_of
    assert product(["Flat"]) == [["Flat"]]
    assert product([[1, 2], [3]]) == [[1, 3], [2, 3]]
    assert product([[1, 2], 3]) == [[1, 3], [2, 3]]
    assert product([[[1, 2], [3, 4]]]) == [[[1, 2]], [[3, 4]]]
    assert product({"M": [4, 8], "ef": 9}) == [{"M": 4, "ef": 9}, {"M": 8, "ef": 9}]
    algorithm = {
        "name": "a",
        "module": "m.a",
        "constructor": "A",
        "base_args": ["@metric", {"k": "@count"}],
        "run_groups": {
            "x": {"arg_groups": [{"M": [4, 8]}, [1, 2]], "query_arg_groups": [[5, 6], []]},
            "y": {"args": {"M": [4, 8]}},
        },
    }
    off = {**algorithm, "name": "off", "disabled": True}
    made = ann_protocol.definitions_of({"float": {"angular": [algorithm, off]}}, "angular", 7, 3)
    first = ["angular", {"k": 3}]
    assert [one.arguments[:2] for one in made] == [first] * 6
    assert [one.arguments[2:] for one in made] == [
        [{"M": 4}, 1],
        [{"M": 4}, 2],
        [{"M": 8}, 1],
        [{"M": 8}, 2],
        [{"M": 4}],
        [{"M": 8}],
    ]
    assert [one.query_arguments for one in made] == [[[5], [6]]] * 4 + [[]] * 2
    assert made[0].module == "m.a.module"
    assert not ann_protocol.definitions_of({"float": {"angular": [off]}}, "euclidean", 7, 3)


def test_every_definition_can_be_made_and_has_its_arguments():
    made = definitions("angular", 100)
    assert [one.algorithm for one in made] == (
        ["knear-flat"] + ["knear-ivf"] * 3 + ["knear-recall"] * 3 + ["knear-refined"] * 3
    )
    for one in made:
        names = arguments_of(one)
        assert all(len(given) == len(names) for given in one.query_arguments), one
        assert bool(names) == bool(one.query_arguments)
        assert one.arguments[0] == "angular"
    assert {one.arguments[1] for one in made if one.algorithm == "knear-recall"} == {COUNT}
    lists = {int(one.arguments[-1].split(",")[0][3:]) for one in made[1:]}
    probes = {given[0] for one in made if "probes" in arguments_of(one) for given in one[4]}
    assert max(probes) <= min(lists)  # a search of more lists than there are is an error
    with pytest.raises(ValueError, match="metric is 'jaccard', but knear has euclidean, angular"):
        ann_protocol.instantiate(made[0]._replace(arguments=["jaccard", "Flat"]))


@pytest.mark.parametrize("metric", ["euclidean", "angular"])
@pytest.mark.parametrize("batch", [False, True])
def test_every_definition_answers(metric, batch, tmp_path):
    data = data_of(metric)
    seen = {}
    for definition in definitions(metric, data.train.shape[1], SMALL):
        points = ann_protocol.run(definition, data, COUNT, 2, batch, tmp_path)
        seen[definition.algorithm] = points
        for point in points:
            assert 0 < point["recall_without_slack"] <= point["recall"] <= 1
            assert point["queries_per_second"] * point["best_search_time"] == pytest.approx(1)
            assert (point["batch_mode"], point["count"], point["run_count"]) == (batch, COUNT, 2)
            path = ann_protocol.result_file(
                tmp_path, definition, data, COUNT, point["query_arguments"], batch
            )
            with h5py.File(path) as file:
                assert file.attrs["algo"] == definition.algorithm
                assert file.attrs["best_search_time"] == point["best_search_time"]
                assert file.attrs["name"] == point["name"]
                assert file["neighbors"].shape == (len(data.test), COUNT)
                assert file["times"].shape == (len(data.test),)
                ids, distances = file["neighbors"][:], file["distances"][:]
            for q, row in enumerate(ids):
                some = row[row >= 0]
                found = ann_protocol.distances_to(data.test[q], data.train[some], metric)
                np.testing.assert_allclose(distances[q, : len(some)], found, rtol=1e-6)
                assert np.isinf(distances[q, len(some) :]).all()
    (flat,) = seen["knear-flat"]
    assert (flat["recall"], flat["recall_without_slack"]) == (1, 1)
    assert flat["dist_comps"] == 2 * len(data.test) * len(data.train)
    everything = [p for p in seen["knear-ivf"] if p["query_arguments"] == [SMALL]]
    assert everything[0]["recall_without_slack"] == 1
    least = 2 * len(data.test) * (len(data.train) + SMALL)
    assert least <= everything[0]["dist_comps"] <= least + 2 * len(data.test) * SMALL * 31
    scored = [point["dist_comps"] for point in seen["knear-ivf"]]
    assert scored == sorted(scored)
    for point in seen["knear-recall"]:
        (asked,) = point["query_arguments"]
        assert point["recall_without_slack"] >= asked - 0.1  # of 40 queries
    refined = {tuple(p["query_arguments"]): p["recall"] for p in seen["knear-refined"]}
    assert refined[SMALL, 16] > 0.95
    assert refined[SMALL, 16] >= refined[SMALL, 2]
    assert "PQ12x4" in seen["knear-refined"][0]["name"]


def made(factory: str, metric="euclidean", constructor="Knear", data=None):
    definition = Definition("x", "ann_benchmarks.algorithms.knear.module", constructor, [], [])
    algo = ann_protocol.instantiate(definition._replace(arguments=[metric, factory]))
    algo.fit((data or data_of(metric)).train)
    return algo


def test_the_timed_part_converts_nothing(monkeypatch):
    """Vectors are rows of float32 when the clock starts, and what comes back is untouched."""
    data = data_of("euclidean")
    algo = made("Flat", data=data)
    module = sys.modules[type(algo).__module__]
    given = []

    class Index:
        def search(self, queries, n, **more):
            given.append((queries, more))
            return found

    found = algo._index.search(data.test, COUNT)
    algo._index = Index()
    for queries in (data.test.astype(np.float64), np.asfortranarray(data.test), data.test):
        algo.prepare_query(queries[3], COUNT)
        algo.prepare_batch_query(queries, COUNT)
    monkeypatch.setattr(module, "rows_of", None)  # any call would fail
    monkeypatch.setattr(module, "numpy", None)
    algo.run_batch_query()
    algo.run_prepared_query()
    for queries, _ in given:
        assert queries is given[0][0]
        assert queries.dtype == np.float32
        assert queries.flags.c_contiguous
    assert given[0][0] is data.test  # in its form already: not copied
    assert [more for _, more in given] == [{}, {"threads": 1}]
    assert algo._found is found


def test_float64_and_strided_vectors_are_taken():
    data = data_of("angular")
    algo = made("Flat", "angular", data=data._replace(train=data.train.astype(np.float64)[:, ::1]))
    wide = np.zeros((len(data.test), 48))
    wide[:, ::2] = data.test
    for n in (1, COUNT):
        assert algo.query(wide[7, ::2], n).tolist() == data.neighbors[7, :n].tolist()
    algo.batch_query(wide[:, ::2], COUNT)
    assert np.array_equal(algo.get_batch_results(), data.neighbors[:, :COUNT])


@pytest.mark.parametrize("metric", ["euclidean", "angular"])
def test_what_is_not_there_is_not_given(metric):
    """-1 would be the last row of the framework's array."""
    data = data_of(metric, rows=60)
    algo = made("IVF32,Flat", metric, "KnearLists", data)
    algo.set_query_arguments(1)
    algo.prepare_query(data.test[9], 50)
    algo.run_prepared_query()
    one = algo.get_prepared_query_results()
    algo.batch_query(data.test, 50)
    rows = algo.get_batch_results()
    assert 0 < len(one) < 50
    assert one.tolist() == rows[9].tolist()
    assert all((row >= 0).all() and len(set(row)) == len(row) for row in rows)
    flat = made("Flat", metric, data=data)
    assert len(flat.query(data.test[0], 100)) == 60


def test_vectors_of_zeros():
    """1 - cosine is NaN in the framework: such a row, and whatever such a query finds, is wrong."""
    data = data_of("angular")
    train = data.train.copy()
    train[[0, 7]] = 0
    algo = made("Flat", "angular", data=data._replace(train=train))
    ids = algo.query(data.test[20], len(train) - 2).tolist()
    assert not {0, 7} & set(ids[:1000])
    assert len(algo.query(np.zeros(24), 5)) == 5
    assert np.isnan(ann_protocol.distances_to(data.test[0], train[[0]], "angular")).all()


def found(*answers) -> list[ann_protocol.Found]:
    return [ann_protocol.Found(1.0, ids, distances) for ids, distances in answers]


def test_recall_is_that_of_the_framework():
    train = np.array([[0.0], [1.0], [1.0005], [1.01], [3.0]], np.float32)
    test = np.zeros((2, 1), np.float32)
    true = np.array([[0, 1], [0, 1]])
    data = ann_protocol.Data(
        "x", "euclidean", train, test, true, np.array([[0, 1], [0, 1]], np.float32)
    )

    def of(*ids):
        distances = [ann_protocol.distances_to(test[0], train[some], "euclidean") for some in ids]
        return ann_protocol.recalls(found(*zip(ids, distances, strict=True)), data, 2)

    assert of([0, 1], [1, 0]) == (1, 1)
    assert of([0, 2], [0, 3]) == (0.75, 0.5)  # 0.0005 and 0.01 beyond the last one
    assert of([0], [4]) == (0.25, 0.25)  # fewer are not made up for


def test_answers_that_the_framework_would_take_for_others_are_errors():
    for ids, says in (([1, 1], "twice"), ([0, -1], "none of 5"), ([5], "none of 5")):
        with pytest.raises(ValueError, match=says):
            ann_protocol.checked(ids, 5, 2, "x")
    with pytest.raises(ValueError, match="3 ids, where 2"):
        ann_protocol.checked([0, 1, 2], 5, 2, "x")


def test_wrappers_without_preparation_and_with_latencies_run_too():
    """The other forms of the interface: query() alone, and latencies of a batch by the wrapper."""
    data = data_of("euclidean", rows=200, queries=6)

    class Plain(ann_protocol.BaseANN):
        name = "plain"

        def fit(self, X):
            self.X = X

        def query(self, q, n):
            return np.argsort(truth.exact_distances(q, self.X, "l2"), kind="stable")[:n]

        def batch_query(self, X, n):
            self.res = [self.query(q, n) for q in X]

        def get_batch_results(self):
            return self.res

        def get_batch_latencies(self):
            return [0.5] * len(self.res)

    algo = Plain()
    algo.fit(data.train)
    for batch in (False, True):
        attributes, answers = ann_protocol.search(algo, data, 5, 1, batch)
        assert ann_protocol.recalls(answers, data, 5)[1] == 1
        assert (attributes["best_search_time"] == 0.5) == batch
        assert attributes["candidates"] == 5
    assert algo.get_memory_usage() > 1000  # KiB


def test_files_of_the_framework_come_back(tmp_path):
    data = data_of("angular")
    file = tmp_path / "glove.hdf5"
    ann_protocol.write_set(file, data)
    back = ann_protocol.read_set(file, COUNT, 7)
    assert (back.name, back.metric, len(back.test)) == ("glove", "angular", 7)
    for name in ("train", "test", "neighbors", "distances"):
        assert np.array_equal(getattr(back, name), getattr(data, name)[: len(getattr(back, name))])
    with h5py.File(file, "r+") as old:  # as old files are
        for name in ("type", "dimension", "point_type"):
            del old.attrs[name]
    assert ann_protocol.read_set(file, COUNT).metric == "angular"
    with pytest.raises(ValueError, match="the 50 nearest of a query, but count is 51"):
        ann_protocol.read_set(file, 51)
    with h5py.File(file, "r+") as bad:
        bad.attrs["distance"] = "jaccard"
    with pytest.raises(ValueError, match="dense, jaccard; dense, euclidean or angular is searched"):
        ann_protocol.read_set(file, COUNT)
    with h5py.File(file, "r+") as bad:
        del bad["neighbors"]
    with pytest.raises(ValueError, match="it has no neighbors"):
        ann_protocol.read_set(file, COUNT)
    file.write_bytes(b"no file")
    with pytest.raises(ValueError, match="glove.hdf5"):
        ann_protocol.read_set(file, COUNT)


SYSTEMS = {
    "faiss-ivf": "faiss",
    "faiss-hnsw": "faiss",
    "hnswlib": "hnswlib",
    "usearch": "usearch",
    "scann": "scann",
}


@pytest.mark.parametrize("batch", [False, True])
def test_the_program_on_a_small_set(tmp_path, batch):
    folder = tmp_path / "data" / "sift-5k"
    folder.mkdir(parents=True)
    vectors = synthetic.bytes_like(3060, 16, 4)
    for name, rows in (("base", vectors[:3000]), ("queries", vectors[3000:])):
        sets.write(folder / f"{name}.bvecs", rows)
    data = data_of("angular", rows=2000)
    ann_protocol.write_set(tmp_path / "given.hdf5", data)
    files = {name: tmp_path / f"out.{name}" for name in ("json", "svg", "html")}
    options = ["--sets", "sift-5k", "bge-bible", "--hdf5", str(tmp_path / "given.hdf5")]
    options += ["--runs", "1", "--queries", "30", "--lists", "256", *["--batch"] * batch]
    options += ["--json", str(files["json"]), "--svg", str(files["svg"])]
    options += ["--report", str(files["html"]), "--results", str(tmp_path / "results")]
    done = run("ann", *options, cache=tmp_path, data=tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert "bge-bible: skipped: " in done.stdout
    everything = json.loads(files["json"].read_text())
    there = [name for name, package in SYSTEMS.items() if installed(package)]
    assert set(everything["left_out"]) == set(SYSTEMS) - set(there)
    assert {"knear", "h5py"} & set(everything["versions"]) == {"knear"}
    shapes = [(r["set"], r["metric"], r["rows"], r["queries"]) for r in everything["results"]]
    assert shapes == [("sift-5k", "euclidean", 3000, 30), ("given", "angular", 2000, 30)]
    ours = ["knear-flat", "knear-ivf", "knear-recall", "knear-refined"]
    for result in everything["results"]:
        assert (result["batch"], result["k"], result["lists"]) == (batch, 10, 256)
        assert not result["failed"]
        assert list(result["systems"]) == ours + there
        for name, points in result["systems"].items():
            assert max(p["recall_without_slack"] for p in points) > 0.93, name
            for point in points:
                assert point["queries_per_second"] > 0
                assert 0 < point["p50_ms"] <= point["p99_ms"]
        assert result["systems"]["knear-flat"][0]["recall_without_slack"] == 1
        name = "knear-recall-batch" if batch else "knear-recall"
        stored = list((tmp_path / "results" / result["set"] / "10" / name).iterdir())
        assert len(stored) == len(result["systems"]["knear-recall"]) == 9
    root = ElementTree.fromstring(files["svg"].read_text())
    svg = "{http://www.w3.org/2000/svg}"
    panels = root.findall(f"{svg}g")
    assert [len(panel.findall(f"{svg}polyline")) for panel in panels] == [3 + len(there)] * 2
    labels = {text.text for text in panels[0].iter(f"{svg}text")}
    assert {"knear", "knear, recall asked for"} <= labels
    page = files["html"].read_text()
    assert files["svg"].read_text() in page
    assert page.count("<tr>") == 2 * (1 + len(ours + there))
    again = run("ann", "--from", str(files["json"]), "--svg", str(tmp_path / "b.svg"),
                cache=tmp_path)  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "b.svg").read_text() == files["svg"].read_text()
    assert list((tmp_path / "bench").iterdir()) == []  # what it wrote in between is gone


def installed(package: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {package}"], check=False).returncode == 0


def test_what_is_drawn_and_how_many_lists():
    import importlib.machinery
    import importlib.util

    loader = importlib.machinery.SourceFileLoader("bench_ann", str(BENCH / "ann"))
    program = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_ann", loader))
    loader.exec_module(program)
    points = [(0.5, 90), (0.6, 95), (0.9, 50), (0.9, 60), (0.95, 55), (1.0, 5), (0.99, 5)]
    made = [{"recall": r, "queries_per_second": q} for r, q in points]
    left = [(p["recall"], p["queries_per_second"]) for p in program.front(made)]
    assert left == [(0.6, 95), (0.9, 60), (0.95, 55), (1.0, 5)]
    assert all(legible(colour) for _, colour, _ in program.STYLES.values())
    every = config()
    assert program.lists_in(every) == [256, 1024, 4096]
    chosen = [program.lists_for(rows, every) for rows in (3000, 60_000, 441_247, 10_000_000)]
    assert chosen == [256, 1024, 4096, 4096]


def test_an_installation_says_what_it_needs(tmp_path):
    """Without the source tree, as `cmake --install` puts it: no scripts/setup to point to."""
    there = tmp_path / "share" / "knear" / "bench"
    for name in ("support", "ann_benchmarks"):
        shutil.copytree(BENCH / name, there / name)
    shutil.copy(BENCH / "ann", there)
    bare = subprocess.run(
        [sys.executable, "-I", "-S", str(there / "ann")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert bare.returncode == 1
    assert "pip install numpy h5py pyyaml threadpoolctl' installs them" in bare.stderr
    assert "pip install .' in a clone of knear builds it" in bare.stderr
    assert len(bare.stderr.splitlines()) == 1
    shown = subprocess.run(
        [sys.executable, str(there / "ann"), "--help"], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0
    assert shown.stdout.startswith("usage: bench/ann")
    small = [sys.executable, str(there / "ann"), "--hdf5", str(tmp_path / "given.hdf5")]
    ann_protocol.write_set(tmp_path / "given.hdf5", data_of("euclidean", rows=500))
    small += ["--systems", "knear-flat", "--runs", "1", "--json", "out.json"]
    done = subprocess.run(
        small,
        cwd=tmp_path,
        env={**os.environ, "KNEAR_CACHE": "cache"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    everything = json.loads((tmp_path / "out.json").read_text())
    assert everything["machine"]["commit"] == "unknown"
    assert everything["results"][0]["systems"]["knear-flat"][0]["recall_without_slack"] == 1


def test_wrong_words(tmp_path):
    for words, says in (
        (["--sets", "siff"], "invalid choice: 'siff'"),
        (["--systems", "annoy"], "invalid choice: 'annoy'"),
        (["--count", "0"], "must be at least 1, but is 0"),
        (["--hdf5", "x.hdf5", "--rows", "9"], "--rows is for --sets"),
        (["--from", "x.json", "--runs", "2"], "--from measures nothing, so --runs is not for it"),
        (["--svg", str(tmp_path / "no" / "x.svg")], "x.svg, but there is no such folder"),
    ):
        done = run("ann", *words, cache=tmp_path)
        assert done.returncode == 2, words
        assert says in done.stderr
    lists = run("ann", "--lists", "7", cache=tmp_path)
    assert lists.returncode == 1
    assert lists.stderr == "ann: --lists is 7, but config.yml has 256, 1024, 4096\n"
    for option in ("--hdf5", "--from"):
        missing = run("ann", option, str(tmp_path / "none.hdf5"), cache=tmp_path)
        assert missing.returncode == 1
        assert len(missing.stderr.splitlines()) == 1
        assert "none.hdf5" in missing.stderr
