"""duckdb_table.py -- vectors out of a table of DuckDB, and their neighbours back into SQL.

    pip install . duckdb pyarrow        # in a clone of knear
    python examples/python/duckdb_table.py

The result of a query is a table of Arrow: one column of it is added to an index, another names the
rows. Neighbours are a table of Arrow too, which SQL joins with the rest, and a WHERE is a filter.
The vectors are those of hashed_words.py, so that nothing is downloaded.
"""

import duckdb
import numpy as np
from hashed_words import DIM, vector_of

import knear

recipes = [
    (102, "Lentil soup with cumin and lemon", 40, True),
    (205, "Tomato soup with basil", 30, True),
    (311, "Beef stew with red wine", 180, False),
    (318, "Lemon chicken with olives", 70, False),
    (420, "Red lentil curry with spinach", 35, True),
    (433, "Chicken soup with noodles", 120, False),
    (507, "Roast chicken with lemon and thyme", 110, False),
    (609, "Spinach and lentil salad", 25, True),
]
database = duckdb.connect()
database.execute(
    f"CREATE TABLE recipes (id BIGINT, title TEXT, minutes INT, vegan BOOL, vector FLOAT[{DIM}])"
)
database.executemany(
    "INSERT INTO recipes VALUES (?, ?, ?, ?, ?)",
    [(*recipe, vector_of(recipe[1]).tolist()) for recipe in recipes],
)

# Table in: the column of vectors is read where Arrow has it, and the rows keep their own ids.
table = database.sql("SELECT id, vector FROM recipes").to_arrow_table()
index = knear.Index("Flat", dim=DIM, metric="cosine")
index.add(table["vector"], ids=table["id"])

wishes = ["lentil soup", "chicken with lemon"]
queries = np.array([vector_of(wish) for wish in wishes])


def print_neighbours(found):
    # Ids out: `neighbours` is a table of Arrow that DuckDB finds by its name here.
    neighbours = found.to_arrow()
    rows = database.sql("""
        SELECT query, id, title, minutes, distance
        FROM neighbours JOIN recipes USING (id)
        ORDER BY query, rank
    """).fetchall()
    assert len(rows) == len(neighbours)
    for query, id, title, minutes, distance in rows:
        print(f"  {wishes[query]}: {id} {title}, {minutes} minutes ({distance:.3f})")
    return [id for _, id, *_ in rows]


print("nearest:")
nearest = print_neighbours(index.search(queries, k=2))

# A WHERE as the filter: its ids are the rows that may be found. Fewer than k are left out.
quick = database.sql("SELECT id FROM recipes WHERE vegan OR minutes < 100").to_arrow_table()["id"]
print("vegan, or within 100 minutes:")
allowed = print_neighbours(index.search(queries, k=2, filter=quick))

# What has changed in the table since is replaced in the index, under the same ids.
database.execute("UPDATE recipes SET title = 'Lentil soup with coconut' WHERE id = 420")
changed = [(420, vector_of("Lentil soup with coconut"))]
index.replace([id for id, _ in changed], np.array([vector for _, vector in changed]))
print("after a change:")
after = print_neighbours(index.search(queries[:1], k=2))

assert nearest == [102, 609, 318, 507], nearest
assert allowed == [102, 609, 318, 102], allowed
assert after == [420, 102], after
