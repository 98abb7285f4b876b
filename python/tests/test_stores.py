"""Tables in and ids out: columns of Arrow and DuckDB, neighbours as tables; and the examples of
stores, which are run as they are."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import brute_force
from pretended_arrays import Pretender

import knear

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "examples" / "python").glob("*.py"))
NEEDS = {
    "langchain_store": ["langchain_core"],
    "datasets_column": ["datasets"],
    "duckdb_table": ["duckdb", "pyarrow"],
    "hashed_words": [],
}
ROWS, DIM, K = 200, 6, 5


@pytest.fixture
def x(rng):
    return rng.standard_normal((ROWS, DIM)).astype(np.float32)


@pytest.fixture
def ids(rng):
    return rng.permutation(10 * ROWS)[:ROWS]


@pytest.fixture
def pyarrow():
    return pytest.importorskip("pyarrow", reason="needs pyarrow")


def columns_of(pyarrow, x):
    """The vectors as every kind of column of Arrow that holds such."""
    values = pyarrow.array(x.ravel())
    kinds = [pyarrow.list_(values.type), pyarrow.large_list(values.type)]
    kinds.append(pyarrow.list_(values.type, x.shape[1]))
    for kind in kinds:
        column = pyarrow.array(list(x), kind)
        yield column
        yield pyarrow.chunked_array([column[:7], column[7:7], column[7:150], column[150:]])
        padded = pyarrow.concat_arrays([column[:3], column, column[:3]])
        yield padded[3:-3]
        yield pyarrow.chunked_array([padded[:50], padded[50:]])[3:-3]


def test_columns_of_arrow_go_in_with_their_ids(pyarrow, x, ids):
    by_id = np.argsort(ids)
    distances, places = brute_force(x[:9], x[by_id], K, "l2")
    want = ids[by_id][places]
    chunked = pyarrow.chunked_array([ids[:99], ids[99:]])
    for dtype in (np.float32, np.float64, np.float16):
        rows = x.astype(np.float16).astype(dtype)
        distances, places = brute_force(rows[:9], rows[by_id], K, "l2")
        want = ids[by_id][places]
        for column in columns_of(pyarrow, rows):
            for given in (chunked, pyarrow.array(ids), pyarrow.array(ids.astype(np.int32))):
                index = knear.Index("Flat", dim=DIM)
                index.add(column, ids=given)
                found = index.search(column[:9], K)
                np.testing.assert_array_equal(found.ids, want)
                np.testing.assert_allclose(found.distances, distances, rtol=1e-6)
    allowed = index.search(x[:9], K, filter=chunked[20:80])
    assert np.isin(allowed.ids, ids[20:80]).all()
    index.replace(chunked[:2], pyarrow.array(list(rows[2:4])))
    index.remove(chunked[2:])
    np.testing.assert_array_equal(index.reconstruct(chunked[:2]), rows[2:4])
    assert len(index) == 2


def test_columns_that_are_no_vectors_or_ids_are_named(pyarrow, x):
    index = knear.Index("Flat", dim=2)
    good = pyarrow.array([[1.0, 2.0], [3.0, 4.0]])
    table = pyarrow.table({"x": good, "id": [1, 2]})
    pairs = pyarrow.list_(pyarrow.float32(), 2)
    for bad, text in (
        (pyarrow.array([[1.0, 2.0], None]), "x have 1 rows without a value"),
        (pyarrow.array([[1.0, 2.0], None], pairs), "x have 1 rows without a value"),
        (pyarrow.array([[1.0, 2.0], [3.0, None]]), "x have 1 elements without a value"),
        (pyarrow.array([[1.0, 2.0], [3.0, None]], pairs), "x have 1 elements without a value"),
        (pyarrow.array([[1.0, 2.0], [3.0]]), "x have 2 columns in row 0, but 1 in row 1"),
        (table, r'x is a Table of Arrow: give its column of vectors, x.column\("..."\)'),
        (table.to_reader(), "x is a RecordBatchReader of Arrow"),
        (table["id"], "x are a column of int64"),
        (pyarrow.array([["a"], ["b"]]), "x must not have elements of type"),
    ):
        with pytest.raises(knear.InvalidArgument, match=text):
            index.add(bad)
    for bad, text in (
        (pyarrow.array([1, None]), r"ids have no value \(null\) in 1 of 2 places"),
        (pyarrow.array([1.0, 2.0]), "ids must hold whole numbers"),
        (pyarrow.array(["1", "2"]), "ids must hold whole numbers"),
        (pyarrow.array([1, 1]), "1"),
        (pyarrow.array([1, -1]), "-1"),
    ):
        with pytest.raises(knear.InvalidArgument, match=text):
            index.add(good, ids=bad)
    with pytest.raises(knear.Error):
        index.add(good, ids=pyarrow.array([1]))
    assert len(index) == 0


def test_neighbours_are_a_table(pyarrow, x, ids):
    index = knear.Index("Flat", dim=DIM, metric="ip")
    index.add(x, ids=ids)
    names, kinds = ["query", "rank", "id", "distance"], ["int64", "int64", "int64", "float"]
    for found in (
        index.search(x[:9], K),
        index.search(x[:9], 10, filter=ids[:4]),
        index.search(x[:9], 3, filter=[]),
        knear.knn(x[:9], x[:4], 6),
    ):
        table = found.to_arrow()
        assert table.column_names == names and [str(kind) for kind in table.schema.types] == kinds
        rows = [
            (query, rank, found.ids[query, rank], found.distances[query, rank])
            for query in range(9)
            for rank in range(found.ids.shape[1])
            if found.ids[query, rank] >= 0
        ]
        assert [tuple(row.values()) for row in table.to_pylist()] == rows
    assert len(index.search(x[:9], 10, filter=ids[:4]).to_arrow()) == 9 * 4
    within = index.range_search(x[:9], 2.0)
    table = within.to_arrow()
    assert table.column_names == names and [str(kind) for kind in table.schema.types] == kinds
    rows = [
        (query, rank, within.ids[begin + rank], within.distances[begin + rank])
        for query, (begin, end) in enumerate(zip(within.begin, within.begin[1:], strict=False))
        for rank in range(end - begin)
    ]
    assert [tuple(row.values()) for row in table.to_pylist()] == rows and len(rows) > 9
    assert len(index.range_search(x[:9], 1e9).to_arrow()) == 0
    made = knear.SearchResult(np.float32([[1.0, np.inf]]), np.array([[5, -1]]))
    assert made.to_arrow().to_pylist() == [{"query": 0, "rank": 0, "id": 5, "distance": 1.0}]


def test_neighbours_on_a_gpu_are_a_table_too(pyarrow, x, pretended):
    on_gpu = [Pretender(each) for each in (np.float32([[1.0, 2.0]]), np.array([[5, 6]]))]
    assert knear.SearchResult(*on_gpu).to_arrow().to_pydict() == {
        "query": [0, 0],
        "rank": [0, 1],
        "id": [5, 6],
        "distance": [1.0, 2.0],
    }


def test_a_table_needs_pyarrow(x, monkeypatch):
    found = knear.knn(x[:1], x, 2)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(knear.InvalidArgument, match="the package pyarrow, but that is not install"):
        found.to_arrow()


def test_tables_of_duckdb(pyarrow, x, ids):
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb")
    database = duckdb.connect()
    rows = pyarrow.table({"id": ids, "x": list(x), "of": np.arange(ROWS) % 7})
    database.register("rows", rows)
    for kind in (f"FLOAT[{DIM}]", "FLOAT[]", f"DOUBLE[{DIM}]", "DOUBLE[]"):
        database.execute(
            f"CREATE OR REPLACE TABLE vectors AS SELECT id, of, x::{kind} AS x FROM rows"
        )
        table = database.sql("SELECT * FROM vectors").to_arrow_table()
        index = knear.Index("Flat", dim=DIM)
        index.add(table["x"], ids=table["id"])
        for where in ("true", "of = 3", "of IN (1, 2) AND id % 2 = 0", "false"):
            chosen = database.sql(f"SELECT id FROM vectors WHERE {where}").to_arrow_table()["id"]
            found = index.search(x[:4], K, filter=chosen).to_arrow()
            database.register("found", found)
            joined = database.sql(
                "SELECT query, id FROM found JOIN vectors USING (id) ORDER BY query, rank"
            ).fetchall()
            # The same by SQL alone.
            want = []
            for query in range(4):
                distance = f"list_distance(x::DOUBLE[], {x[query].tolist()}::DOUBLE[])"
                nearest = database.sql(
                    f"SELECT id FROM vectors WHERE {where} ORDER BY {distance} LIMIT {K}"
                )
                want += [(query, id) for (id,) in nearest.fetchall()]
            assert joined == want, (kind, where)
            assert bool(want) == (where != "false")


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_examples_run(path, tmp_path):
    for name in NEEDS[path.stem]:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout or path.stem == "hashed_words"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["langchain_core", "datasets", "duckdb"])
def test_the_readme_says_what_runs(name, tmp_path, monkeypatch):
    """The code under "Stores" that needs this package, with the texts and vectors it is about."""
    pytest.importorskip(name, reason=f"needs {name}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "python"))
    readme = (ROOT / "python" / "README.md").read_text()
    section = readme.partition("\n## Stores\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", section, re.MULTILINE)
    heading = {"langchain_core": "langchain", "datasets": "datasets", "duckdb": "duckdb"}[name]
    (code,) = (each for each in blocks if re.search(rf"^    (import|from) .*{heading}", each, re.M))
    from hashed_words import DIM, vector_of

    names = {"knear": knear, "texts": ["one apple", "two pears", "three apples"]}
    names |= {"metadatas": [{"language": "en"}] * 3, "query": vector_of("an apple")}
    if name == "langchain_core":
        from langchain_core.embeddings import DeterministicFakeEmbedding

        names["embedding"] = DeterministicFakeEmbedding(size=8)
    vectors = [vector_of(text) for text in names["texts"]]
    if name == "datasets":
        import datasets

        names["dataset"] = datasets.Dataset.from_dict({"text": names["texts"], "vector": vectors})
    if name == "duckdb":
        import duckdb

        names["database"] = database = duckdb.connect()
        database.execute(f"CREATE TABLE texts (id INT, text TEXT, year INT, vector FLOAT[{DIM}])")
        for row, (text, vector) in enumerate(zip(names["texts"], vectors, strict=True)):
            database.execute("INSERT INTO texts VALUES (?, ?, 2024, ?)", [row, text, vector])
    exec(compile("".join(line[4:] or "\n" for line in code.splitlines(True)), name, "exec"), names)
    assert names["found"], name
