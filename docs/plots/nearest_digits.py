"""Pictures of digits, and the five that are nearest to each."""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

import knear

pictures, _ = load_digits(return_X_y=True)
base, queries = pictures[:1500], pictures[1500:1506]
distances, ids = knear.knn(queries, base, k=5)

figure, places = plt.subplots(len(queries), 6, figsize=(6, 6))
for row, query in enumerate(queries):
    for column, place in enumerate(places[row]):
        picture = query if column == 0 else base[ids[row, column - 1]]
        place.imshow(picture.reshape(8, 8), cmap="gray_r")
        title = "query" if column == 0 else f"{distances[row, column - 1]:.0f}"
        place.set_title(title, fontsize=8)
        place.set_axis_off()
figure.tight_layout()
