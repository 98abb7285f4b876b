// knear/core/mean_interval.hpp -- how sure the mean of a sample is: of the recalls of some queries,
// of the accuracy of some rows of a graph.
#pragma once
#include <span>

namespace knear {

struct Interval {
  double low = 0, high = 1;
};

// Wilson's score interval for the mean of `answers` independent yes-or-no answers; z: the normal
// quantile of how sure it is.
Interval wilson_interval(double mean, double answers, double z);

// A 95 % interval for the mean of values in [0, 1], one value per query; [0, 1] if there are none.
//
// Wilson's score interval, with the number of queries divided by the ratio of the values' variance
// to that of yes-or-no answers of the same mean: neighbours of one query are found or missed
// together, so the unit is a query, not a neighbour. Where all values are 0 or all are 1 their
// variance says nothing and the ratio is 1, so that the interval of a perfect sample is not empty.
Interval mean_interval(std::span<const double> values);

}  // namespace knear
