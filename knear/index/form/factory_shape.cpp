#include "knear/index/form/factory_shape.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "knear/index/form/factory_words.hpp"
#include "knear/index/form/form.hpp"

namespace knear::detail {
namespace {

// Reads the words of an index.
class Grammar {
 public:
  Grammar(FactoryWords& words, std::int64_t dim, Metric metric) : words_(words) {
    shape_.dim = dim, shape_.metric = metric;
  }

  IndexShape shape() {
    // Ids are always the caller's if they like.
    take_map();
    while (take_transform()) {
    }
    take_lists();
    if (words_.at_end()) words_.refuse(words_.last(), "after which an index is missing");
    const std::string_view may_follow = take_form(words_, shape_);
    if (shape_.in_two_lists && shape_.codes)
      words_.refuse(
          words_.last(),
          "but codes are kept in one list each: of IVFn_SOAR, Flat, SQfp16 and SQbf16 are "
          "the forms");
    const bool mapped = take_map();
    if (!words_.at_end())
      words_.refuse(words_.word().text.empty() ? "where a part is missing"
                    : mapped                   ? "but nothing may follow IDMap"
                                               : may_follow);
    if (!shape_.is_plain())
      check_by_products(shape_.metric, fmt::format("factory '{}'", visible(words_.factory())));
    return shape_;
  }

 private:
  using Transform = TransformShape;

  // Columns so far; 0 where they are not known.
  std::int64_t dim() const { return shape_.inner_dim(); }

  bool take_map() { return words_.take("IDMap") || words_.take("IDMap2"); }

  // PCA[W][R]n, OPQm[_d], RR[n], L2norm.
  bool take_transform() {
    if (words_.at_end()) return false;
    std::string_view text = words_.word().text;
    const auto wrong = [&](std::string_view why) { words_.refuse(why); };
    const auto checked = [&](std::int64_t columns, bool may_grow) {
      if (columns < 1 || columns > 65536) wrong("but there can be 1 to 65536 columns");
      if (dim() != 0 && columns > dim() && !may_grow)
        wrong(fmt::format("but there are {} columns to make {} of", dim(), columns));
      return columns;
    };
    if (text == "L2norm") {
      shape_.transforms.push_back({Transform::Kind::unit_norm, dim()});
    } else if (text.starts_with("PCA")) {
      const bool whiten = text.starts_with("PCAW");
      const std::string_view before = whiten ? "PCAW" : "PCA";
      const bool rotate = text.substr(before.size()).starts_with("R");
      const auto columns = number_after(std::string(before) + (rotate ? "R" : ""), text);
      if (!columns) wrong("which is no PCA: PCAn, PCAWn, PCARn, PCAWRn are");
      shape_.transforms.push_back({Transform::Kind::pca, checked(*columns, false), whiten, rotate});
    } else if (text.starts_with("OPQ")) {
      std::int64_t columns = dim();
      if (const auto line = text.find('_'); line != text.npos) {
        const auto given = number_after("", text.substr(line + 1));
        if (!given) wrong("which is no OPQ: OPQm and OPQm_d are");
        columns = checked(*given, false), text = text.substr(0, line);
      }
      const auto parts = number_after("OPQ", text);
      if (!parts) wrong("which is no OPQ: OPQm and OPQm_d are");
      check_parts(*parts, columns, wrong);
      shape_.transforms.push_back({Transform::Kind::opq, columns, false, false, *parts});
    } else if (text.starts_with("RR")) {
      const auto columns = text == "RR" ? std::optional(dim()) : number_after("RR", text);
      if (!columns) wrong("which is no random rotation: RR and RRn are");
      shape_.transforms.push_back(
          {Transform::Kind::rotation, text == "RR" ? dim() : checked(*columns, true)});
    } else {
      return false;
    }
    words_.take();
    return true;
  }

  // IVFn, IVFn_SOAR, IVFn(index), IVFn_SOAR(index).
  void take_lists() {
    if (words_.at_end() || !words_.word().text.starts_with("IVF")) return;
    std::string_view text = words_.word().text;
    std::optional<FactoryWords::Word> inner;
    if (const auto open = text.find('('); open != text.npos) {
      inner = words_.in_brackets(words_.word(), open);
      text = text.substr(0, open);
    }
    constexpr std::string_view soar = "_SOAR";
    shape_.in_two_lists = text.ends_with(soar);
    if (shape_.in_two_lists) text.remove_suffix(soar.size());
    const auto lists = number_after("IVF", text);
    if (!lists) words_.refuse("which names no inverted lists: IVFn, IVFn_SOAR and IVFn(index) do");
    if (*lists < 1 || *lists > most_lists) words_.refuse("but there can be 1 to 16777216 lists");
    if (shape_.in_two_lists && *lists < 2)
      words_.refuse("but rows go into two lists each: there must be 2 lists or more");
    shape_.lists = *lists;
    if (inner) take_index_of_centroids(*inner);
    words_.take();
    if (words_.at_end())
      words_.refuse(words_.last(), "after which the form of the vectors is missing, as in ',Flat'");
  }

  void take_index_of_centroids(const FactoryWords::Word& inner) {
    FactoryWords words(words_.factory(), inner);
    IndexShape coarse = Grammar(words, dim(), centroid_metric(shape_.metric)).shape();
    if (!coarse.coarse.empty()) words_.refuse("but an index over centroids has none over its own");
    if (coarse.in_two_lists)
      words_.refuse("but an index over centroids has each in one list: IVFn");
    if (coarse.lists > shape_.lists)
      words_.refuse(
          fmt::format("but {} centroids do not fill {} lists", shape_.lists, coarse.lists));
    const auto form = form_of(coarse);
    form->check_over_centroids(shape_.lists, words_.wrong(words_.word()));
    // For ip there are two indexes over the centroids: the second has their lifts as one column
    // more (index/quantizers/coarse_quantizer.hpp), by which what is made for a number of columns,
    // the parts of a product quantizer or a transform to these, does not fit both.
    if (traits_of(shape_.metric).lifted &&
        (!coarse.transforms.empty() || !form->fits_more_columns()))
      words_.refuse(
          "but for ip an index over centroids takes them with a column more too, which transforms "
          "and product quantizers do not fit: Flat, SQ8, SQ4, SQfp16, SQbf16 and IVFn of these "
          "do");
    // Flat is how centroids are compared anyway.
    if (coarse.learns() || coarse.rounded) shape_.coarse = {std::move(coarse)};
  }

  FactoryWords& words_;
  IndexShape shape_;
};

}  // namespace

IndexShape shape_of_factory(std::string_view factory, std::int64_t dim, Metric metric) {
  FactoryWords words(factory);
  return Grammar(words, dim, metric).shape();
}

}  // namespace knear::detail
