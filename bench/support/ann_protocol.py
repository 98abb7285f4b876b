"""ann-benchmarks' protocol without Docker: its definitions, its runner, its files.

    python -m support.ann_protocol JOB.json      # one definition in a process of its own

A definition is a class, what it is constructed with, and the query arguments that are tried one
after the other. For each, every query is timed by itself, or all of them at once (batch); the best
of some runs counts. Sets and results are HDF5 files with the framework's names. The class is that
which the framework is given: bench/ann_benchmarks/module.py, under the path it has there.

What differs: distances of what was found are computed in float64; the clock is perf_counter; the
index is built by all cores, where the framework's container has one unless --batch is given.
"""

import contextlib
import importlib
import itertools
import json
import os
import re
import resource
import sys
import time
import types
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import threadpoolctl

BENCH = Path(__file__).resolve().parent.parent
WRAPPER = BENCH / "ann_benchmarks"
SLACK = 1e-3  # of the framework's recall, absolute


class BaseANN:
    """What the framework's base class gives to a wrapper."""

    def done(self) -> None:
        pass

    def get_memory_usage(self) -> float:
        """Of this process, in KiB."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1024

    def get_additional(self) -> dict[str, Any]:
        return {}

    def __str__(self) -> str:
        return self.name


def register(dotted: str, folder: Path | None = None, **attributes: Any) -> types.ModuleType:
    """Makes the package `dotted`, of a folder or of attributes alone, and those around it."""
    parts = dotted.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        if name not in sys.modules or not hasattr(sys.modules[name], "__path__"):
            module = types.ModuleType(name)
            module.__path__ = []
            sys.modules[name] = module
    module = sys.modules[dotted]
    module.__path__ = [] if folder is None else [str(folder)]
    vars(module).update(attributes)
    return module


def register_wrapper() -> None:
    """So that the wrapper is imported under the path that it has in a checkout, over BaseANN."""
    register("ann_benchmarks.algorithms.base.module", BaseANN=BaseANN)
    register("ann_benchmarks.algorithms.knear", WRAPPER)


class Definition(NamedTuple):
    """algorithm: the name of the curve; arguments: of the constructor; query_arguments: a list for
    each call of set_query_arguments()."""

    algorithm: str
    module: str
    constructor: str
    arguments: list
    query_arguments: list[list]


def product_of(args: Any) -> list:
    """All combinations, as the framework makes them of lists and dicts in a configuration."""
    if isinstance(args, dict):
        pairs = [
            [(name, one) for one in (values if isinstance(values, list) else [values])]
            for name, values in args.items()
        ]
        return [dict(some) for some in itertools.product(*pairs)]
    wrapped = [one if isinstance(one, list) else [one] for one in args]
    return [list(some) for some in itertools.product(*wrapped)]


def groups_of(group: dict, one: str, several: str) -> list | None:
    """The combinations of group[several] or group[one]; None where there is neither."""
    if several in group:
        made = [product_of(each) if isinstance(each, dict) else each for each in group[several]]
        return product_of([each for each in made if each])
    return product_of(group[one]) if one in group else None


def definitions_of(
    config: dict, metric: str, dimension: int, count: int, point_type: str = "float"
) -> list[Definition]:
    """The definitions of a config.yml that are not disabled."""
    sections = config.get(point_type, {})
    values = {"@metric": metric, "@dimension": dimension, "@count": count}

    def filled(argument: Any) -> Any:
        if isinstance(argument, dict):
            return {name: filled(value) for name, value in argument.items()}
        if isinstance(argument, list):
            return [filled(value) for value in argument]
        return values.get(argument, argument) if isinstance(argument, str) else argument

    out = []
    for algorithm in sections.get("any", sections.get(metric, [])):
        if algorithm.get("disabled", False):
            continue
        for group in algorithm["run_groups"].values():
            builds = groups_of(group, "args", "arg_groups")
            if builds is None:
                raise ValueError(f"{algorithm['name']}: a run group has no args and no arg_groups")
            queries = groups_of(group, "query_args", "query_arg_groups") or []
            for build in builds:
                arguments = [*algorithm.get("base_args", [])]
                arguments += build if isinstance(build, list) else [build]
                out.append(
                    Definition(
                        algorithm["name"],
                        f"{algorithm['module']}.module",
                        algorithm["constructor"],
                        filled(arguments),
                        queries,
                    )
                )
    return out


def instantiate(definition: Definition) -> Any:
    register_wrapper()
    constructor = getattr(importlib.import_module(definition.module), definition.constructor)
    algo = constructor(*definition.arguments)
    if definition.query_arguments and not hasattr(algo, "set_query_arguments"):
        raise TypeError(f"{definition.constructor} has query arguments, but no way to set them")
    return algo


def distances_to(query: np.ndarray, rows: np.ndarray, metric: str) -> np.ndarray:
    """As the framework measures: Euclidean, with the root, or 1 - cosine, which is NaN for a vector
    of zeros and then no neighbour."""
    x, y = np.asarray(query, np.float64), np.asarray(rows, np.float64)
    if metric == "euclidean":
        return np.sqrt(((y - x) ** 2).sum(axis=1))
    if metric == "angular":
        with np.errstate(invalid="ignore", divide="ignore"):
            lengths = np.sqrt((y**2).sum(axis=1)) * np.sqrt((x**2).sum())
            return 1 - (y * x).sum(axis=1) / lengths
    raise ValueError(f"metric is {metric!r}, but euclidean and angular are what there is")


@contextlib.contextmanager
def one_core():
    """This thread stays on one core, and BLAS and OpenMP make no others."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[len(before) // 2]})
    try:
        with threadpoolctl.threadpool_limits(1):
            yield
    finally:
        os.sched_setaffinity(0, before)


class Found(NamedTuple):
    """What one query was answered: seconds, ids, and their distances."""

    seconds: float
    ids: list[int]
    distances: list[float]


def checked(ids: Any, rows: int, count: int, algo: Any) -> list[int]:
    """The framework takes any index of its array, -1 too; here that is an error."""
    ids = [int(one) for one in ids]
    if len(ids) != len(set(ids)):
        raise ValueError(f"{algo} gave an id twice: {ids}")
    if len(ids) > count:
        raise ValueError(f"{algo} gave {len(ids)} ids, where {count} were asked for")
    if any(not 0 <= one < rows for one in ids):
        raise ValueError(f"{algo} gave an id that is none of {rows} rows: {ids}")
    return ids


def answer_one(algo: Any, query: np.ndarray, count: int) -> tuple[float, Any]:
    if hasattr(algo, "prepare_query"):
        algo.prepare_query(query, count)
        begin = time.perf_counter()
        algo.run_prepared_query()
        seconds = time.perf_counter() - begin
        return seconds, algo.get_prepared_query_results()
    begin = time.perf_counter()
    ids = algo.query(query, count)
    return time.perf_counter() - begin, ids


def answer_batch(algo: Any, queries: np.ndarray, count: int) -> list[tuple[float, Any]]:
    if hasattr(algo, "prepare_batch_query"):
        algo.prepare_batch_query(queries, count)
        begin = time.perf_counter()
        algo.run_batch_query()
    else:
        begin = time.perf_counter()
        algo.batch_query(queries, count)
    seconds = time.perf_counter() - begin
    answers = algo.get_batch_results()
    if hasattr(algo, "get_batch_latencies"):
        latencies = algo.get_batch_latencies()
    else:
        latencies = [seconds / len(queries)] * len(queries)
    return list(zip(latencies, answers, strict=True))


class Data(NamedTuple):
    """A set as the framework's files hold it; distances [q x 100] are those of the neighbours."""

    name: str
    metric: str
    train: np.ndarray
    test: np.ndarray
    neighbors: np.ndarray
    distances: np.ndarray


def search(
    algo: Any, data: Data, count: int, runs: int, batch: bool
) -> tuple[dict[str, Any], list[Found]]:
    """Attributes and the answers of the last run; the best mean time of all runs."""
    best = float("inf")
    for _ in range(runs):
        if batch:
            answers = answer_batch(algo, data.test, count)
        else:
            with one_core():
                answers = [answer_one(algo, query, count) for query in data.test]
        best = min(best, sum(seconds for seconds, _ in answers) / len(answers))
    found = []
    for query, (seconds, ids) in zip(data.test, answers, strict=True):
        ids = checked(ids, len(data.train), count, algo)
        distances = distances_to(query, data.train[ids], data.metric)
        found.append(Found(float(seconds), ids, distances.tolist()))
    attributes = {
        "batch_mode": batch,
        "best_search_time": best,
        "candidates": sum(len(one.ids) for one in found) / len(found),
        "expect_extra": False,
        "name": str(algo),
        "run_count": runs,
        "distance": data.metric,
        "count": count,
        **algo.get_additional(),
    }
    return attributes, found


def recalls(found: list[Found], data: Data, count: int) -> tuple[float, float]:
    """The framework's recall, by a distance of SLACK more than the true last one; and without that,
    by the distance of the true neighbours, as far as float32 tells them apart."""
    slack = strict = 0
    for q, (_, _, distances) in enumerate(found):
        given = np.asarray(distances[:count])
        true = distances_to(data.test[q], data.train[data.neighbors[q, :count]], data.metric)
        with np.errstate(invalid="ignore"):
            slack += np.count_nonzero(given <= data.distances[q, count - 1] + SLACK)
            strict += np.count_nonzero(given <= true.max() * (1 + 1e-7) + 1e-14)
    return slack / (len(found) * count), strict / (len(found) * count)


def result_file(folder: Path, definition: Definition, data: Data, count: int, query, batch) -> Path:
    """Where the framework would keep it."""
    text = json.dumps([*definition.arguments, *query], sort_keys=True)
    name = re.sub(r"\W+", "_", text).strip("_")
    algorithm = definition.algorithm + ("-batch" if batch else "")
    return folder / data.name / str(count) / algorithm / f"{name}.hdf5"


def store(path: Path, attributes: dict[str, Any], found: list[Found], count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.attrs.update(attributes)
        file["times"] = np.array([one.seconds for one in found], np.float32)
        neighbors = np.full((len(found), count), -1, np.int32)
        distances = np.full((len(found), count), np.inf, np.float32)
        for q, one in enumerate(found):
            neighbors[q, : len(one.ids)] = one.ids
            distances[q, : len(one.ids)] = one.distances
        file["neighbors"], file["distances"] = neighbors, distances


def write_set(path: Path, data: Data) -> None:
    with h5py.File(path, "w") as file:
        file.attrs.update(type="dense", distance=data.metric, point_type="float")
        file.attrs["dimension"] = data.train.shape[1]
        for name in ("train", "test", "neighbors", "distances"):
            file[name] = getattr(data, name)


def read_set(path: Path, count: int, queries: int | None = None) -> Data:
    """A file of ann-benchmarks; of its queries the first `queries`. Raises ValueError in one line
    for a file that is none, for other metrics, and where it has fewer than `count` neighbours."""
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path}: {error}") from None
    with file:
        missing = [n for n in ("train", "test", "neighbors", "distances") if n not in file]
        if missing or "distance" not in file.attrs:
            what = ", ".join([*missing, *["attribute distance"] * ("distance" not in file.attrs)])
            raise ValueError(f"{path} is no file of ann-benchmarks: it has no {what}")
        metric = file.attrs["distance"]
        metric = metric.decode() if isinstance(metric, bytes) else str(metric)
        kind = file.attrs.get("type", "dense")
        if metric not in ("euclidean", "angular") or kind not in ("dense", b"dense"):
            raise ValueError(f"{path} is {kind}, {metric}; dense, euclidean or angular is searched")
        if file["neighbors"].shape[1] < count:
            known = file["neighbors"].shape[1]
            raise ValueError(f"{path} has the {known} nearest of a query, but count is {count}")
        part = slice(None, queries)
        return Data(
            path.stem,
            metric,
            file["train"][:],
            file["test"][part],
            file["neighbors"][part],
            file["distances"][part],
        )


def run(
    definition: Definition, data: Data, count: int, runs: int, batch: bool, results: Path | None
) -> list[dict[str, Any]]:
    """Builds, searches with all query arguments, stores as the framework does; what was measured
    of each."""
    algo = instantiate(definition)
    out = []
    try:
        before, begin = algo.get_memory_usage(), time.perf_counter()
        algo.fit(data.train)
        built = {
            "build_time": time.perf_counter() - begin,
            "index_size": algo.get_memory_usage() - before,
            "algo": definition.algorithm,
            "dataset": data.name,
        }
        for query in definition.query_arguments or [[]]:
            if query:
                algo.set_query_arguments(*query)
            attributes, found = search(algo, data, count, runs, batch)
            attributes |= built
            if results is not None:
                path = result_file(results, definition, data, count, query, batch)
                store(path, attributes, found, count)
            slack, strict = recalls(found, data, count)
            milliseconds = 1e3 * np.array([one.seconds for one in found])
            out.append(
                {
                    **attributes,
                    "query_arguments": query,
                    "recall": slack,
                    "recall_without_slack": strict,
                    "queries_per_second": 1 / attributes["best_search_time"],
                    "p50_ms": float(np.percentile(milliseconds, 50)),
                    "p99_ms": float(np.percentile(milliseconds, 99)),
                }
            )
    finally:
        algo.done()
    return out


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    try:
        data = read_set(Path(job["hdf5"]), job["count"], job["queries"])._replace(name=job["set"])
        results = Path(job["results"]) if job["results"] else None
        definition = Definition(**job["definition"])
        points = run(definition, data, job["count"], job["runs"], job["batch"], results)
    except (ImportError, TypeError, ValueError, RuntimeError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    Path(job["out"]).write_text(json.dumps(points))


if __name__ == "__main__":
    main()
