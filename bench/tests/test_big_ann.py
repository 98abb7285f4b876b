"""big-ann-benchmarks' tracks on small sets, by a stand-in for its sets, base class and runners."""

import importlib
import json
import sys

import numpy as np
import pytest
from test_bench import BENCH

for package in ("knear", "h5py", "yaml", "scipy"):
    pytest.importorskip(package, reason=f"the classes for big-ann-benchmarks need {package}")

import h5py
import yaml
from scipy.sparse import csr_matrix

sys.path.insert(0, str(BENCH))
from support import ann_protocol, synthetic, truth

import knear

HERE = BENCH / "big_ann_benchmarks"
TRACKS = ("ood", "filter", "streaming")
CONFIGS = [
    HERE / "algos-knear.yaml",
    *(HERE / "neurips23" / track / "knear" / "config.yaml" for track in TRACKS),
]
COUNT = 10


class Small:
    """A set of the framework in memory."""

    def __init__(self, dtype="float32", metric="euclidean", kind="knn", rows=10_000, dim=20):
        self.nb, self.d, self.nq, self.dtype = rows, dim, 50, dtype
        self._metric, self._kind = metric, kind
        if dtype == "uint8":
            both = synthetic.bytes_like(rows + self.nq, dim, 5)
        else:
            both = synthetic.unit(rows + self.nq, dim, 5)
        self._base, self._queries = both[:rows], both[rows:]
        rng = np.random.default_rng(6)
        # Tags of very different frequency; no vector has the last one.
        chance = np.array([0.9, 0.5, 0.2, 0.05, 0.01, 0.002, 0.0])
        self._tags = csr_matrix(rng.random((rows, len(chance))) < chance)
        asked = np.zeros((self.nq, len(chance)), bool)
        for q in range(self.nq):
            asked[q, rng.choice(len(chance), 1 + q % 2, replace=False)] = True
        asked[3] = [*[False] * 6, True]
        self._asked = csr_matrix(asked)

    def get_dataset(self):
        return self._base

    def get_dataset_iterator(self, bs=512, split=(1, 0)):
        for begin in range(0, self.nb, bs):
            yield self._base[begin : begin + bs]

    def get_queries(self):
        return self._queries

    def get_dataset_metadata(self):
        return self._tags

    def get_queries_metadata(self):
        return self._asked

    def search_type(self):
        return self._kind

    def distance(self):
        return self._metric


DATASETS = {
    "random-xs": Small,
    "random-xs-clustered": Small,
    "random-range-xs": lambda: Small(kind="range"),
    "random-filter-s": lambda: Small("uint8", kind="knn_filtered"),
    "ip": lambda: Small(metric="ip"),
}


@pytest.fixture(autouse=True)
def framework(tmp_path, monkeypatch):
    """The packages as in a checkout, and its folder."""
    monkeypatch.chdir(tmp_path)
    ann_protocol.register("benchmark.datasets", DATASETS=DATASETS)
    ann_protocol.register("benchmark.algorithms", HERE / "benchmark" / "algorithms")
    ann_protocol.register("benchmark.algorithms.base", BaseANN=ann_protocol.BaseANN)


def definitions(path, dataset: str, metric: str) -> list[tuple]:
    """(class, constructor's arguments, query arguments) as the framework reads a configuration."""
    config = yaml.safe_load(path.read_text())
    algorithms = {**config.get("any", {}), **config.get(dataset, {})}
    out = []
    for algorithm in algorithms.values():
        module = importlib.import_module(algorithm["module"])
        kind = getattr(module, algorithm["constructor"])
        (group,) = algorithm["run-groups"].values()
        builds, queries = (json.loads(group[name]) for name in ("args", "query-args"))
        base = [metric if one == "@metric" else one for one in algorithm["base-args"]]
        out += [(kind, [*base, build], queries) for build in builds]
    return out


def definition(track: int, dataset: str):
    ((kind, arguments, queries),) = definitions(
        CONFIGS[track], dataset, DATASETS[dataset]().distance()
    )
    return kind(*arguments), queries


def built(algo, dataset: str):
    """As the runner: what load_index() has, else fit()."""
    if not algo.load_index(dataset):
        algo.fit(dataset)
    return algo


def stored(tmp_path, name: str, results, kind="knn"):
    """The results as the framework keeps them."""
    with h5py.File(tmp_path / "results.hdf5", "w") as file:
        if kind == "range":
            lims, distances, ids = results
            file["neighbors"], file["lims"], file["distances"] = ids, lims, distances
        else:
            file.create_dataset("neighbors", (len(results), COUNT), "i", data=results)
        file.attrs["name"] = name
        return file["neighbors"][:]


def recall(ids, queries, base, metric="l2") -> float:
    exact = knear.knn(queries, base, COUNT, metric)
    return truth.recall_of_all(ids, exact, queries, base, metric)[0]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(HERE)))
def test_every_configuration_can_be_made(path):
    sets = [name for name in yaml.safe_load(path.read_text()) if name != "any"]
    assert len(sets) >= 2
    for dataset in sets:
        for metric in ("euclidean", "ip"):
            for kind, arguments, queries in definitions(path, dataset, metric):
                algo = kind(*arguments)
                for query in queries:
                    algo.set_query_arguments(query)
                    assert set(query) <= {"probes", "refine_factor", "recall"}
                    assert all(name in str(algo) for name in query)
                lists = int(arguments[1]["factory"].split(",")[0][3:])
                assert all(query.get("probes", 1) <= lists for query in queries)


def test_wrong_arguments_are_named():
    module = importlib.import_module("benchmark.algorithms.knear_ann")
    with pytest.raises(ValueError, match="metric is 'hamming', but knear has euclidean, ip"):
        module.Knear("hamming", {"factory": "Flat"})
    with pytest.raises(ValueError, match="index_params has few, but there are factory"):
        module.Knear("ip", {"factory": "Flat", "few": 3})


@pytest.mark.parametrize("dataset", ["random-xs", "ip"])
def test_neighbours(dataset, tmp_path):
    module = importlib.import_module("benchmark.algorithms.knear_ann")
    ds = DATASETS[dataset]()
    metric = {"euclidean": "l2", "ip": "ip"}[ds.distance()]
    algo = built(module.Knear(ds.distance(), {"factory": "Flat"}), dataset)
    algo.query(ds.get_queries(), COUNT)
    ids = stored(tmp_path, str(algo), algo.get_results())
    assert ids.shape == (ds.nq, COUNT)
    assert recall(ids, ds.get_queries(), ds.get_dataset(), metric) == 1
    assert algo.get_additional() == {"dist_comps": ds.nq * ds.nb}
    assert algo.get_additional() == {"dist_comps": ds.nq * ds.nb}  # counted once
    folder, prefix, components = algo.index_files_to_store(dataset)
    assert all((tmp_path / folder / (prefix + part)).exists() for part in components)
    again = module.Knear(ds.distance(), {"factory": "Flat"})
    assert again.load_index(dataset)
    again.query(ds.get_queries(), COUNT)
    assert np.array_equal(again.get_results(), algo.get_results())
    other = module.Knear(ds.distance(), {"factory": "IVF64,Flat"})
    assert not other.load_index(dataset)


def test_recall_that_is_asked_for(tmp_path):
    algo, queries = definition(0, "random-xs")
    ds = Small()
    built(algo, "random-xs")
    loaded = definition(0, "random-xs")[0]
    assert loaded.load_index("random-xs")
    for query in queries:
        for one in (algo, loaded):  # what it was calibrated by is kept
            one.set_query_arguments(query)
            one.query(ds.get_queries(), COUNT)
            ids = stored(tmp_path, str(one), one.get_results())
            assert recall(ids, ds.get_queries(), ds.get_dataset()) >= query["recall"] - 0.1
            assert 0 < one.get_additional()["dist_comps"] < ds.nq * ds.nb


def test_codes_for_queries_unlike_the_vectors(tmp_path):
    algo, ((query,)) = definition(1, "random-xs")
    ds = Small()
    built(algo, "random-xs")
    algo.set_query_arguments(query)
    algo.query(ds.get_queries(), COUNT)
    assert recall(algo.get_results(), ds.get_queries(), ds.get_dataset()) > 0.8


def test_a_radius(tmp_path):
    algo, queries = definition(0, "random-range-xs")
    ds = DATASETS["random-range-xs"]()
    built(algo, "random-range-xs")
    asked, base = ds.get_queries(), ds.get_dataset()
    radius = float(np.median(knear.knn(asked, base, 30).distances[:, -1]))
    exact = knear.range_search(asked, base, radius)
    sizes = []
    for query in [*queries, {"probes": 64}]:
        algo.set_query_arguments(query)
        algo.range_query(asked, radius)
        lims, distances, ids = algo.get_range_results()
        stored(tmp_path, str(algo), (lims, distances, ids), "range")
        assert lims.shape == (ds.nq + 1,)
        assert (distances <= radius).all()
        for q in range(ds.nq):
            part = slice(lims[q], lims[q + 1])
            true = exact.ids[exact.begin[q] : exact.begin[q + 1]]
            assert set(ids[part]) <= set(true)
        sizes.append(len(ids))
    assert sizes == sorted(sizes)
    assert sizes[-1] == len(exact.ids) > ds.nq
    assert algo.get_additional()["dist_comps"] >= ds.nq * ds.nb


@pytest.mark.parametrize("few", [0, 1000])
def test_tags(few, tmp_path):
    ds = DATASETS["random-filter-s"]()
    module = importlib.import_module("benchmark.algorithms.knear_ann")
    _, queries = definition(2, "random-filter-s")
    algo = module.KnearFilter("euclidean", {"factory": "IVF256,Flat", "few": few})
    built(algo, "random-filter-s")
    asked, base = ds.get_queries(), ds.get_dataset()
    tags, wanted = ds.get_dataset_metadata().toarray(), ds.get_queries_metadata().toarray()
    recalls = []
    for query in [*queries, {"probes": 256}]:
        algo.set_query_arguments(query)
        algo.filtered_query(asked, ds.get_queries_metadata(), COUNT)
        ids = stored(tmp_path, str(algo), algo.get_results())
        good = total = 0
        for q, row in enumerate(ids):
            allowed = np.flatnonzero((tags | ~wanted[q]).all(axis=1))
            some = row[row >= 0]
            assert set(some) <= set(allowed)
            assert len(set(some)) == len(some) == min(COUNT, len(allowed)), (q, len(allowed))
            if len(allowed):
                k = min(COUNT, len(allowed))
                near = knear.knn(asked[q : q + 1], base[allowed], k)
                measured = truth.exact_distances(asked[q], base[some], "l2")
                good += np.count_nonzero(measured <= near.distances[0, -1])
                total += k
                if len(allowed) <= few:
                    assert np.array_equal(some, allowed[near.ids[0]])
        recalls.append(good / total)
        assert algo.get_additional()["dist_comps"] > 0
    assert (ids[3] == -1).all()  # no vector has that tag
    assert recalls == sorted(recalls)
    assert recalls[-1] == 1


def test_a_query_without_tags_may_find_all():
    ds = DATASETS["random-filter-s"]()
    algo = built(definition(2, "random-filter-s")[0], "random-filter-s")
    algo.set_query_arguments({"probes": 256})
    nothing = csr_matrix((ds.nq, ds.get_queries_metadata().shape[1]))
    algo.filtered_query(ds.get_queries(), nothing, COUNT)
    assert recall(algo.get_results(), ds.get_queries(), ds.get_dataset()) == 1


@pytest.mark.parametrize("dataset", ["random-xs", "random-xs-clustered"])
def test_vectors_that_come_and_go(dataset, tmp_path):
    """A runbook as the streaming runner takes it: ids in ranges, X by the ids."""
    algo, queries = definition(3, dataset)
    ds = Small()
    data, asked = ds.get_dataset(), ds.get_queries()
    assert not algo.load_index(dataset)
    with pytest.raises(NotImplementedError):
        algo.fit(dataset)
    algo.setup(ds.dtype, ds.nb, ds.d)
    algo.set_query_arguments(queries[-1])
    there = np.zeros(ds.nb, bool)
    runbook = [("insert", 0, 5000), ("search",), ("delete", 1000, 4500), ("search",)]
    runbook += [("insert", 5000, 10_000), ("delete", 0, 1000), ("insert", 100, 200), ("search",)]
    for step in runbook:
        ids = np.arange(*step[1:], dtype=np.uint32) if len(step) > 1 else None
        match step[0]:
            case "insert":
                algo.insert(data[ids, :], ids)
                there[ids] = True
            case "delete":
                algo.delete(ids)
                there[ids] = False
            case "search":
                algo.query(asked, COUNT)
                near = stored(tmp_path, str(algo), algo.get_results())
                assert there[near[near >= 0]].all()
                rows = np.flatnonzero(there)
                exact = knear.knn(asked, data[rows], COUNT)
                distances = exact.distances, rows[exact.ids]
                assert truth.recall_of_all(near, distances, asked, data, "l2")[0] > 0.7
    assert algo.get_additional()["dist_comps"] > 0
    algo.done()
