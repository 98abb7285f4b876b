// The grammar of factory strings: parts between commas, each a name and a number.
#include "knear/factory/factory.hpp"

#include <optional>
#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/index/codecs/codec.hpp"
#include "knear/index/impl/index_impl.hpp"

namespace knear {
namespace {

constexpr std::int64_t any_dim = 0;

struct Part {
  std::string_view text;
  std::size_t place;  // of its first character, from 1
};

// Control characters as \n and \x00, so that a message is one line and not cut off.
std::string visible(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (const auto byte = static_cast<unsigned char>(c); byte >= 32 && byte != 127)
      out += c;
    else
      out += c == '\n' ? "\\n" : fmt::format("\\x{:02x}", byte);
  return out;
}

[[noreturn]] void refuse(std::string_view factory, const Part& part, std::string_view why) {
  throw InvalidArgument("factory '{}' has '{}' at place {}, {}", visible(factory),
                        visible(part.text), part.place, why);
}

// Splits a text of the factory string, which begins behind `offset` characters of it, at commas
// outside of brackets.
std::vector<Part> parts_of(std::string_view factory, std::string_view text,
                           std::size_t offset = 0) {
  std::vector<Part> out;
  std::size_t begin = 0;
  int depth = 0;
  bool closes_too_much = false;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const bool end = i == text.size();
    const char c = end ? ',' : text[i];
    if (c == '(') ++depth;
    if (c == ')' && depth-- == 0) closes_too_much = true, depth = 0;
    if (c != ',' || (depth > 0 && !end)) continue;
    out.push_back({text.substr(begin, i - begin), offset + begin + 1});
    if (closes_too_much) refuse(factory, out.back(), "where a bracket is closed that is not open");
    if (depth > 0) refuse(factory, out.back(), "where a bracket is not closed");
    begin = i + 1;
  }
  return out;
}

// What the brackets hold that a part opens behind `name`.
Part in_brackets(std::string_view factory, const Part& part, std::size_t name) {
  int depth = 0;
  for (std::size_t i = name; i < part.text.size(); ++i) {
    depth += (part.text[i] == '(') - (part.text[i] == ')');
    if (depth > 0) continue;
    if (i + 1 < part.text.size())
      refuse(factory, part, "where something follows the closing bracket");
    break;
  }
  return {part.text.substr(name + 1, part.text.size() - name - 2), part.place + name + 1};
}

// Parts of a string, taken from the front.
class Grammar {
 public:
  Grammar(std::string_view factory, std::int64_t dim, Metric metric)
      : Grammar(factory, parts_of(factory, factory), dim, metric) {}

  detail::IndexShape shape() {
    // Ids are always the caller's if they like.
    if (is("IDMap") || is("IDMap2")) ++at_;
    while (take_transform()) {
    }
    take_lists();
    take_form();
    take_refinement();
    const bool mapped = is("IDMap") || is("IDMap2");
    if (mapped) ++at_;
    if (at_ < parts_.size())
      refuse(factory_, part(),
             part().text.empty()              ? "where a part is missing"
             : mapped                         ? "but nothing may follow IDMap"
             : shape_.codes && !shape_.refine ? "but codes may be followed by RFlat, Refine(form) "
                                                "and IDMap only"
                                              : "but only IDMap may follow");
    if (!shape_.is_plain())
      check_by_products(shape_.metric, fmt::format("factory '{}'", visible(factory_)));
    // A rotation serves the quantiser that it was trained for.
    for (detail::TransformShape& transform : shape_.transforms)
      if (transform.kind == detail::TransformShape::Kind::opq && shape_.codes &&
          shape_.codes->bits >= 4)
        transform.bits = shape_.codes->bits;
    return shape_;
  }

 private:
  using Transform = detail::TransformShape;

  Grammar(std::string_view factory, std::vector<Part> parts, std::int64_t dim, Metric metric)
      : factory_(factory), parts_(std::move(parts)) {
    shape_.dim = dim, shape_.metric = metric;
  }

  const Part& part() const { return parts_[at_]; }
  bool is(std::string_view text) const { return at_ < parts_.size() && part().text == text; }
  // Columns so far; any_dim where they are not known.
  std::int64_t dim() const { return shape_.inner_dim(); }

  // PCA[W][R]n, OPQm[_d], RR[n], L2norm.
  bool take_transform() {
    if (at_ == parts_.size()) return false;
    std::string_view text = part().text;
    const auto wrong = [&](std::string_view why) { refuse(factory_, part(), why); };
    const auto checked = [&](std::int64_t columns, bool may_grow) {
      if (columns < 1 || columns > 65536) wrong("but there can be 1 to 65536 columns");
      if (dim() != any_dim && columns > dim() && !may_grow)
        wrong(fmt::format("but there are {} columns to make {} of", dim(), columns));
      return columns;
    };
    if (text == "L2norm") {
      shape_.transforms.push_back({Transform::Kind::unit_norm, dim()});
    } else if (text.starts_with("PCA")) {
      const bool whiten = text.starts_with("PCAW");
      const std::string_view before = whiten ? "PCAW" : "PCA";
      const bool rotate = text.substr(before.size()).starts_with("R");
      const auto columns = detail::number_after(std::string(before) + (rotate ? "R" : ""), text);
      if (!columns) wrong("which is no PCA: PCAn, PCAWn, PCARn, PCAWRn are");
      shape_.transforms.push_back({Transform::Kind::pca, checked(*columns, false), whiten, rotate});
    } else if (text.starts_with("OPQ")) {
      std::int64_t columns = dim();
      if (const auto line = text.find('_'); line != text.npos) {
        const auto given = detail::number_after("", text.substr(line + 1));
        if (!given) wrong("which is no OPQ: OPQm and OPQm_d are");
        columns = checked(*given, false), text = text.substr(0, line);
      }
      const auto parts = detail::number_after("OPQ", text);
      if (!parts) wrong("which is no OPQ: OPQm and OPQm_d are");
      detail::check_parts(*parts, columns, wrong);
      shape_.transforms.push_back({Transform::Kind::opq, columns, false, false, *parts});
    } else if (text.starts_with("RR")) {
      const auto columns = text == "RR" ? std::optional(dim()) : detail::number_after("RR", text);
      if (!columns) wrong("which is no random rotation: RR and RRn are");
      shape_.transforms.push_back(
          {Transform::Kind::rotation, text == "RR" ? dim() : checked(*columns, true)});
    } else {
      return false;
    }
    ++at_;
    return true;
  }

  // IVFn, IVFn(index).
  void take_lists() {
    if (at_ == parts_.size() || !part().text.starts_with("IVF")) return;
    std::string_view text = part().text;
    std::optional<Part> inner;
    if (const auto open = text.find('('); open != text.npos) {
      inner = in_brackets(factory_, part(), open);
      text = text.substr(0, open);
    }
    const auto lists = detail::number_after("IVF", text);
    if (!lists) refuse(factory_, part(), "which names no inverted lists: IVFn and IVFn(index) do");
    if (*lists < 1 || *lists > detail::most_lists)
      refuse(factory_, part(), "but there can be 1 to 16777216 lists");
    shape_.lists = *lists;
    if (inner) {
      const Part all = part();
      const Metric metric = centroid_metric(shape_.metric);
      Grammar grammar(factory_, parts_of(factory_, inner->text, inner->place - 1), dim(), metric);
      detail::IndexShape coarse = grammar.shape();
      if (!coarse.coarse.empty())
        refuse(factory_, all, "but an index over centroids has none over its own");
      if (coarse.has_graph())
        refuse(factory_, all, "but centroids are found by lists or codes, not by a graph");
      if (coarse.lists > *lists)
        refuse(factory_, all,
               fmt::format("but {} centroids do not fill {} lists", *lists, coarse.lists));
      // For ip there are two indexes over the centroids: the second has their lifts as one column
      // more (index/quantizers/coarse_quantizer.hpp), by which what is made for a number of
      // columns, the parts of a product quantizer or a transform to these, does not fit both.
      bool fits = coarse.transforms.empty();
      for (const auto& codes :
           {coarse.codes, coarse.refine ? coarse.refine->codes : std::nullopt}) {
        if (!codes) continue;
        const detail::Codec& codec = detail::codec_of(*codes);
        fits &= !codec.has_parts();
        if (const std::int64_t least = codec.least_rows(*codes); *lists < least)
          refuse(factory_, all,
                 fmt::format("but {} takes {} centroids at least, not {}", codes->name(), least,
                             *lists));
      }
      if (traits_of(shape_.metric).lifted && !fits)
        refuse(factory_, all,
               "but for ip an index over centroids takes them with a column more too, which "
               "transforms and product quantizers do not fit: Flat, SQ8, SQ4, SQfp16, SQbf16 and "
               "IVFn of these do");
      // Flat is how centroids are compared anyway.
      if (coarse.learns() || coarse.rounded) shape_.coarse = {std::move(coarse)};
    }
    if (++at_ == parts_.size())
      refuse(factory_, parts_[at_ - 1],
             "after which the form of the vectors is missing, as in ',Flat'");
  }

  // Flat, PQmxb, SQb.
  void take_form() {
    const bool lists = shape_.lists > 0;
    if (at_ == parts_.size()) refuse(factory_, parts_[at_ - 1], "after which an index is missing");
    if (part().text.starts_with("Graph")) {
      const auto degree = detail::number_after("Graph", part().text);
      if (!degree) refuse(factory_, part(), "which is no graph: Graphn is");
      if (lists) refuse(factory_, part(), "but a graph goes over all vectors, without lists");
      if (*degree < detail::least_degree || *degree > detail::most_degree)
        refuse(
            factory_, part(),
            fmt::format("but a row has {} to {} links", detail::least_degree, detail::most_degree));
      shape_.graph_degree = *degree;
      // The vectors are kept as they are.
      if (at_ + 1 < parts_.size() && parts_[at_ + 1].text == "Flat") ++at_;
    } else if (part().text == "Flat") {
    } else if (const auto rounded = halves(part().text)) {
      shape_.rounded = rounded;
    } else if (const auto codes = codes_of(part(), dim())) {
      shape_.codes = codes, shape_.codes->residual = lists;
    } else {
      const std::string words = detail::words_of_codecs();
      refuse(factory_, part(),
             lists ? fmt::format("which is no form of vectors in inverted lists: Flat, {}, SQfp16 "
                                 "and SQbf16 are",
                                 words)
                   : fmt::format("which is none of the indexes Flat, {}, SQfp16, SQbf16, Graphn "
                                 "and IVFn,...",
                                 words));
    }
    ++at_;
  }

  // RFlat, Refine(form).
  void take_refinement() {
    if (at_ == parts_.size()) return;
    constexpr std::string_view refine = "Refine";
    const std::string_view text = part().text;
    const bool flat = text == "RFlat" || text == "Refine(Flat)";
    if (!flat && !(text.starts_with(refine) && text.substr(refine.size()).starts_with("("))) return;
    if (!shape_.codes)
      refuse(factory_, part(), "but what is refined are codes, and there are vectors");
    shape_.refine.emplace();
    if (!flat) {
      const Part form = in_brackets(factory_, part(), refine.size());
      shape_.refine->rounded = halves(form.text);
      if (!shape_.refine->rounded) shape_.refine->codes = codes_of(form, shape_.dim);
      if (!shape_.refine->rounded && !shape_.refine->codes)
        refuse(factory_, form,
               fmt::format("but codes are refined by Flat, {}, SQfp16 or SQbf16",
                           detail::words_of_codecs()));
    }
    ++at_;
  }

  static std::optional<ElementType> halves(std::string_view text) {
    if (text == "SQfp16") return ElementType::f16;
    if (text == "SQbf16") return ElementType::bf16;
    return {};
  }

  // Codes of `columns` columns, or nothing.
  std::optional<detail::CodeShape> codes_of(const Part& part, std::int64_t columns) const {
    for (const detail::Codec* codec : detail::all_codecs())
      if (auto codes = codec->parse(part.text, columns, wrong(part))) return codes;
    return {};
  }
  detail::WrongWord wrong(const Part& part) const {
    return [this, &part](std::string_view why) { refuse(factory_, part, why); };
  }

  const std::string_view factory_;
  const std::vector<Part> parts_;
  std::size_t at_ = 0;
  detail::IndexShape shape_;
};

}  // namespace

bool learns(std::string_view factory) {
  return detail::public_call(
      [&] { return Grammar(factory, any_dim, Metric::l2).shape().learns(); });
}

Index make_index(std::string_view factory, std::int64_t dim, Metric metric) {
  return detail::public_call([&]() -> Index {
    detail::check_index_dim(dim);
    if (factory == "auto")
      throw InvalidArgument(
          "factory is 'auto', which is chosen by numbers: choose_index(rows, dim)");
    return Index(std::make_unique<detail::IndexImpl>(Grammar(factory, dim, metric).shape()));
  });
}

Index index_with_centroids(MatrixView<float> centroids, Metric metric) {
  return detail::public_call([&] {
    detail::check_index_dim(centroids.cols());
    detail::check_lists(centroids.rows());
    find_value_range(centroids, metric, "centroids", 1);
    Matrix<float> own(centroids.rows(), centroids.cols());
    detail::copy_exactly(centroids, ElementType::f32, own.data());
    detail::State state;
    state.coarse = std::make_shared<const detail::CoarseQuantizer>(std::move(own), metric);
    state.recall = std::make_shared<detail::RecallCurves>(0);
    return Index(std::make_unique<detail::IndexImpl>(
        detail::IndexShape{.dim = centroids.cols(), .metric = metric, .lists = centroids.rows()},
        std::move(state)));
  });
}

}  // namespace knear
