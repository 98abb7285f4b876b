"""Ten centroids of the digits as pictures, and how the objective falls."""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

import knear

pictures, _ = load_digits(return_X_y=True)
km = knear.KMeans(10, iterations=50, seed=2).train(pictures)

figure = plt.figure(figsize=(8, 3.2))
left, right = figure.subfigures(1, 2, width_ratios=(1.4, 1))
for place, centroid in zip(left.subplots(2, 5).flat, km.centroids, strict=True):
    place.imshow(centroid.reshape(8, 8), cmap="gray_r")
    place.set_axis_off()
curve = right.subplots()
curve.plot([step["objective"] / len(pictures) for step in km.steps], marker="o", markersize=3)
curve.set_xlabel("iteration")
curve.set_ylabel("mean squared distance")
right.subplots_adjust(left=0.25, bottom=0.2)
