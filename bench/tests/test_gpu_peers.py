"""Timing of the peers on a GPU and its comparison with ours, without any of them or a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

GPU = Path(__file__).resolve().parents[1] / "gpu"
sys.path.insert(0, str(GPU))
import compare
import peers


@pytest.fixture
def numpy_as_cupy():
    return peers.Cupy(module=np)


@pytest.mark.parametrize("k", [1, 7])
def test_cupys_ways_find_the_nearest(numpy_as_cupy, k):
    random = np.random.default_rng(3)
    base = random.integers(-3, 4, (200, 4)).astype(np.float32)  # many ties
    asked = random.integers(-3, 4, (30, 4)).astype(np.float32)
    distances = ((asked[:, None, :] - base[None]) ** 2).sum(2)
    for _name, share, search in numpy_as_cupy.searches(base, k):
        places = search(asked)
        assert 0 < share <= 1
        assert places.shape == (30, k)
        assert all(len(set(row)) == k for row in places.tolist())
        got = np.sort(np.take_along_axis(distances, places, 1), axis=1)
        np.testing.assert_array_equal(got, np.sort(distances, axis=1)[:, :k])


def test_selection_keeps_k_of_each_row_whatever_the_ties(numpy_as_cupy):
    values = np.array([[3, 1, 1, 1, 0], [5, 4, 3, 2, 1], [2, 2, 2, 2, 2]], np.float32)
    (_, select), *_ = numpy_as_cupy.selections(2)
    places = select(values)
    assert all(len(set(row)) == 2 for row in places.tolist())
    got = np.sort(np.take_along_axis(values, places, 1), axis=1)
    np.testing.assert_array_equal(got, [[0, 1], [1, 2], [2, 2]])


def test_a_search_is_timed_in_parts_and_a_slow_way_on_fewer_queries(numpy_as_cupy):
    numpy_as_cupy.most_values = 300
    alone, *entries = peers.exact(numpy_as_cupy, 20, 100, 4, (5,), 0.01)
    assert (alone["name"], alone["what"]) == ("cupy matmul alone", "20 x 100 x 4 fp32")
    assert "task" not in alone
    assert [one["what"] for one in entries] == ["20 x 100 x 4 fp32", "2 x 100 x 4 fp32"]
    assert all(one["task"] == "exact" and one["k"] == 5 for one in entries)
    assert all(one["recall"] == 1 and one["seconds"] > 0 for one in entries)
    (one,) = peers.select(numpy_as_cupy, 10, 100, (5,), 0.01)
    assert (one["what"], one["task"], one["recall"]) == ("10 x 100 fp32", "select", 1)


class PretendedCuvs:
    """cuVS whose lists are every so-manieth row; a search compares those of the first lists."""

    __version__ = "9"

    class Kind:
        class Params:
            def __init__(self, **words):
                self.__dict__.update(words)

        IndexParams = SearchParams = Params

        def __init__(self):
            self.built = []

        def build(self, params, base):
            self.built.append(params.__dict__)
            return base, params.n_lists

        def search(self, params, index, asked, k):
            base, lists = index
            distances = ((asked[:, None, :] - base[None]) ** 2).sum(2)
            distances[:, np.arange(len(base)) % lists >= params.n_probes] = np.inf
            places = np.argsort(distances, axis=1, kind="stable")[:, :k]
            return np.take_along_axis(distances, places, 1), places

    class neighbors:  # noqa: N801
        pass

    def __init__(self):
        self.neighbors.ivf_flat, self.neighbors.ivf_pq = self.Kind(), self.Kind()


def test_lists_of_cuvs_are_searched_with_the_words_of_ours():
    cuvs = PretendedCuvs()
    system = peers.Cuvs(module=np, cuvs=cuvs)
    assert system.version == "9"
    sizes = ((20, 1), 400, 8, 4, (1, 4), 5, 0.01)
    flat = list(peers.inverted_lists(system, "Flat", *sizes))
    assert [one["what"] for one in flat] == [
        f"{queries} x 400 x 8, IVF4,Flat, {probes} probes"
        for queries in (20, 1)
        for probes in (1, 4)
    ]
    assert all(one["task"] == "lists" and one["k"] == 5 and one["seconds"] > 0 for one in flat)
    assert [one["recall"] == 1 for one in flat[:2]] == [False, True]
    (one, *_) = peers.inverted_lists(system, "PQ32", *sizes)
    assert one["what"].endswith("IVF4,PQ32, 1 probes")
    assert cuvs.neighbors.ivf_flat.built == [{"n_lists": 4}]
    assert cuvs.neighbors.ivf_pq.built == [{"n_lists": 4, "pq_dim": 32, "pq_bits": 8}]


def test_time_is_the_median_of_five_after_two_and_one_run_is_enough():
    class Clock:
        def __init__(self):
            self.runs = 0

        def seconds_of(self, work):
            self.runs += 1
            return [100, 50, 3, 9, 1, 2, 4][self.runs - 1]

    clock = Clock()
    assert peers.median_seconds(clock, None, 1000) == 3
    assert clock.runs == 7
    clock = Clock()
    assert peers.median_seconds(clock, None, 0) == 50
    assert clock.runs == 2


def test_recall_counts_places_in_any_order():
    assert peers.recall(np.array([[1, 2], [3, 4]]), np.array([[2, 1], [3, 9]])) == 0.75


@pytest.mark.parametrize("system", peers.SYSTEMS)
def test_a_module_that_is_not_there_is_one_line(system, tmp_path):
    (tmp_path / f"{system}.py").write_text("raise ImportError('none here')\n")
    done = subprocess.run(
        [sys.executable, str(GPU / "peers.py"), system],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"{system} can't be imported: none here\n"


def bench(name, what, seconds):
    return {"name": name, "what": what, "seconds": seconds}


SHAPE, ROWS = "10000 x 1000000 x 128", "10000 x 128000 fp32"
REPORT = {
    "device": {"name": "some GPU"},
    "benches": [
        bench("exact f32 k=10", f"{SHAPE}, whole run()", 0.02),
        bench("exact f32 k=10", f"{SHAPE}, kernels alone", 0.001),
        bench("exact f32 k=10", "10000 x 100000 x 128, whole run()", 0.002),
        bench("exact f32 k=100", f"{SHAPE}, whole run()", 0.03),
        bench("select k=100", f"{ROWS}, random", 0.004),
        bench("select k=1000", f"{ROWS}, random", 0.008),
        bench("lists f32 k=10", f"{SHAPE}, IVF1024,Flat, 8 probes, whole call", 0.001),
        bench("lists f32 k=10", f"{SHAPE}, IVF1024,Flat, 32 probes, whole call", 0.002),
        bench("lists f32 k=10", f"{SHAPE}, IVF1024,PQ32, 32 probes, whole call", 0.004),
    ],
}
CUVS = {
    "system": "cuvs",
    "version": "9",
    "benches": [
        {**bench("l", f"{SHAPE}, IVF1024,Flat, 32 probes", 0.005), "task": "lists", "k": 10,
         "recall": 0.9},
        {**bench("l", f"{SHAPE}, IVF1024,PQ32, 32 probes", 0.006), "task": "lists", "k": 10,
         "recall": 0.7},
    ],
}  # fmt: skip
TORCH = {
    "system": "torch",
    "version": "9",
    "benches": [
        bench("torch mm alone", f"{SHAPE} fp32", 0.1),
        {**bench("a", f"{SHAPE} fp32", 0.3), "task": "exact", "k": 10, "recall": 1},
        {**bench("b", f"{SHAPE} fp32", 0.2), "task": "exact", "k": 10, "recall": 1},
        {**bench("c", f"{SHAPE} fp32", 0.299), "task": "exact", "k": 100, "recall": 1},
        {**bench("d", ROWS, 0.016), "task": "select", "k": 100, "recall": 1},
        {**bench("e", ROWS, 0.031), "task": "select", "k": 1000, "recall": 1},
    ],
}
JAX = {
    "system": "jax",
    "version": "9",
    "benches": [
        {**bench("approx", f"{SHAPE} fp32", 0.01), "task": "exact", "k": 10, "recall": 0.96},
        {**bench("other shape", "1 x 2 x 3 fp32", 1), "task": "exact", "k": 10, "recall": 1},
    ],
}


def test_targets_are_judged_by_the_best_of_torch_and_our_whole_run():
    verdicts = [(t[0], t[2], t[3]) for t in compare.targets(REPORT, [JAX, TORCH, CUVS])]
    assert verdicts == [
        ("select_k, 10,000 x 128,000 fp32, k = 100", "met", "4.00 times: 4.00 ms of 16.00 ms"),
        (
            "select_k, 10,000 x 128,000 fp32, k = 1000",
            "not met",
            "3.88 times: 8.00 ms of 31.00 ms",
        ),
        ("exact, 10,000 x 1M x 128, k = 10", "met", "10.00 times: 20.00 ms of 200.00 ms"),
        ("exact, 10,000 x 1M x 128, k = 100", "not met", "9.97 times: 30.00 ms of 299.00 ms"),
        ("IVF1024,Flat, 10,000 x 1M x 128, k = 10", "met", "2.50 times: 2.00 ms of 5.00 ms"),
        ("IVF1024,PQ32, 10,000 x 1M x 128, k = 10", "not met", "1.50 times: 4.00 ms of 6.00 ms"),
    ]


def test_what_was_not_measured_is_skipped_with_the_reason():
    assert {t[2:] for t in compare.targets(REPORT, [JAX])} == {
        ("skipped", "torch was not measured in this run"),
        ("skipped", "cuvs was not measured in this run"),
    }
    no_gpu = {"device": None, "benches": []}
    assert {t[2:] for t in compare.targets(no_gpu, [TORCH])} == {("skipped", "no GPU")}
    nothing = {"device": {}, "benches": []}
    assert {t[3] for t in compare.targets({**nothing, "device": {"name": "x"}}, [TORCH])} == {
        "not measured in this run"
    }


def lines_of(peer):
    names = {key: peer[key] for key in ("system", "version")}
    return "".join(json.dumps({**names, **one}) + "\n" for one in peer["benches"])


def test_peers_are_read_line_by_line_and_a_line_cut_short_is_left_out(tmp_path):
    file = tmp_path / "peers.jsonl"
    assert compare.read_peers(file) == []
    file.write_text(lines_of(TORCH) + lines_of(JAX) + '{"system": "cu')
    assert compare.read_peers(file) == [TORCH, JAX]
    file.write_text(lines_of(TORCH) + '{"system"\n' + lines_of(JAX))
    with pytest.raises(SystemExit, match="line 7"):
        compare.read_peers(file)


def test_a_figure_is_in_the_file_as_soon_as_it_is_measured(tmp_path, monkeypatch):
    class Stopped:
        version, out_of_memory = "9", MemoryError

        def __init__(self, anywhere):
            pass

        def give_back(self):
            pass

    def select(*_):
        yield {**bench("one", ROWS, 1), "task": "select", "k": 10, "recall": 1}
        raise KeyboardInterrupt

    file = tmp_path / "peers.jsonl"
    file.write_text(lines_of(TORCH))
    monkeypatch.setattr(peers, "Jax", Stopped)
    monkeypatch.setattr(peers, "select", select)
    monkeypatch.setattr(sys, "argv", ["peers.py", "jax", "--json", str(file)])
    with pytest.raises(KeyboardInterrupt):
        peers.main()
    torch, jax = compare.read_peers(file)
    assert torch == TORCH
    assert [one["name"] for one in jax["benches"]] == ["one"]


def test_the_program_prints_targets_then_every_peer_of_a_shape_of_ours(tmp_path):
    report, jax = tmp_path / "gpu_check.json", tmp_path / "peers.jsonl"
    report.write_text(json.dumps(REPORT))
    jax.write_text(lines_of(JAX))
    command = [sys.executable, str(GPU / "compare.py"), str(report)]
    done = subprocess.run([*command, str(jax)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 6 + 2 + 1
    assert lines[0].split()[:2] == ["select_k,", "10,000"]
    assert lines[-1].split() == [
        "approx", *f"{SHAPE} fp32".split(), "10.000", "20.000", "0.50", "recall", "0.9600",
    ]  # fmt: skip

    report.write_text("{")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{report}: ")
    assert done.stderr.count("\n") == 1
