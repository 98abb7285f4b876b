"""The benchmark sets are the same on every run, and the checks of the programs find mistakes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(BENCH))
from support import sets, synthetic, truth


def run(program, *arguments, cache, data="", **variables):
    environment = dict(os.environ, KNEAR_CACHE=str(cache), KNEAR_DATA=str(data), **variables)
    return subprocess.run(
        [sys.executable, str(BENCH / program), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_sets_are_made_once_and_checked_then(tmp_path):
    command = ("data", "unit96", "uint8", "--rows", "2000", "--queries", "50")
    first = run(*command, cache=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count(" made ") == 4
    second = run(*command, cache=tmp_path)
    assert second.stdout == first.stdout.replace(" made ", " checked ")

    base = np.load(tmp_path / "bench" / "unit96-2000x50-s1" / "base.npy")
    assert (base.shape, base.dtype) == ((2000, 96), np.float32)
    np.testing.assert_allclose((base.astype(float) ** 2).sum(1), 1, rtol=1e-6)
    assert np.load(tmp_path / "bench" / "uint8-2000x50-s1" / "queries.npy").dtype == np.uint8

    damaged = tmp_path / "bench" / "uint8-2000x50-s1" / "base.npy"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    third = run(*command, cache=tmp_path)
    assert "base in" in third.stderr
    assert "damaged" in third.stderr
    assert third.stdout.count(" checked ") == 2  # those of the other set
    sums = [line.split()[-1] for line in first.stdout.splitlines() if "sha256" in line]
    assert [line.split()[-1] for line in third.stdout.splitlines() if "sha256" in line] == sums


def test_what_a_call_costs(tmp_path):
    pytest.importorskip("knear", reason="bench/call needs knear")
    out = tmp_path / "out.json"
    built = [BENCH.parent / "build" / preset / "bin" / "knear" for preset in ("dev", "release")]
    program = next((each for each in built if each.exists()), None)
    if program is None:
        pytest.skip("the program knear is not built")
    words = ("--calls", "20", "--repeat", "2", "--program", str(program), "--json", str(out))
    done = run("call", *words, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())["results"]
    assert min(results["python"], results["processor_time"], results["cpp"]) > 0
    assert abs(results["python"] - results["cpp"] - results["beyond"]) < 1e-9
    assert run("call", "-k", "0", cache=tmp_path).returncode == 2


def test_seeds_differ_and_repeat():
    one, again, other = (synthetic.clustered(300, 16, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.isclose(one, other).any(axis=1).all()


def test_bvecs_come_back(tmp_path):
    values = np.random.default_rng(3).integers(0, 256, (70_000, 12)).astype(np.uint8)
    sets.write(tmp_path / "x.bvecs", values)
    assert (tmp_path / "x.bvecs").stat().st_size == 70_000 * 16
    np.testing.assert_array_equal(sets.read(tmp_path / "x.bvecs"), values)


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_mistakes_are_found(metric):
    rng = np.random.default_rng(5)
    base = rng.standard_normal((400, 8)).astype(np.float32)
    base[7] = base[3]  # a tie
    queries = rng.standard_normal((6, 8)).astype(np.float32)
    sign = -1 if metric == "ip" else 1
    exact = np.stack([truth.exact_distances(q, base, metric) for q in queries])
    ids = np.argsort(sign * exact, axis=1, kind="stable")[:, :5]
    distances = np.take_along_axis(exact, ids, 1).astype(np.float32)
    answers = {"right": (distances, ids)}
    farther = ids.copy()
    farther[0, 4] = np.argsort(sign * exact[0])[9]
    answers["farther row"] = (distances, farther)
    twice = ids.copy()
    twice[2, 4] = twice[2, 0]
    answers["row given twice"] = (distances, twice)
    missing = ids.copy()
    missing[1, 4] = -1
    answers["row missing"] = (distances, missing)
    answers["distance off"] = (distances * np.float32(1.001), ids)
    verdicts = truth.judge(answers, np.arange(6), queries, base, metric)
    assert (verdicts["right"].recall, verdicts["right"].recall_ids) == (1, 1)
    assert verdicts["right"].error < 1e-6
    for mistake in ("farther row", "row given twice", "row missing"):
        assert verdicts[mistake].recall == pytest.approx(29 / 30), mistake
        assert verdicts[mistake].recall_ids == pytest.approx(29 / 30), mistake
    assert verdicts["distance off"].recall == 1
    assert verdicts["distance off"].error > 1e-5


def test_another_id_of_a_tie_counts_by_distance_only():
    base = np.array([[0.0], [1.0], [1.0], [5.0]], np.float32)
    answer = (np.array([[0.0, 1.0]], np.float32), np.array([[0, 2]]))
    verdict = truth.judge({"x": answer}, [0], np.zeros((1, 1), np.float32), base, "l2")["x"]
    assert (verdict.recall, verdict.recall_ids) == (1, 0.5)


def test_peers_on_a_small_set(tmp_path):
    for package in ("knear", "faiss", "threadpoolctl"):
        pytest.importorskip(package, reason=f"bench/peers needs {package}")
    folder = tmp_path / "data" / "glove-twitter-25"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(6)
    np.save(folder / "base.npy", rng.standard_normal((800, 25)).astype(np.float32))
    np.save(folder / "queries.npy", rng.standard_normal((40, 25)).astype(np.float32))
    out = tmp_path / "out.json"
    options = ("--sets", "glove-twitter-25", "bge-bible", "--repeat", "2", "--min-time", "0.01")
    options = (*options, "--check", "9", "--json", str(out))
    done = run("peers", *options, cache=tmp_path, data=tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert "bge-bible: skipped" in done.stdout
    everything = json.loads(out.read_text())
    assert [skipped["set"] for skipped in everything["skipped"]] == ["bge-bible"]
    (result,) = everything["results"]
    assert (result["metric"], result["rows"], result["checked_queries"]) == ("cosine", 800, 9)
    assert set(result["systems"]) == {"knear", "knear-knn", "faiss", "numpy"}
    for name, entry in result["systems"].items():
        assert len(entry["seconds"]) == 2, name
        assert entry["queries"] == 40, name
        assert entry["recall"] == 1, name
        assert entry["queries_per_second"] * entry["median_seconds"] == pytest.approx(40), name


def test_panorama_and_hnswlib_beside_the_exact_search(tmp_path):
    for package in ("knear", "faiss", "threadpoolctl", "hnswlib"):
        pytest.importorskip(package, reason=f"bench/peers needs {package}")
    folder = tmp_path / "data" / "sift-5k"
    folder.mkdir(parents=True)
    for name, rows in (("base", 4000), ("queries", 60)):
        vectors = synthetic.bytes_like(rows, 48, len(name))
        sets.write(folder / f"{name}.bvecs", vectors)
    out = tmp_path / "out.json"
    options = ("--sets", "sift-5k", "sift-5k:ip", "--systems", "knear", "panorama", "hnswlib")
    options = (*options, "--ef", "10", "400", "--repeat", "1", "--min-time", "0.01")
    done = run("peers", *options, "--json", str(out), cache=tmp_path, data=tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert "sift-5k, ip: without panorama" in done.stdout
    by_l2, by_product = (result["systems"] for result in json.loads(out.read_text())["results"])
    assert set(by_l2) == {"knear", "panorama", "hnswlib-10", "hnswlib-400"}
    assert set(by_product) == {"knear", "hnswlib-10", "hnswlib-400"}
    assert by_l2["panorama"]["recall"] == 1
    for found in (by_l2, by_product):
        fast, sure = found["hnswlib-10"], found["hnswlib-400"]
        assert fast["recall_queries"] == sure["recall_queries"] == 60
        assert fast["recall"] < 1, "an ef of k that finds everything says nothing about recall"
        assert fast["recall"] < sure["recall"] <= 1
    for words, message in (
        (("--ef", "10"), "--ef is for --systems hnswlib"),
        (("--systems", "hnswlib", "-k", "20", "--ef", "10"), "--ef must be at least k = 20"),
    ):
        refused = run("peers", *words, cache=tmp_path)
        assert refused.returncode == 2
        assert message in refused.stderr


def test_k_means_on_a_small_set(tmp_path):
    for package in ("knear", "faiss", "threadpoolctl", "sklearn"):
        pytest.importorskip(package, reason=f"bench/k_means needs {package}")
    folder = tmp_path / "data" / "sift-5k"
    folder.mkdir(parents=True)
    for name, rows in (("base", 3000), ("queries", 10)):
        sets.write(folder / f"{name}.bvecs", synthetic.bytes_like(rows, 24, len(name)))
    out = tmp_path / "out.json"
    options = ("--sets", "sift-5k", "-k", "20", "--iterations", "5", "--repeat", "1")
    done = run("k_means", *options, "--json", str(out), cache=tmp_path, data=tmp_path / "data")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(out.read_text())["results"]
    assert set(result["systems"]) == {"knear", "faiss", "sklearn"}
    found = [each["objective"] for each in result["systems"].values()]
    assert max(found) < 1.01 * min(found)
    refused = run("k_means", "--sets", "sift-5k", cache=tmp_path)
    assert refused.returncode == 2
    assert "--sets needs -k" in refused.stderr


def test_sklearn_on_a_small_set(tmp_path):
    for package in ("knear", "threadpoolctl", "sklearn"):
        pytest.importorskip(package, reason=f"bench/sklearn needs {package}")
    data, out = small_sift(tmp_path / "data"), tmp_path / "out.json"
    options = ("--sets", "sift-5k", "bge-bible", "--queries", "40", "--clusters", "9")
    options = (*options, "--iterations", "3", "--repeat", "2", "--json", str(out))
    done = run("sklearn", *options, cache=tmp_path, data=data)
    assert done.returncode == 0, done.stderr
    assert "bge-bible: skipped" in done.stdout
    results = json.loads(out.read_text())["results"]
    assert [each["figure"] for each in results] == ["neighbors", "search", "k_means"]
    for each in results:
        assert each["set"] == "sift-5k" and each["ratio"] > 0
        assert [len(times) for times in each["all_seconds"].values()] == [2, 2]
    assert results[0]["difference"] < 1e-6
    assert results[2]["iterations"] == [3, 3]
    assert results[2]["inertia_ratio"] == pytest.approx(1, abs=0.01)
    refused = run("sklearn", "--repeat", "0", cache=tmp_path)
    assert refused.returncode == 2
    assert "must be at least 1" in refused.stderr


def test_quantizers_on_a_small_set(tmp_path):
    for package in ("knear", "faiss"):
        pytest.importorskip(package, reason=f"bench/quantizers needs {package}")
    folder = tmp_path / "data" / "sift-5k"
    folder.mkdir(parents=True)
    for name, rows in (("base", 3000), ("queries", 10)):
        sets.write(folder / f"{name}.bvecs", synthetic.bytes_like(rows, 24, len(name)))
    out = tmp_path / "out.json"
    options = ("--sets", "sift-5k", "--quantizers", "6x8", "4x4", "--repeat", "1")
    done = run("quantizers", *options, "--json", str(out), cache=tmp_path, data=tmp_path / "data")
    results = json.loads(out.read_text())["results"]
    assert [(each["m"], each["bits"]) for each in results] == [(6, 8), (4, 4)]
    for each in results:
        found = [system["loss"] for system in each["systems"].values()]
        assert 0 < max(found) < 1.2 * min(found)
    assert done.returncode in (0, 1), done.stderr
    refused = run("quantizers", "--quantizers", "32x5", cache=tmp_path)
    assert refused.returncode == 2
    assert "'32x5' is not like 32x8 or 32x4" in refused.stderr


def small_sift(folder, queries=60):
    """A set 'sift-5k' of made rows."""
    (folder / "sift-5k").mkdir(parents=True)
    for name, rows in (("base", 4000), ("queries", queries)):
        made = synthetic.bytes_like(rows, 24, len(name))
        sets.write(folder / "sift-5k" / f"{name}.bvecs", made)
    return folder


def test_codes_on_a_small_set(tmp_path):
    for package in ("knear", "faiss"):
        pytest.importorskip(package, reason=f"bench/codes needs {package}")
    data, out = small_sift(tmp_path / "data"), tmp_path / "out.json"
    options = ("--sets", "sift-5k", "--probes", "1", "8", "--json", str(out))
    # 4 bits, since faiss-cpu takes seconds to learn 256 centroids per part.
    strings = ("--strings", "IVF8,PQ6x4", "IVF8,PQ6x4,RFlat")
    done = run("codes", *options, *strings, "--repeat", "1", cache=tmp_path, data=data)
    assert done.returncode == 0, done.stderr
    for line in json.loads(out.read_text()):
        assert 0 < line["Knear recall"] <= 1
        assert abs(line["Knear recall"] - line["Faiss recall"]) < 0.2
        assert line["times"] > 0
    done = run("accuracy", *options, strings[0], "IVF8,PQ4", "--seeds", "2", cache=tmp_path,
               data=data)  # fmt: skip
    assert done.returncode in (0, 1), done.stderr  # 60 queries say little
    lines = json.loads(out.read_text())
    assert [(line["probes"], line["rank"]) for line in lines] == [
        (probes, rank) for probes in (1, 8) for rank in (1, 10, 100)
    ]
    for line in lines:
        assert len(line["knear"]) == len(line["faiss"]) == 2
        assert all(0 <= share <= 1 for share in line["knear"])
    assert min(lines[-1]["knear"]) > 0.9


def test_recall_that_is_asked_for_on_a_small_set(tmp_path):
    pytest.importorskip("knear", reason="bench/asked needs knear")
    data, out = small_sift(tmp_path / "data"), tmp_path / "out.json"
    options = ("--sets", "sift-5k", "--recalls", "0.6", "--repeat", "1", "--single", "5")
    few = run("asked", *options, "--indexes", "PQ6", cache=tmp_path, data=data)
    assert few.returncode == 1
    assert "calibrated by 100 at least" in few.stderr.splitlines()[-1]
    made = synthetic.bytes_like(5200, 24, 4)  # queries like the rows
    for name, rows in (("base", made[:4000]), ("queries", made[4000:])):
        sets.write(data / "sift-5k" / f"{name}.bvecs", rows)
    indexes = ("--indexes", "IVF8,Flat", "IVF8,PQ6,RFlat", "IVF8,PQ12", "PQ12")
    done = run("asked", *options, *indexes, "--json", str(out), cache=tmp_path, data=data)
    assert done.returncode == 0, done.stderr + done.stdout
    lines = json.loads(out.read_text())
    assert [line["index"] for line in lines] == list(indexes[1:])
    for line in lines:
        assert ("probes" in line["by_hand"]) == line["index"].startswith("IVF")
        for way in ("hand", "asked", "tuned"):
            assert 0.6 <= line[way]["recall"] <= 1
            assert line[way]["queries_per_second"] > 0


def test_batches_that_ask_for_a_recall(tmp_path):
    pytest.importorskip("knear", reason="bench/asked needs knear")
    data, out = small_sift(tmp_path / "data"), tmp_path / "out.json"
    made = synthetic.bytes_like(5200, 24, 4)  # queries like the rows
    for name, rows in (("base", made[:4000]), ("queries", made[4000:])):
        sets.write(data / "sift-5k" / f"{name}.bvecs", rows)
    others = tmp_path / "others.npy"
    np.save(others, made[4000:4600].astype(np.float32) + 40)
    options = ("--sets", "sift-5k", "--indexes", "IVF8,Flat", "--recalls", "0.6", "--repeat", "1")
    few = ("--batches", "1", "300", "--most-batches", "4", "--others", str(others))
    done = run("asked", *options, *few, "--json", str(out), cache=tmp_path, data=data)
    assert done.returncode == 0, done.stderr + done.stdout
    lines = json.loads(out.read_text())
    assert [(line["queries"], line["size"], line["batches"]) for line in lines] == [
        ("sift-5k", 1, 4), ("sift-5k", 300, 4), ("others", 1, 4), ("others", 300, 2)
    ]  # fmt: skip
    for line in lines:
        assert 0 <= line["mean"] <= 1 and 0 <= line["below"] <= line["batches"]
        assert line["first"] > 0 and line["later"] > 0
        assert (line["promised"] == 0) == (line["size"] == 1)
    assert "| `others` |" in done.stdout and "4 of 300" in done.stdout


def test_shards_on_a_small_set(tmp_path):
    pytest.importorskip("knear", reason="bench/shards needs knear")
    program = Path(os.environ.get("KNEAR_PROGRAM", BENCH.parent / "build/release/bin/knear"))
    if not program.is_file():
        pytest.skip(f"bench/shards needs {program}, which predicts")
    data, out = small_sift(tmp_path / "data", queries=96), tmp_path / "out.json"
    options = ("--sets", "sift-5k", "--factories", "Flat", "IVF8,Flat", "--probes", "2")
    few = ("--parts", "2x1", "1x2", "--batches", "96", "--repeat", "1", "--threads", "2")
    more = ("--program", str(program), "--json", str(out))
    done = run("shards", *options, *few, *more, cache=tmp_path, data=data)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(out.read_text())
    assert [(each["shards"], each["replicas"]) for each in found["beside_one"]] == 4 * [
        (2, 1), (1, 2)
    ]  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    for each in found["beside_one"]:
        assert each["ratio"] > 0
        if each["groups"] == "single" and cores > 1:  # between which 96 queries can be divided
            assert each["replicas_used"] == each["replicas"]
    for each in found["speed_up"]:
        assert 0 < each["predicted"] <= 2
        # In one group of processors shards are segments of one index, which merges nothing; lists
        # repeat some work. What replicas found is put together, of which no prediction speaks.
        if each["shards"] > 1:
            assert (each["merge_seconds"] > 0) == (each["measured_merge_seconds"] > 0)
        else:
            assert each["merge_seconds"] == 0
        assert (each["predicted"] < 2) or each["shards"] == 1 or each["factory"] == "Flat"
    refused = run("shards", "--parts", "2", *more, cache=tmp_path)
    assert refused.returncode == 2 and "'2' is not like 2x1" in refused.stderr


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_plans_refuse_no_seconds(tmp_path, seconds):
    pytest.importorskip("knear", reason="bench/plan needs knear")
    done = run("plan", "times", f"--seconds={seconds}", cache=tmp_path, data=tmp_path)
    assert done.returncode == 2
    assert "error: --seconds must be finite and more than 0, but is" in done.stderr
    assert "Traceback" not in done.stderr


def test_plans_on_a_small_set(tmp_path):
    pytest.importorskip("knear", reason="bench/plan needs knear")
    program = Path(os.environ.get("KNEAR_PROGRAM", BENCH.parent / "build/release/bin/knear"))
    if not program.is_file():
        pytest.skip(f"bench/plan needs {program}, which plans")
    data, out = small_sift(tmp_path / "data"), tmp_path / "out.json"
    options = ("--set", "sift-5k", "--rows", "600", "--lists", "8", "--threads", "1")
    few = ("--batch", "50", "--repeat", "1", "--indexes", "Flat", "IVF8,Flat")
    more = ("--program", str(program), "--seconds", "0.3", "--json", str(out))
    done = run("plan", "times", *options, *few, *more, cache=tmp_path, data=data)
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(out.read_text())
    lines, ranks = told["times"], told["ranks"]
    if shutil.which("mpirun") and program.with_name("knear-dist").is_file():
        assert sorted((each["index"], each["ranks"]) for each in ranks) == [
            ("Flat", 1), ("Flat", 2), ("IVF8,Flat", 1), ("IVF8,Flat", 2)
        ]  # fmt: skip
        assert all(each["predicted"] > 0 and min(each["measured"]) > 0 for each in ranks)
    else:
        assert ranks == []
    assert sorted((each["index"], each["shards"]) for each in lines) == [
        ("Flat", 1), ("Flat", 2), ("IVF8,Flat", 1), ("IVF8,Flat", 2)
    ]  # fmt: skip
    for each in lines:
        for part in ("service", "add", "memory"):
            assert each[part]["predicted"] > 0 and each[part]["measured"] > 0
    forms = ("--forms", "PQ{d/2}", "PQ{d/2}x4,Refine(SQ8)", "--factors", "4", "--json", str(out))
    done = run("plan", "recall", *options, *forms, cache=tmp_path, data=data)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(out.read_text())
    assert [each["probes"] for each in found["lists"]] == [1, 2]
    assert [each["form"] for each in found["codes"]] == ["PQ{d/2}", "PQ{d/2}x4,Refine(SQ8)"]
    for each in [*found["lists"], *found["codes"]]:
        assert 0.3 < each["recall"] <= 1
    refused = run("plan", "times", "--batch", "0", cache=tmp_path)
    assert refused.returncode == 2 and "--batch" in refused.stderr


def test_a_server_for_a_moment(tmp_path):
    program = Path(os.environ.get("KNEAR_PROGRAM", BENCH.parent / "build/release/bin/knear"))
    if not program.is_file():
        pytest.skip(f"bench/serve needs {program}, which serves")
    out = tmp_path / "out.json"
    more = ("--program", str(program), "--json", str(out))
    few = ("--rounds", "2", "--kinds", "flat", "lists in shards")
    done = run("serve", "kills", *few, *more, cache=tmp_path)
    if "KNEAR_SERVE is off" in done.stderr:
        pytest.skip("this build serves no indexes")
    assert done.returncode == 0, done.stderr + done.stdout
    counts = json.loads(out.read_text())["kinds"]
    assert {kind: each["rounds"] for kind, each in counts.items()} == {"flat": 2, few[-1]: 2}
    done = run("damage", *few, *more, cache=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    counts = json.loads(out.read_text())["kinds"]
    assert {kind: each["rounds"] for kind, each in counts.items()} == {"flat": 2, few[-1]: 2}
    done = run("serve", "requests", "--count", "100", *more, cache=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(out.read_text())["4xx"] > 50
    if not shutil.which("wrk") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("bench/serve load needs wrk and two cores")
    pytest.importorskip("knear", reason="bench/serve load needs knear")
    data = small_sift(tmp_path / "data")
    few = ("--set", "sift-5k", "--seconds", "1", "--baseline-seconds", "0.2", "--connections", "8")
    done = run("serve", "load", *few, *more, cache=tmp_path, data=data)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(out.read_text())["load"]
    assert [each["form"] for each in found] == ["binary", "json"]
    for each in found:
        assert each["requests"] > 0 and each["dropped"] == each["refused"] == each["wrong"] == 0
        assert each["batch"] >= 1


def test_ranks_on_few_rows(tmp_path):
    program = Path(os.environ.get("KNEAR_PROGRAM", BENCH.parent / "build/release/bin/knear"))
    if not program.with_name("knear-dist").is_file():
        pytest.skip(f"bench/ranks needs knear-dist beside {program}")
    out = tmp_path / "out.json"
    shape = ("--rows", "3000", "--dim", "8", "--queries", "50", "-k", "4", "--ranks", "1", "2")
    few = ("--repeat", "1", "--program", str(program), "--json", str(out))
    done = run("ranks", *shape, *few, cache=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    alone, two = json.loads(out.read_text())
    assert (alone["ranks"], two["ranks"]) == (1, 2)
    assert alone["ratio"] > 0 and two["ratio"] > 0
    for one, many in two["pairs"]:
        assert one["rows"] == many["rows"] == 3000
        assert many["merge_bytes"] == many["predicted_merge_bytes"] == 50 * 4 * 16 + 8


def test_graphs_on_a_small_set(tmp_path):
    for package in ("knear", "faiss"):
        pytest.importorskip(package, reason=f"bench/graphs needs {package}")
    data, out = small_sift(tmp_path / "data"), tmp_path / "out.json"
    options = ("--sets", "sift-5k", "-k", "5", "--repeat", "1", "--json", str(out))
    done = run("graphs", *options, "--sample", "500", cache=tmp_path, data=data)
    assert done.returncode == 0, done.stderr
    (exact,) = json.loads(out.read_text())["results"]
    assert exact["rows"] == 4000 and exact["times"] > 0
    sizes = ("--sizes", "1000", "4000", "9000")
    done = run("graphs", *options, *sizes, cache=tmp_path, data=data)
    assert "9,000 rows are more than there are" in done.stdout, done.stderr
    (growth,) = json.loads(out.read_text())["results"]
    assert [size for size, _, _ in growth["sizes"]] == [1000, 4000]
    assert all(took > 0 and predicted > 0 for _, took, predicted in growth["sizes"])
    refine = ("--recall", "0.9", "--refine", "0.8", "--check", "500")
    done = run("graphs", *options, *refine, cache=tmp_path, data=data)
    assert done.returncode == 0, done.stderr
    (refined,) = json.loads(out.read_text())["results"]
    # So few rows are joined exactly, whatever recall is asked.
    assert refined["found"] == {"lists": 1.0, "lists of 0.8, refined": 1.0}
    assert all(refined["reached"].values())
    done = run("graphs", *options, "--refine", "0.8", cache=tmp_path, data=data)
    assert done.returncode == 2 and "--refine is to reach --recall" in done.stderr


def test_the_choice_of_an_index_on_a_small_set(tmp_path):
    pytest.importorskip("knear", reason="bench/auto needs knear")
    data, out = small_sift(tmp_path / "data"), tmp_path / "out.json"
    case = ("--case", "sift-5k", "4000", "0.9", "60")
    done = run("auto", *case, "--repeat", "1", "--json", str(out), cache=tmp_path, data=data)
    assert done.returncode in (0, 1), done.stderr
    (line,) = json.loads(out.read_text())
    assert (line["chosen"], line["rows"], line["batch"]) == ("Flat", 4000, 60)
    assert len(line["microseconds"]) + len(line["out"]) == 8
    assert line["ratio"] >= 1


def test_recall_of_an_approximate_answer():
    base = np.array([[0.0], [1.0], [1.0], [2.0], [5.0]], np.float32)
    queries = np.zeros((2, 1), np.float32)
    exact = np.array([[0, 1], [0, 1]], np.float32), np.array([[0, 1], [0, 1]])
    answer = np.array([[0, 2], [3, -1]])  # a tie of the second; a farther row, and none
    assert truth.recall_of_all(answer, exact, queries, base, "l2") == (0.5, 0.25)
    assert truth.recall_of_all(exact[1], exact, queries, base, "l2") == (1, 1)
    twice = np.array([[0, 0], [0, 1]])
    assert truth.recall_of_all(twice, exact, queries, base, "l2") == (0.75, 0.75)


def test_mistakes_of_a_selection_are_found():
    rows = np.random.default_rng(8).permutation(60).reshape(3, 20).astype(np.float32)
    rows[0, 5] = rows[0, 9] = -1  # a tie
    order = np.argsort(rows, axis=1, kind="stable")[:, :4]
    values = np.take_along_axis(rows, order, 1)
    places = np.sort(order, axis=1)
    at_places = np.take_along_axis(rows, places, 1)
    swapped = order.copy()
    swapped[0, :2] = swapped[0, 1::-1]
    twice = order.copy()
    twice[1, 3] = twice[1, 0]
    worse = order.copy()
    worse[2, 3] = np.argsort(rows[2])[6]
    outside = order.copy()
    outside[1, 1] = -1
    off = values.copy()
    off[1, 1] = np.nextafter(off[1, 1], np.float32(np.inf))

    assert truth.selection_mistake(values, order, rows, order, True) is None
    assert truth.selection_mistake(at_places, places, rows, order, False) is None
    assert truth.selection_mistake(values, order, rows, order, False)
    for indices in (swapped, twice, worse, outside):
        assert truth.selection_mistake(values, indices, rows, order, True) == "other indices"
    assert truth.selection_mistake(off, order, rows, order, True) == "other values"

    for indices in (order, places, swapped):
        assert truth.peer_mistake(None, indices, rows, order) is None
    assert truth.peer_mistake(values, swapped, rows, order) is None
    assert truth.peer_mistake(None, twice, rows, order) == "an index twice"
    assert truth.peer_mistake(None, outside, rows, order) == "an index outside the row"
    assert truth.peer_mistake(None, worse, rows, order) == "other values"
    assert truth.peer_mistake(off, order, rows, order) == "values of other indices"


def test_select_on_small_matrices(tmp_path):
    for package in ("knear", "faiss"):
        pytest.importorskip(package, reason=f"bench/select needs {package}")
    out = tmp_path / "out.json"
    options = ("--rows", "9", "--cols", "30", "500", "-k", "1", "40", "--kind", "uniform", "ties")
    options = (*options, "--threads", "2", "--repeat", "2", "--min-time", "0.001", "--members")
    done = run("select", *options, "--json", str(out), cache=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("skipped: a row has fewer values") == 2
    everything = json.loads(out.read_text())
    assert [(s["cols"], s["k"]) for s in everything["skipped"]] == [(30, 40)] * 2
    shapes = [(r["kind"], r["cols"], r["k"]) for r in everything["results"]]
    each = [(30, 1), (500, 1), (500, 40)]
    assert shapes == [(kind, *shape) for kind in ("uniform", "ties") for shape in each]
    for result in everything["results"]:
        measured = result["systems"]
        names = {"argpartition", "kmin", "knear", "unsorted", "threshold", "partition"}
        assert set(measured) | set(result["members_left_out"]) >= names
        peers = min(measured[name]["median_seconds"] for name in ("argpartition", "kmin"))
        ours = measured["knear"]
        assert ours["ratio"] * ours["median_seconds"] == pytest.approx(peers)
        for name, entry in measured.items():
            assert len(entry["seconds"]) == 2, name
            assert entry["wrong"] is None, name
    ratios = [entry for entry in everything["summary"] if entry["figure"] == "ratio"]
    assert [entry["shapes"] for entry in ratios] == [6, 6]


def test_what_is_found_and_what_differs():
    """found() and differs() for answers with and without mistakes, in each direction."""
    exact = (
        np.array([[1, 2, 2, 3], [1, 2, 4, 4]], np.float32),
        np.array([[0, 1, 2, 3], [4, 5, 6, 7]]),
    )
    tie = exact[0].copy(), np.array([[0, 1, 2, 3], [4, 5, 6, 9]])
    worse = (
        np.array([[1, 2, 3, 5], [1, 2, 4, 4]], np.float32),
        np.array([[0, 1, 3, 8], [4, 5, 6, 7]]),
    )
    twice = exact[0].copy(), np.array([[0, 1, 2, 2], [4, 5, 6, 7]])
    missing = exact[0].copy(), np.array([[0, 1, 2, -1], [4, 5, 6, 7]])
    for answer, counts, other in (
        (exact, [4, 4], [False, False]),
        (tie, [4, 4], [False, True]),
        (worse, [3, 4], [True, False]),
        (twice, [3, 4], [True, False]),
        (missing, [3, 4], [True, False]),
    ):
        assert truth.found(answer, exact, "l2").tolist() == counts
        negative = [(-distances, ids) for distances, ids in (answer, exact)]
        assert truth.found(*negative, "ip").tolist() == counts
        assert truth.differs(answer, exact).tolist() == other
    off = np.nextafter(exact[0], np.float32(9)), exact[1]
    assert truth.differs(off, exact).all()

    base = np.arange(10, dtype=np.float32)[:, None]
    queries = np.zeros((2, 1), np.float32)
    ids = np.array([[0, 1], [0, 3]])
    right = ids.astype(np.float32) ** 2, ids
    assert truth.false_distances(right, range(2), queries, base, "l2") == []
    assert truth.false_distances((right[0] + 1, ids), [1], queries, base, "l2") == [1]
    for wrong in (0, -1, 10):
        bad = np.array([[0, 1], [0, wrong]])
        assert truth.false_distances((right[0], bad), range(2), queries, base, "l2") == [1]


def test_orders_are_permutations():
    pytest.importorskip("knear", reason="support/orders.py needs knear")
    from support import orders

    rng = np.random.default_rng(9)
    base = rng.integers(0, 256, (1003, 5)).astype(np.uint8)
    queries = rng.integers(0, 256, (3, 5)).astype(np.uint8)
    classes = rng.integers(0, 7, 1003)
    far = truth.exact_distances(queries[0], base, "l2")

    def order_of(name, labels=None):
        how = {"front": 20, "bins": 16, "seed": 3}
        order = orders.order_of(name, base, queries, labels, **how)
        assert np.array_equal(np.sort(order), np.arange(1003)), name
        return order

    made = {name: order_of(name) for name in orders.ORDERS}
    assert len({order.tobytes() for order in made.values()}) == len(made)
    assert (np.diff(classes[order_of("class", classes)]) >= 0).all()
    sorted_far = np.sort(far)
    assert np.array_equal(far[made["distance"]], sorted_far)
    assert np.array_equal(far[made["front"][:20]], sorted_far[:20])
    assert (np.diff(made["front"][20:]) > 0).all()
    assert np.array_equal(far[made["stride"][::16]], sorted_far[: len(range(0, 1003, 16))])


def test_recall_on_a_small_set(tmp_path):
    pytest.importorskip("knear", reason="bench/recall needs knear")
    folder = tmp_path / "data" / "sift-5k"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(10)
    for name, rows in (("base", 3000), ("queries", 50)):
        sets.write(folder / f"{name}.bvecs", rng.integers(0, 99, (rows, 8)).astype(np.uint8))
    out = tmp_path / "out.json"
    options = ("--sets", "sift-5k", "bge-bible", "-k", "5", "40", "4000", "--threads", "2")
    options = (*options, "--recall", "0.9", "1", "--duplicate", "20", "--repeat", "2")
    done = run("recall", *options, "--json", str(out), cache=tmp_path, data=tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert "bge-bible: skipped" in done.stdout
    assert "k = 4000 skipped" in done.stdout
    assert "the promise holds: 14 of 14 searches" in done.stdout
    everything = json.loads(out.read_text())
    assert everything["mistakes"] == []
    names = ["given", "random", "class", "distance", "mean", "front", "stride"]
    shapes = [(r["order"], r["k"]) for r in everything["results"]]
    assert shapes == [(name, k) for name in names for k in (5, 40)]
    for result in everything["results"]:
        assert len(result["exact"]["seconds"]) == 2
        some, whole = result["targets"]
        assert (some["target"], whole["target"]) == (0.9, 1)
        assert some["measured"] >= max(0.9, some["least"])
        assert some["duplicate"]["queries"] == 20
        assert some["exact"] >= some["certified"]
        assert (whole["measured"], whole["exact"], whole["certified"]) == (1, 1, 1)
        assert some["bins"] > 1
