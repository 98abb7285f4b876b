"""knear.dask on a cluster of this machine: the bits of a single process, and what goes wrong; and
what it stands on, parts of a base that are merged."""

import doctest

import numpy as np
import pytest

import knear

dask_array = pytest.importorskip("dask.array", reason="needs dask")
distributed = pytest.importorskip("distributed", reason="needs distributed")
import knear.dask

ROWS, DIM = 2100, 12


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def vectors(seed=1, rows=ROWS):
    """Whole numbers, so that there are ties, some rows twice."""
    random = np.random.default_rng(seed)
    x = random.integers(-3, 4, (rows, DIM)).astype(np.float32)
    x[rows // 2 :: 7] = x[: len(x[rows // 2 :: 7])]
    return x


def same(found, whole):
    assert found.ids.tolist() == whole.ids.tolist()
    assert found.distances.tobytes() == whole.distances.tobytes()


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("chunks", [(ROWS, DIM), (500, 5), (7, DIM), ((1, 2000, 0, 99), DIM)])
def test_a_flat_index_has_the_bits_of_one_process(client, metric, chunks):
    x, q = vectors(), vectors(2, 40)
    index = knear.dask.build(dask_array.from_array(x, chunks=chunks), metric=metric, client=client)
    assert (len(index), index.dim, index.metric, index.factory) == (ROWS, DIM, metric, "Flat")
    for k in (1, 10, 150):
        same(index.search(q, k), knear.knn(q, x, k, metric=metric))


@pytest.mark.parametrize("kind", ["float64", "float16", "uint8", "int32", "bfloat16"])
def test_element_types_stay(client, kind):
    if kind == "bfloat16":
        kind = pytest.importorskip("ml_dtypes").bfloat16
    x, q = (np.abs(vectors(seed, 300)).astype(kind) for seed in (1, 2))
    index = knear.dask.build(dask_array.from_array(x, chunks=(100, DIM)), client=client)
    same(index.search(q[::3], 5), knear.knn(q[::3], x, 5))


def test_fewer_rows_than_are_asked_for(client):
    x = vectors(rows=5)
    index = knear.dask.build(dask_array.from_array(x, chunks=(2, DIM)), client=client)
    same(index.search(x[:2], 8), knear.knn(x[:2], x, 8))


@pytest.mark.parametrize(
    "factory", ["IVF16,Flat", "IVF16,PQ4", "PQ4", "IVF8,SQ8", "PCA6,IVF8,Flat"]
)
def test_lists_and_codes_have_those_of_one_process(client, factory):
    x, q = vectors(), vectors(2, 30)
    index = knear.dask.build(dask_array.from_array(x, chunks=(400, DIM)), factory, client=client)
    one = knear.Index(factory, dim=DIM)
    one.train(x)
    one.add(x)
    for probes in (1, 3, 8) if one.lists else (None,):
        same(index.search(q, 10, probes=probes), one.search(q, 10, probes=probes))


def test_a_graph_is_searched_as_far_as_is_asked(client):
    x = vectors(rows=300)
    index = knear.dask.build(dask_array.from_array(x, chunks=(100, DIM)), "Graph8", client=client)
    same(index.search(x[:5], 3, ef=100), knear.knn(x[:5], x, 3))


def test_dask_knows_how_large_a_partition_is(client):
    from dask.sizeof import sizeof

    x = np.random.default_rng(1).standard_normal((ROWS, DIM))
    index = knear.Index("Flat", dim=DIM)
    index.add(x)
    assert sizeof(index) == index.memory_bytes > ROWS * DIM * 4
    made = knear.dask.build(dask_array.from_array(x, chunks=(700, DIM)), client=client)
    keys = [part.key for part in made._parts]
    sizes = client.run_on_scheduler(
        lambda dask_scheduler: [dask_scheduler.tasks[key].nbytes for key in keys]
    )
    assert min(sizes) > 700 * DIM * 4


def test_partitions_stay_where_they_are(client):
    x = dask_array.random.default_rng(1).standard_normal((400_000, 32), chunks=(50_000, 32))
    index = knear.dask.build(x.astype(np.float32), client=client)
    for _ in range(8):
        index.search(np.ones((200, 32)), 10)
    assert {len(places) for places in client.who_has(index._parts).values()} == {1}


def test_what_is_learned_is_learned_from_a_sample(client):
    x = dask_array.from_array(vectors(), chunks=(300, DIM))
    made = [
        knear.dask.build(x, "IVF4,Flat", client=client, train_rows=100, seed=seed)
        for seed in (1, 1, -2)
    ]
    centroids = [index._like.centroids.tobytes() for index in made]
    assert centroids[0] == centroids[1] != centroids[2]


def test_files_are_partitions(client, tmp_path):
    x, q = vectors(), vectors(2, 10)
    np.save(tmp_path / "a.npy", x[:900])
    knear.write_vectors(tmp_path / "b.fvecs", x[900:1500])
    knear.write_vectors(tmp_path / "c.fbin", x[1500:])
    paths = [tmp_path / "a.npy", str(tmp_path / "b.fvecs"), tmp_path / "c.fbin"]
    index = knear.dask.build(paths, client=client)
    assert index.partitions == 3
    same(index.search(q, 10), knear.knn(q, x, 10))


def test_without_a_client_the_one_that_there_is(client):
    x = vectors(rows=50)
    index = knear.dask.build(dask_array.from_array(x, chunks=(20, DIM)))
    assert "50 x 12, 3 partitions" in repr(index)


def test_errors_name_the_partition(client, tmp_path):
    x = vectors()
    x[1234, 3] = np.nan
    chunks = dask_array.from_array(x, chunks=(500, DIM))
    with pytest.raises(knear.InvalidArgument, match="partition 2: .* row 234 column 3 is nan"):
        knear.dask.build(chunks, client=client)
    np.save(tmp_path / "a.npy", x[:9])
    (tmp_path / "b.npy").write_bytes(b"no vectors")
    with pytest.raises(knear.CorruptFile, match=r"b\.npy"):
        knear.dask.build([tmp_path / "a.npy", tmp_path / "b.npy"], client=client)
    with pytest.raises(knear.IoError, match=r"c\.npy"):
        knear.dask.build([tmp_path / "c.npy"], client=client)
    np.save(tmp_path / "d.npy", x[:9, :5])
    with pytest.raises(knear.ShapeMismatch, match=r"d\.npy has 5 columns, .*a\.npy has 12"):
        knear.dask.build([tmp_path / "a.npy", tmp_path / "d.npy"], client=client)
    index = knear.dask.build([tmp_path / "a.npy"], client=client)
    with pytest.raises(knear.ShapeMismatch, match=r"a\.npy: queries have 5 columns"):
        index.search(x[:2, :5], 1)
    with pytest.raises(knear.InvalidArgument, match=r"a\.npy: k must be at least 1"):
        index.search(x[:2], 0)


def test_what_build_refuses(client):
    x = dask_array.from_array(vectors(), chunks=(500, DIM))
    for refused, words, says in (
        (x[x[:, 0] > 0], {}, "unknown sizes"),
        (x[0], {}, "two dimensions"),
        (x, {"factory": "auto"}, "auto"),
        (x, {"factory": "IVF"}, "IVF"),
        (x, {"metric": "l3"}, "l3"),
        (x, {"client": 3}, "client must be"),
        (x, {"factory": "IVF4,Flat", "train_rows": 0}, "train_rows"),
        (x, {"factory": "Flat", "train_rows": 100}, "train_rows is 100, but"),
        (x[:0], {"factory": "IVF4,Flat"}, "no rows"),
        (vectors(), {}, "x must be a Dask array"),
        ("a.npy", {}, "x must be a Dask array"),
        ([], {}, "x must be a Dask array"),
    ):
        with pytest.raises(ValueError, match=says):
            knear.dask.build(refused, **{"client": client, **words})


def test_the_examples_hold():
    found = doctest.testmod(knear.dask)
    assert found.attempted > 0
    assert found.failed == 0
