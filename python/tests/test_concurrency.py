"""Threads, processes and signals: the interpreter lock is released during work, and nothing
deadlocks.
"""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import knear
from knear import faiss


@pytest.fixture
def work(rng):
    base = rng.standard_normal((4000, 32)).astype(np.float32)
    index = knear.Index("Flat", dim=32)
    index.add(base)
    return index, base


def test_searches_from_many_threads_agree(work):
    index, base = work  # the first searches race for preparing the vectors
    want = knear.knn(base[:64], base, 5)
    with ThreadPoolExecutor(8) as pool:
        for distances, ids in pool.map(lambda _: index.search(base[:64], 5, threads=2), range(24)):
            np.testing.assert_array_equal(distances, want[0])
            np.testing.assert_array_equal(ids, want[1])


def test_searches_while_vectors_are_added(work):
    _, base = work
    index = knear.Index("Flat", dim=32)
    index.add(base[:500])
    best = knear.knn(base[:8], base[:500], 3)[0]

    def search(_):
        distances, ids = index.search(base[:8], 3)
        assert (distances <= best).all()
        assert (ids >= 0).all()
        assert len(index) >= 500

    with ThreadPoolExecutor(4) as pool:
        adds = [pool.submit(index.add, base[i : i + 100]) for i in range(500, 4000, 100)]
        list(pool.map(search, range(40)))
        for add in adds:
            add.result()
    assert len(index) == 4000
    assert index.search(base[:8], 3)[0].tolist() == knear.knn(base[:8], base, 3)[0].tolist()


def test_the_interpreter_is_free_during_work(rng):
    base = rng.standard_normal((20_000, 64)).astype(np.float32)
    began, ended = threading.Event(), threading.Event()
    rows = 8

    def search():
        began.set()
        knear.knn(base[:rows], base, 3, threads=1)
        ended.set()

    while True:
        began.clear()
        ended.clear()
        thread = threading.Thread(target=search)
        start = time.perf_counter()
        thread.start()
        began.wait()
        ticks = 0
        while not ended.is_set():
            time.sleep(0.001)
            ticks += 1
        thread.join()
        seconds = time.perf_counter() - start
        if seconds > 0.3:
            break
        rows = min(2 * rows, 20_000)
        base = base if rows < 20_000 else np.concatenate([base, base])
    # Without releasing the interpreter lock, this thread would have had one tick.
    assert ticks > 20


def test_a_child_process_may_go_on(work):
    index, base = work
    want = index.search(base[:16], 3, threads=2)  # the parent's threads exist now
    child = os.fork()
    if child == 0:
        try:
            got = index.search(base[:16], 3, threads=2)
            again = knear.knn(base[:16], base, 3, threads=2)
            same = all(np.array_equal(w, g) for w, g in zip(want + want, got + again, strict=True))
            os._exit(0 if same else 3)
        finally:
            os._exit(4)
    assert exit_code(child) == 0


def exit_code(child, seconds=60):
    """That of a child process; None if it had to be ended."""
    deadline = time.monotonic() + seconds
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(done[1])


class HeldUp:
    """A call with progress= in another thread, which stays in it until release()."""

    def __init__(self, call):
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=lambda: call(self._wait))

    def _wait(self, stage, share):
        self.inside.set()
        assert self.go_on.wait(120)

    def __enter__(self):
        self.thread.start()
        assert self.inside.wait(60)
        return self

    def __exit__(self, *error):
        self.go_on.set()
        self.thread.join()


def changes(kind, rng):
    """(index, rows): an index that has the rows, of a kind whose add() tells its progress."""
    rows = rng.standard_normal((4000, 32)).astype(np.float32)
    index = knear.Index("IVF16,Flat", dim=32, **({"shards": 2} if kind == "shards" else {}))
    index.train(rows, iterations=2)
    index.add(rows)
    return index, rows


@pytest.mark.parametrize("kind", ["one", "shards"])
def test_a_child_of_a_process_whose_index_is_being_changed_changes_its_own(kind, rng):
    index, rows = changes(kind, rng)
    with HeldUp(lambda progress: index.add(rows, progress=progress)):
        children = []
        for _ in range(5):
            child = os.fork()
            if child == 0:
                try:
                    index.add(rows[:100] + 1000)
                    index.remove([7])
                    index.replace([8], rows[8:9] - 1000)
                    right = len(index) == 4099
                    right &= index.search(rows[:1] + 1000, 1, probes=16).ids[0, 0] == 4000
                    right &= index.search(rows[8:9] - 1000, 1, probes=16).ids[0, 0] == 8
                    os._exit(0 if right else 3)
                finally:
                    os._exit(4)
            children.append(child)
        assert [exit_code(child, 20) for child in children] == [0] * 5
        assert len(index) == 4000
    assert len(index) == 8000  # the change of the parent was not disturbed


@pytest.mark.parametrize("factory", ["Graph16", "IVF64,Flat", "IVF64,PQ8"])
def test_a_child_of_a_process_whose_index_is_being_prepared_searches_its_own(factory, rng):
    """A graph that is made, a recall that is calibrated: by the first search, which others wait
    for."""
    rows = rng.standard_normal((4000, 32)).astype(np.float32)
    index = knear.Index(factory, dim=32)
    index.train(rows)
    index.add(rows)
    with HeldUp(lambda progress: index.search(rows[:300], 3, recall=0.4, progress=progress)):
        child = os.fork()
        if child == 0:
            try:
                near = index.search(rows[:300], 3, recall=0.4)
                os._exit(0 if near.ids.shape == (300, 3) and (near.ids[:, 0] >= 0).all() else 3)
            finally:
                os._exit(4)
        assert exit_code(child, 20) == 0


@pytest.mark.parametrize("kind", ["one", "shards"])
def test_ctrl_c_reaches_a_thread_that_waits_for_the_change_of_another(kind, rng):
    index, rows = changes(kind, rng)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with HeldUp(lambda progress: index.add(rows, progress=progress)) as other:
            for waits in (
                lambda: index.add(rows),
                lambda: index.remove([0]),
                lambda: index.compact(),
                lambda: index.reserve(10_000),
            ):
                timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                with pytest.raises(KeyboardInterrupt):
                    waits()
                timer.join()
                assert not other.go_on.is_set()
        assert len(index) == 8000
        index.remove([0])
        assert len(index) == 7999
    finally:
        signal.signal(signal.SIGINT, handler)


BESIDE = """
    import os, threading, numpy as np, LIBRARY, knear

    x = np.random.default_rng(1).standard_normal((4000, 32), dtype=np.float32)
    index = knear.Index("IVF16,Flat", dim=32)
    index.train(x)
    index.add(x)
    want = knear.knn(x[:64], x, 5)

    def theirs():
        if "LIBRARY" == "torch":
            data = torch.from_numpy(x)
            torch.cdist(data[:500], data).topk(5, largest=False)
        else:
            from sklearn.cluster import KMeans
            from sklearn.neighbors import NearestNeighbors
            KMeans(8, n_init=1, max_iter=5).fit(x)
            NearestNeighbors(algorithm="brute", n_jobs=2).fit(x).kneighbors(x[:500], 5)

    def both():
        for _ in range(3):
            theirs()
            assert (knear.knn(x[:64], x, 5, threads=2).ids == want.ids).all()
            assert (index.search(x[:64], 5, recall=1, threads=2).ids == want.ids).all()
        done.append(True)

    done = []
    threads = [threading.Thread(target=both) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert len(done) == 4
    child = os.fork()  # after use of both
    if child == 0:
        theirs = lambda: None  # OpenMP's threads are not to be used in a child
        both()
        os._exit(0 if len(done) == 5 else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize("library", ["sklearn", "torch"])
def test_beside_another_library_with_threads_of_its_own(library):
    pytest.importorskip(library)
    code = textwrap.dedent(BESIDE.replace("LIBRARY", library))
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_stops_a_long_search(threads):
    script = textwrap.dedent(
        f"""
        import numpy as np, knear, signal, time
        # Programs started in the background have it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        base = np.random.default_rng(1).standard_normal((50_000, 256)).astype(np.float32)
        index = knear.Index("Flat", dim=256)
        index.add(base)
        index.search(base[:1], 1)
        start = time.perf_counter()
        index.search(base[:40], 10, threads={threads})
        seconds = time.perf_counter() - start
        rows = min(400_000, int(40 * 60 / seconds) + 1)  # about a minute, and 400 MB at most
        queries = np.resize(base, (rows, 256))
        print("ready", flush=True)
        try:
            while True:
                index.search(queries, 10, threads={threads})
        except KeyboardInterrupt:
            print("stopped", flush=True)
        assert index.search(base[:1], 1)[1][0, 0] == 0  # and it is as good as before
        print("usable", flush=True)
        """
    )
    python = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert python.stdout.readline() == "ready\n"
        time.sleep(1)
        sent = time.monotonic()
        python.send_signal(signal.SIGINT)
        lines = python.communicate(timeout=120)[0].split()
        assert lines == ["stopped", "usable"]
        assert python.returncode == 0
        assert time.monotonic() - sent < 15
    finally:
        python.kill()


def processor_seconds_after_ctrl_c(call, delay):
    """From Ctrl-C, so long after the begin of a call, to KeyboardInterrupt; None: the call ended.

    Processor time, which other programs on the machine do not stretch.
    """
    sent, ended = [], False

    def press():
        time.sleep(delay)
        sent.append(time.process_time())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        call()
        ended = True
        thread.join()
        time.sleep(0.1)  # the signal comes here, at the latest
    except KeyboardInterrupt:
        pass
    finally:
        stopped = time.process_time()
        signal.signal(signal.SIGINT, handler)
    return None if ended else stopped - sent[0]


@pytest.fixture(scope="module")
def long_work():
    """Rows, and queries for many minutes of work."""
    rows = np.random.default_rng(1).standard_normal((100_000, 128), dtype=np.float32)
    return rows, np.resize(rows, (400_000, 128))


def index_of(factory, rows):
    index = knear.Index(factory, dim=rows.shape[1])
    index.train(rows[:10_000], iterations=2)
    index.add(rows)
    return index


def searching(factory, **options):
    """A call of `search` that takes long, and one that tells whether the index is usable."""

    def made(rows, queries):
        index = index_of(factory, rows)
        few = rows[:20]
        want = index.search(few, 3, probes=8, threads=1)

        def check():
            got = index.search(few, 3, probes=8, threads=1)
            np.testing.assert_array_equal(got.ids, want.ids)
            np.testing.assert_array_equal(got.distances, want.distances)

        return lambda: index.search(queries, 10, threads=1, **options), check

    return made


def of_arrays(call):
    """The same of a function of rows and queries, after which another search is right."""

    def made(rows, queries):
        def check():
            assert knear.knn(rows[:5], rows, 1).ids[:, 0].tolist() == [0, 1, 2, 3, 4]

        return lambda: call(rows, queries), check

    return made


def of_object(make, call, is_as_before):
    """The same of an object that is changed: it is then as it was."""

    def made(rows, queries):
        changed = make(rows)

        def check():
            assert is_as_before(changed)

        return lambda: call(changed, rows, queries), check

    return made


def knn(**options):
    k = options.pop("k", 10)
    return of_arrays(lambda rows, queries: knear.knn(queries, rows, k, threads=1, **options))


def pairs(rows):
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        faiss.pairwise_distances(rows, rows)
    finally:
        faiss.omp_set_num_threads(before)


LONG_CALLS = {
    "seeding": of_object(
        lambda rows: knear.KMeans(1500, seeding="k-means++", threads=1),
        lambda k_means, rows, queries: k_means.train(rows),
        lambda k_means: k_means._centroids is None,
    ),
    "k-means": of_arrays(lambda rows, queries: knear.KMeans(4096, threads=1).train(rows)),
    "lists": searching("IVF64,Flat", probes=32),
    "lists by recall": searching("IVF64,Flat", recall=0.99),
    "codes": searching("IVF64,PQ16", probes=64),
    "codes of 8 bits": searching("IVF64,SQ8", probes=64),
    "refined codes": searching("IVF64,PQ16,RFlat", probes=2, refine_factor=50),
    "fp32": knn(first_pass="fp32"),
    "direct": knn(first_pass="direct"),
    "threshold-heap": knn(method="threshold-heap"),
    "many neighbours": knn(k=1000),
    "self-join": of_arrays(lambda rows, queries: knear.self_join(queries, 10, threads=1)),
    "range search": of_arrays(
        lambda rows, queries: knear.range_search(queries, rows, 100.0, threads=1)
    ),
    "product quantizer": of_object(
        lambda rows: knear.ProductQuantizer(32, threads=1),
        lambda pq, rows, queries: pq.train(rows),
        lambda pq: pq._made is None,
    ),
    "add": of_object(
        lambda rows: index_of("IVF1024,PQ32", rows),
        lambda index, rows, queries: index.add(queries, threads=1),
        lambda index: len(index) == len(index.ids) == 100_000,
    ),
    "components": of_arrays(
        lambda rows, queries: knear.PCA(256, most_rows=0, threads=1).train(
            queries.reshape(-1, 2048)
        )
    ),
    "pairs": of_arrays(lambda rows, queries: pairs(rows[:20_000])),
    "roofline": of_arrays(lambda rows, queries: knear.roofline(1)),
    "roofline for long": of_arrays(lambda rows, queries: knear.roofline(2, seconds=600)),
}


@pytest.mark.parametrize("name", LONG_CALLS)
def test_ctrl_c_stops_any_long_call_within_half_a_second(name, long_work):
    call, check = LONG_CALLS[name](*long_work)
    seconds = processor_seconds_after_ctrl_c(call, 0.7)
    assert seconds is not None, "it ended before"
    assert seconds < 0.5
    check()


def test_ctrl_c_stops_writing_a_file(long_work, tmp_path):
    path = tmp_path / "rows.fvecs"
    knear.write_vectors(path, long_work[0][:10])

    def write():
        while True:
            knear.write_vectors(path, long_work[1])
            knear.write_vectors(path, long_work[0][:10])

    assert processor_seconds_after_ctrl_c(write, 0.3) < 0.5
    assert len(knear.read_vectors(path)) in (10, len(long_work[1]))  # whole or not at all
    assert [file.name for file in tmp_path.iterdir()] == ["rows.fvecs"]
