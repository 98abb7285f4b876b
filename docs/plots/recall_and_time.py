"""Recall and queries per second of some indexes, on the vectors of the tutorial."""

import time

import matplotlib.pyplot as plt
import numpy as np

import knear

rng = np.random.default_rng(7)
centers = rng.standard_normal((500, 48), dtype=np.float32)
scale = 1 / np.sqrt(np.arange(1, 49, dtype=np.float32))


def draw(n: int) -> np.ndarray:
    around = rng.standard_normal((n, 48), dtype=np.float32)
    return (centers[rng.integers(500, size=n)] + np.float32(0.8) * around) * scale


def seconds(search) -> float:
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        search()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


base, queries = draw(100_000), draw(1_000)
flat = knear.Index("Flat", dim=48)
flat.add(base)
truth = flat.search(queries, k=10)

figure, place = plt.subplots(figsize=(7, 4.2))
exact = seconds(lambda: flat.search(queries, k=10))
place.plot([1], [len(queries) / exact], "k*", markersize=12, label="Flat (exact)")
for factory in ("IVF512,Flat", "IVF512,PQ24,RFlat", "IVF512,SQ8", "IVF512,PQ24"):
    index = knear.Index(factory, dim=48)
    index.train(base)
    index.add(base)
    recalls, rates = [], []
    for probes in (1, 2, 4, 8, 16, 32, 64):
        found = index.search(queries, k=10, probes=probes)
        pairs = zip(found.ids, truth.ids, strict=True)
        recalls.append(np.mean([np.isin(a, b).mean() for a, b in pairs]))
        rates.append(len(queries) / seconds(lambda: index.search(queries, k=10, probes=probes)))  # noqa: B023
    label = f"{factory} ({index.memory_bytes / 2**20:.0f} MiB)"
    place.plot(recalls, rates, marker="o", markersize=4, label=label)
place.set_yscale("log")
place.set_xlabel("recall of the 10 nearest, 1 to 64 lists probed")
place.set_ylabel("queries per second, in one batch")
place.grid(True, which="both", alpha=0.3)
place.legend(fontsize=8)
figure.tight_layout()
