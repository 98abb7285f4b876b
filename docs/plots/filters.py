"""What an exact search costs by the share of the rows that a filter allows."""

import time

import matplotlib.pyplot as plt
import numpy as np

import knear

rng = np.random.default_rng(3)
base = rng.standard_normal((200_000, 64), dtype=np.float32)
queries = rng.standard_normal((200, 64), dtype=np.float32)
index = knear.Index("Flat", dim=64)
index.add(base)
for _ in range(3):
    index.search(queries, k=10)

shares = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1]
milliseconds = []
for share in shares:
    allowed = rng.random(len(base)) < share if share < 1 else None
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        index.search(queries, k=10, filter=allowed)
        times.append(1000 * (time.perf_counter() - begin))
    milliseconds.append(np.median(times))

figure, place = plt.subplots(figsize=(6, 3.2))
place.plot([100 * share for share in shares], milliseconds, marker="o")
place.set_xscale("log")
place.set_yscale("log")
place.set_xlabel("% of the rows allowed")
place.set_ylabel("milliseconds for 200 queries")
place.grid(True, which="major", alpha=0.3)
figure.tight_layout()
