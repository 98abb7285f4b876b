// cli/svg.hpp -- the few plots of the reports, as inline SVG.
//
// They take their colours from the CSS classes bar, ink, quiet, line, roof, area-1 and area-2, and
// curve-1 to curve-8 (report.hpp has the style sheet).
#pragma once
#include <span>
#include <string>
#include <vector>

namespace knear::cli {

struct Bar {
  std::string name;
  double value = 0;
  std::string label;  // the value as text
};

// Horizontal bars from a common zero, one below the other.
std::string bar_chart(const std::vector<Bar>& bars);

struct Series {
  std::string name;
  std::vector<double> values;
};

// Two distributions over one axis in equal bins, the upper 0.5 % left out.
std::string histogram(const Series& first, const Series& second, const std::string& axis);

struct RoofPoint {
  std::string name;
  double intensity = 0,
         rate = 0;  // operations per byte or per unit of the slope; operations per second
};

// A roofline: rates up to `peak`, and up to `slope` times the intensity, on logarithmic axes.
std::string roofline_plot(double peak, double slope, const std::string& roof,
                          const std::string& axis, const std::vector<RoofPoint>& points);

struct ChartLine {
  std::string name;
  std::vector<double> values;  // NaN: no value at this place
};

struct ChartAxis {
  std::string name;
  bool logarithmic = true;
};

// At most eight lines through points over the same ascending places of the x axis, each with a mark
// of its own and its name below. A logarithmic axis leaves out values that are not above zero. The
// size is always the same.
inline constexpr int line_chart_width = 520, line_chart_height = 340;
std::string line_chart(const std::vector<double>& places, const std::vector<ChartLine>& lines,
                       const ChartAxis& x, const ChartAxis& y);

// A point of a curve.
struct ChartPoint {
  double x = 0, y = 0;
};
struct ChartCurve {
  std::string name;
  std::vector<ChartPoint> points;  // joined in this order
};

// As above, for curves whose points have any x.
std::string curve_chart(const std::vector<ChartCurve>& curves, const ChartAxis& x,
                        const ChartAxis& y);

// A SIFT descriptor [128]: 4 x 4 cells, in each a star of 8 gradient directions.
std::string sift_star(std::span<const float> descriptor);

// < > & and quotes as HTML writes them.
std::string escaped(const std::string& text);

}  // namespace knear::cli
