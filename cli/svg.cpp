#include "cli/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numbers>

#include "cli/output.hpp"

namespace knear::cli {
namespace {

constexpr int plot_width = 520;
static_assert(plot_width == line_chart_width);

// The smallest of 1, 2, 5, 10, 20, ... (and 0.5, ...) that is no less than `least`.
double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least) return factor * power;
  return 10 * power;
}

std::vector<double> count_bins(const std::vector<double>& values, double top, int bins) {
  std::vector<double> counts(bins, 0.0);
  for (double value : values)
    if (value < top) counts[std::clamp(static_cast<int>(value / top * bins), 0, bins - 1)] += 1;
  return counts;
}

// One axis of a line chart: maps values to pixels between two ends.
class Scale {
 public:
  // Values that the axis cannot show are ignored.
  Scale(const std::vector<double>& values, bool logarithmic, double begin, double end)
      : logarithmic_(logarithmic), begin_(begin), end_(end) {
    low_ = std::numeric_limits<double>::infinity(), high_ = -low_;
    for (double value : values)
      if (shows(value)) low_ = std::min(low_, value), high_ = std::max(high_, value);
    if (!(low_ <= high_)) low_ = 1, high_ = 2;
    if (low_ == high_) low_ *= 0.8, high_ *= 1.25;
    if (low_ == high_) high_ = 1;  // both zero
  }
  // Leaves a little room beyond the outermost values.
  void widen() {
    const double share = 0.06;
    if (logarithmic_) {
      const double factor = std::pow(high_ / low_, share);
      low_ /= factor, high_ *= factor;
    } else {
      const double more = share * (high_ - low_);
      low_ -= more, high_ += more;
    }
  }

  bool shows(double value) const { return std::isfinite(value) && (!logarithmic_ || value > 0); }
  double place(double value) const {
    const double share = logarithmic_ ? std::log(value / low_) / std::log(high_ / low_)
                                      : (value - low_) / (high_ - low_);
    return begin_ + share * (end_ - begin_);
  }
  // Round values in between: powers of ten, with their double and fivefold where those are few;
  // equal steps where the range is less than fourfold.
  std::vector<double> ticks() const {
    std::vector<double> out;
    if (!logarithmic_ || high_ < 4 * low_) {
      const double step = round_step((high_ - low_) / 7);
      for (double i = std::ceil(low_ / step); i * step <= high_; ++i) out.push_back(i * step);
      return out;
    }
    const bool tens = high_ >= 1000 * low_;
    for (double power = std::pow(10.0, std::floor(std::log10(low_))); power <= high_; power *= 10)
      for (double factor : {1.0, 2.0, 5.0})
        if (factor * power >= low_ && factor * power <= high_ && (factor == 1.0 || !tens))
          out.push_back(factor * power);
    return out;
  }

 private:
  bool logarithmic_;
  double begin_, end_, low_, high_;
};

// The mark of line `number`, so that lines differ by more than colour.
std::string mark(std::size_t number, double x, double y) {
  constexpr const char* shapes[] = {"m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",
                                    "m-3 -3h6v6h-6Z", "m0 -4l4 7h-8Z",
                                    "m0 -4.5l4.5 4.5l-4.5 4.5"
                                    "l-4.5 -4.5Z"};
  return fmt::format("<path class='curve-{0} mark' d='M{1:.1f} {2:.1f}{3}'/>", number % 8 + 1, x, y,
                     shapes[number % std::size(shapes)]);
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string bar_chart(const std::vector<Bar>& bars) {
  constexpr int row = 30, name_width = 130, label_width = 150;
  constexpr double full = plot_width - name_width - label_width;
  double largest = 0;
  for (const Bar& bar : bars) largest = std::max(largest, bar.value);
  std::string out = fmt::format("<svg viewBox='0 0 {} {}' role='img'>", plot_width,
                                row * static_cast<int>(bars.size()) + 4);
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const int y = static_cast<int>(i) * row + 4;
    const double length = largest > 0 ? std::max(1.0, bars[i].value / largest * full) : 1.0;
    out += fmt::format(
        "<text class='ink' x='{}' y='{}' text-anchor='end'>{}</text>"
        "<rect class='bar' x='{}' y='{}' width='{:.1f}' height='{}' rx='3'/>"
        "<text class='quiet' x='{:.1f}' y='{}'>{}</text>",
        name_width - 10, y + 16, escaped(bars[i].name), name_width, y, length, row - 8,
        name_width + length + 8, y + 16, escaped(bars[i].label));
  }
  return out + "</svg>";
}

std::string histogram(const Series& first, const Series& second, const std::string& axis) {
  constexpr int bins = 60, height = 190, bottom = 160;
  std::vector<double> all = first.values;
  all.insert(all.end(), second.values.begin(), second.values.end());
  if (all.empty()) return "";
  std::sort(all.begin(), all.end());
  const double top = std::max(all[std::size_t(double(all.size() - 1) * 0.995)], 1e-30) * 1.0001;
  const auto one = count_bins(first.values, top, bins), two = count_bins(second.values, top, bins);
  double tallest = 1;
  for (const auto& counts : {one, two})
    tallest = std::max(tallest, *std::max_element(counts.begin(), counts.end()));
  const double bin_width = double(plot_width) / bins;
  const auto outline = [&](const std::vector<double>& counts) {
    std::string path = fmt::format("M0 {}", bottom);
    for (double count : counts)
      path += fmt::format("V{:.1f}h{:.2f}", bottom - count / tallest * (bottom - 26), bin_width);
    return path + fmt::format("V{}Z", bottom);
  };
  std::string out = fmt::format("<svg viewBox='0 0 {} {}' role='img'>", plot_width, height);
  out += fmt::format("<path class='area-1' d='{}'/><path class='area-2' d='{}'/>", outline(one),
                     outline(two));
  out += fmt::format("<path class='line' d='M0 {0}H{1}'/>", bottom, plot_width);
  const double step = round_step(top / 6);
  for (double tick = 0; tick < top * 0.97; tick += step)
    out += fmt::format("<text class='quiet' x='{:.1f}' y='{}' text-anchor='{}'>{}</text>",
                       tick / top * plot_width, bottom + 16, tick == 0 ? "start" : "middle",
                       readable_count(tick));
  out += fmt::format("<text class='quiet' x='{}' y='{}' text-anchor='end'>{}</text>", plot_width,
                     bottom + 29, escaped(axis));
  out += fmt::format(
      "<rect class='area-1' x='{0}' y='2' width='14' height='10'/><text class='ink' x='{1}' "
      "y='12'>{2}</text><rect class='area-2' x='{0}' y='20' width='14' height='10'/><text "
      "class='ink' x='{1}' y='30'>{3}</text>",
      8, 28, escaped(first.name), escaped(second.name));
  return out + "</svg>";
}

std::string roofline_plot(double peak, double slope, const std::string& roof,
                          const std::string& axis, const std::vector<RoofPoint>& points) {
  constexpr double height = 230, bottom = 190, left = 58, right = plot_width - 8, top = 14;
  if (!(peak > 0) || !(slope > 0)) return "";
  const double knee = peak / slope;
  double x_low = knee / 30, x_high = knee * 30, y_low = peak / 100;
  for (const RoofPoint& point : points) {
    if (!(point.intensity > 0) || !(point.rate > 0)) continue;
    x_low = std::min(x_low, point.intensity / 2), x_high = std::max(x_high, point.intensity * 2);
    y_low = std::min(y_low, point.rate / 2);
  }
  const double y_high = 2 * peak;
  const auto x_of = [&](double x) {
    return left + std::log(x / x_low) / std::log(x_high / x_low) * (right - left);
  };
  const auto y_of = [&](double y) {
    return bottom -
           std::log(std::max(y, y_low) / y_low) / std::log(y_high / y_low) * (bottom - top);
  };
  std::string out = fmt::format("<svg viewBox='0 0 {} {}' role='img'>", plot_width, height);
  out += fmt::format("<path class='line' d='M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}'/>", left, top, bottom,
                     right);
  for (double tick = std::pow(10.0, std::ceil(std::log10(x_low))); tick < x_high; tick *= 10)
    out += fmt::format(
        "<path class='line' d='M{0:.1f} {1:.1f}v4'/><text class='quiet' x='{0:.1f}' y='{2:.1f}' "
        "text-anchor='middle'>{3}</text>",
        x_of(tick), bottom, bottom + 17, readable_count(tick));
  for (double tick = std::pow(10.0, std::ceil(std::log10(y_low))); tick < y_high; tick *= 10)
    out += fmt::format(
        "<path class='line' d='M{0:.1f} {1:.1f}h-4'/><text class='quiet' x='{2:.1f}' y='{3:.1f}' "
        "text-anchor='end'>{4}</text>",
        left, y_of(tick), left - 7, y_of(tick) + 4, readable_count(tick));
  // The point where the slope meets the lower edge.
  const double start = std::max(x_low, y_low / slope);
  out += fmt::format("<path class='roof' d='M{:.1f} {:.1f}L{:.1f} {:.1f}H{:.1f}'/>", x_of(start),
                     y_of(start * slope), x_of(knee), y_of(peak), right);
  out += fmt::format("<text class='ink' x='{:.1f}' y='{:.1f}' text-anchor='end'>{}</text>", right,
                     y_of(peak) - 6, escaped(roof));
  out += fmt::format("<text class='quiet' x='{:.1f}' y='{:.1f}' text-anchor='end'>{}</text>", right,
                     bottom + 33, escaped(axis));
  double last_y = -1e9;
  for (const RoofPoint& point : points) {
    if (!(point.intensity > 0) || !(point.rate > 0)) continue;
    const double x = x_of(point.intensity), y = y_of(point.rate);
    out += fmt::format("<circle class='bar' cx='{:.1f}' cy='{:.1f}' r='4'/>", x, y);
    if (std::fabs(y - last_y) < 12) continue;  // its name would overlap the last one
    const bool far = x > left + 0.7 * (right - left);
    out += fmt::format("<text class='quiet' x='{:.1f}' y='{:.1f}' text-anchor='{}'>{}</text>",
                       far ? x - 8 : x + 8, y + 14, far ? "end" : "start", escaped(point.name));
    last_y = y;
  }
  return out + "</svg>";
}

namespace {

constexpr double chart_left = 58, chart_right = plot_width - 16, chart_top = 26, chart_bottom = 226;

// The frame of a chart, with its names and the lines of the y axis.
std::string chart_frame(const Scale& up, const ChartAxis& x, const ChartAxis& y) {
  std::string out =
      fmt::format("<svg viewBox='0 0 {} {}' role='img'>", line_chart_width, line_chart_height);
  out += fmt::format("<text class='quiet' x='4' y='13'>{}</text>", escaped(y.name));
  for (double tick : up.ticks())
    out += fmt::format(
        "<path class='line' d='M{0:.1f} {1:.1f}H{2:.1f}'/><text class='quiet' x='{3:.1f}' "
        "y='{4:.1f}' text-anchor='end'>{5}</text>",
        chart_left, up.place(tick), chart_right, chart_left - 7, up.place(tick) + 4,
        tick < 1e5 ? fmt::format("{:g}", tick) : readable_count(tick));
  out += fmt::format("<path class='line' d='M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}'/>", chart_left,
                     chart_top, chart_bottom, chart_right);
  out += fmt::format("<text class='quiet' x='{:.1f}' y='{:.1f}' text-anchor='end'>{}</text>",
                     chart_right, chart_bottom + 34, escaped(x.name));
  return out;
}

// Marks a place of the x axis; its number is left out where it would overlap the one at `last`.
std::string chart_place(double at, const std::string& number, double& last) {
  std::string out = fmt::format("<path class='line' d='M{:.1f} {:.1f}v4'/>", at, chart_bottom);
  if (at < last + 44) return out;
  out += fmt::format("<text class='quiet' x='{:.1f}' y='{:.1f}' text-anchor='middle'>{}</text>", at,
                     chart_bottom + 17, number);
  last = at;
  return out;
}

// The number-th line through points, broken where these are NaN, and its name below.
std::string chart_curve(std::size_t number, const ChartCurve& curve, const Scale& across,
                        const Scale& up) {
  std::string path, marks;
  bool joined = false;
  for (const ChartPoint& point : curve.points) {
    const bool shown = across.shows(point.x) && up.shows(point.y);
    if (shown) {
      const double at = across.place(point.x), height = up.place(point.y);
      path += fmt::format("{}{:.1f} {:.1f}", joined ? 'L' : 'M', at, height);
      marks += mark(number, at, height);
    }
    joined = shown;
  }
  std::string out = fmt::format("<path class='curve-{}' d='{}'/>", number % 8 + 1, path) + marks;
  const double name_x = 8 + double(number % 2) * (plot_width / 2);
  const double name_y = chart_bottom + 54 + double(number / 2) * 18;
  out +=
      fmt::format("<path class='curve-{}' d='M{:.1f} {:.1f}h22'/>", number % 8 + 1, name_x, name_y);
  out += mark(number, name_x + 11, name_y);
  return out + fmt::format("<text class='ink' x='{:.1f}' y='{:.1f}'>{}</text>", name_x + 30,
                           name_y + 4, escaped(curve.name));
}

}  // namespace

std::string line_chart(const std::vector<double>& places, const std::vector<ChartLine>& lines,
                       const ChartAxis& x, const ChartAxis& y) {
  std::vector<double> all;
  for (const ChartLine& line : lines) all.insert(all.end(), line.values.begin(), line.values.end());
  const Scale across(places, x.logarithmic, chart_left + 14, chart_right - 14);
  Scale up(all, y.logarithmic, chart_bottom, chart_top);
  up.widen();
  std::string out = chart_frame(up, x, y);
  // The measured places are marked: these are few, and rarely powers of ten.
  double last = -1e9;
  for (double value : places)
    if (across.shows(value))
      out += chart_place(across.place(value),
                         fmt::format("{}", static_cast<std::int64_t>(std::llround(value))), last);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    ChartCurve curve{lines[i].name, {}};
    for (std::size_t j = 0; j < std::min(places.size(), lines[i].values.size()); ++j)
      curve.points.push_back({places[j], lines[i].values[j]});
    out += chart_curve(i, curve, across, up);
  }
  return out + "</svg>";
}

std::string curve_chart(const std::vector<ChartCurve>& curves, const ChartAxis& x,
                        const ChartAxis& y) {
  std::vector<double> xs, ys;
  for (const ChartCurve& curve : curves)
    for (const ChartPoint& point : curve.points) xs.push_back(point.x), ys.push_back(point.y);
  Scale across(xs, x.logarithmic, chart_left + 14, chart_right - 14),
      up(ys, y.logarithmic, chart_bottom, chart_top);
  up.widen();
  std::string out = chart_frame(up, x, y);
  double last = -1e9;
  for (double tick : across.ticks())
    out += chart_place(across.place(tick), fmt::format("{:g}", tick), last);
  for (std::size_t i = 0; i < curves.size(); ++i) out += chart_curve(i, curves[i], across, up);
  return out + "</svg>";
}

std::string sift_star(std::span<const float> descriptor) {
  constexpr double cell = 16;
  const double largest = std::max(1.0f, *std::max_element(descriptor.begin(), descriptor.end()));
  std::string path;
  for (int i = 0; i < 128; ++i) {
    const double length = descriptor[i] / largest * 0.62 * cell;
    if (length < 0.3) continue;
    const double angle = (i % 8) * std::numbers::pi / 4;
    const double x = (i / 8 % 4 + 0.5) * cell, y = (i / 32 + 0.5) * cell;
    path += fmt::format("M{:.0f} {:.0f}l{:.1f} {:.1f}", x, y, length * std::cos(angle),
                        length * std::sin(angle));
  }
  return fmt::format(
      "<svg class='sift' viewBox='0 0 64 64' role='img'><path class='grid' d='M16 0V64M32 0V64M48 "
      "0V64M0 16H64M0 32H64M0 48H64'/><path class='star' d='{}'/></svg>",
      path);
}

}  // namespace knear::cli
