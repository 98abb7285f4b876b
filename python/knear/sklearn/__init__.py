"""knear.sklearn: scikit-learn's neighbours and k-means, found by knear.

    from knear.sklearn import KNeighborsClassifier      # instead of sklearn.neighbors

    model = make_pipeline(StandardScaler(), KNeighborsClassifier(5)).fit(X, y)
    model.predict(X_test)

NearestNeighbors, KNeighborsClassifier, KNeighborsRegressor, KNeighborsTransformer and KMeans have
scikit-learn's parameters, methods and attributes, pass its check_estimator (KMeans but for one
check of weights, which scikit-learn's own fails too), and stand in pipelines and searches of
parameters. Answers are those of its brute force: distances in float64, equal ones
by index. What knear has no equal for is refused, never ignored: other metrics, trees, sparse
matrices (X.toarray() makes a dense one).

scikit-learn 1.4 or later is needed: pip install ".[sklearn]" in a clone of knear. It is imported
with this module alone, not with knear.
"""

try:
    import sklearn as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "knear.sklearn needs scikit-learn 1.4 or later: "
        'pip install ".[sklearn]" in a clone of knear'
    ) from error

from ._k_means import KMeans
from ._neighbors import KNeighborsTransformer, NearestNeighbors
from ._predictors import KNeighborsClassifier, KNeighborsRegressor

__all__ = [
    "KMeans",
    "KNeighborsClassifier",
    "KNeighborsRegressor",
    "KNeighborsTransformer",
    "NearestNeighbors",
]
