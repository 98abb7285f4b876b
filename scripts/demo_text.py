"""What scripts/demo does with text: makes the vectors, and answers sentences.

    .venv/bin/python scripts/demo_text.py paths                 # four lines, see below
    .venv/bin/python scripts/demo_text.py ask PROGRAM SENTENCE

`paths` makes the set `text` of bench/data unless it is in the cache, and prints the files of base,
queries, texts of the base and texts of the queries. `ask` prints the texts nearest to a sentence,
with their Euclidean distances, as the program knear finds them.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from support import sets, text

ROWS, QUERIES = 60_000, 3_000
NEAREST = 10


def files() -> list[Path]:
    """The files of the set in the order of sets.PARTS."""
    about = sets.obtain("text", ROWS, QUERIES, say=lambda line: None)
    return [Path(about["folder"]) / about[part]["file"] for part in sets.PARTS]


def ask(program: str, sentence: str) -> None:
    begin = time.perf_counter()
    base, _, labels, _ = files()
    query = text.Embedding()([sentence])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "query.npy", query)
        words = ["search", "--base", base, "--queries", folder / "query.npy", "-k", NEAREST]
        words += ["--out", folder / "ids.npy", "--distances", folder / "distances.npy", "--json"]
        done = subprocess.run([program, *map(str, words)], check=False, capture_output=True)
        if done.returncode != 0:
            sys.exit(done.stderr.decode(errors="replace").strip())
        ids = np.load(folder / "ids.npy")[0]
        distances = np.sqrt(np.load(folder / "distances.npy")[0])
    lines = labels.read_text(encoding="utf-8").split("\n")
    for row, distance in zip(ids, distances, strict=True):
        print(f"{distance:.2f}  {lines[row]}")
    search = 1000 * json.loads(done.stdout)["seconds"]
    total = time.perf_counter() - begin
    print(
        f"demo: the {NEAREST} nearest of {len(lines) - 1:,} texts, exactly, with Euclidean "
        f"distances; {search:.0f} ms to search, {total:.1f} s in all",
        file=sys.stderr,
    )


def main() -> None:
    try:
        if sys.argv[1:] == ["paths"]:
            print("\n".join(map(str, files())))
        elif sys.argv[1:2] == ["ask"] and len(sys.argv) == 4:
            ask(*sys.argv[2:])
        else:
            sys.exit(__doc__)
    except (sets.SetError, text.TextError) as error:
        sys.exit(f"demo: {error}")


if __name__ == "__main__":
    main()
