// FAISS's files: fields one after another, each index with four letters before it, no lengths and
// no checksums. Whatever is read is checked against what is left of the file before memory is
// taken.
#include "knear/index/faiss/faiss_reader.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/index/codecs/faiss_types.hpp"
#include "knear/io/byte_source.hpp"

namespace knear::detail {
namespace {

constexpr int most_nested = 8;

using enum FaissModuleReads;

class Reader : private FaissFields {
 public:
  using FaissFields::FaissFields;

  FaissContent read() {
    FaissContent out = index(0);
    if (left() > 0) refuse(fmt::format("{} bytes follow the index", left()));
    return out;
  }

 private:
  struct Header {
    std::int64_t dim, rows;
    bool trained;
    Metric metric;
  };

  // other_metrics: whether knear.faiss has this index by other metrics than L2 and inner products.
  Header header(FaissModuleReads other_metrics = no) {
    Header out{};
    out.dim = value<std::int32_t>("the header");
    out.rows = value<std::int64_t>("the header");
    take(16, "the header");
    const auto trained = value<std::uint8_t>("the header");
    const auto metric = value<std::int32_t>("the header");
    if (out.dim < 1 || out.dim > 65536)
      refuse(fmt::format("it has {} columns, where 1 to 65536 can be", out.dim));
    if (out.rows < 0 || trained > 1) refuse("its header is none");
    // An IndexFlat is read by L1, and knear.faiss reads it by all of them.
    const bool by_l1 = metric == faiss_l1 && other_metrics == yes;
    if (metric != faiss_inner_product && metric != faiss_l2 && !by_l1) {
      const std::string_view name = name_of_faiss_metric(metric);
      if (name.empty()) refuse(fmt::format("FAISS has no metric {}", metric));
      not_read(fmt::format("vectors that are compared by {} ({})", name, metric), other_metrics);
    }
    out.trained = trained == 1;
    out.metric = by_l1 ? Metric::l1 : metric == faiss_l2 ? Metric::l2 : Metric::ip;
    if (by_l1) value<float>("the header");  // an argument that this metric has not
    return out;
  }

  FaissContent index(int depth) {
    if (depth > most_nested) refuse("indexes are nested too deeply");
    const std::int64_t begin = at_;
    const std::string type = letters();
    if (type == "IxF2" || type == "IxFI" || type == "IxFl") return flat(depth);
    if (type == "IwFl") return inverted(depth, read_listed_vectors);
    for (const Codec* codec : all_codecs())
      for (const Codec::FaissType& one : codec->faiss_types())
        if (one.letters == type) return one.in_lists ? inverted(depth, one.read) : flat(one.read);
    if (type == "IxMp" || type == "IxM2") return mapped(depth);
    if (type == "IxPT") return transformed(depth);
    if (type == "IxRF") return refined(depth);
    if (const std::string_view name = name_of_faiss_index(type); !name.empty())
      not_read(
          fmt::format("{} ({}){}", name, type, depth > 0 ? fmt::format(" at byte {}", begin) : ""));
    at_ = begin;
    if (shown(type) != type) refuse("no index of FAISS begins like this");
    refuse(fmt::format("'{}' is no type of an index that knear knows of FAISS", type));
  }

  FaissContent flat(int depth) {
    const Header about = header(depth == 0 ? yes : no);
    FaissContent out(about.dim, about.metric);
    const std::int64_t numbers = count(sizeof(float), "vectors");
    if (numbers % about.dim != 0 || numbers / about.dim != about.rows)
      refuse(fmt::format("{} vectors of {} columns are announced, but {} numbers follow",
                         about.rows, about.dim, numbers));
    out.rows = AnyMatrix(ElementType::f32, about.rows, about.dim);
    const auto bytes = static_cast<std::size_t>(numbers) * sizeof(float);
    if (bytes > 0) std::memcpy(out.rows.row(0), take(bytes, "vectors"), bytes);
    return out;
  }

  // read_rows: reads the rows behind the header.
  using ReadRows = void (*)(FaissFields& in, FaissRows& out, std::int64_t rows);
  FaissContent flat(ReadRows read_rows) {
    const Header about = header();
    FaissContent out(about.dim, about.metric, about.trained);
    read_rows(*this, out, about.rows);
    return out;
  }

  FaissContent mapped(int depth) {
    const Header about = header();
    FaissContent out = index(depth + 1);
    const std::int64_t n = count(sizeof(Id), "ids");
    if (about.dim != out.dim || n != out.size())
      refuse(fmt::format("{} ids are given to {} vectors", n, out.size()));
    std::vector<Id> given(n);
    if (n > 0) std::memcpy(given.data(), take(given.size() * sizeof(Id), "ids"), given.size() * 8);
    if (out.ids.empty()) {
      out.ids = std::move(given);
      return out;
    }
    for (Id& id : out.ids) {
      if (id < 0 || id >= n) refuse(fmt::format("id {} is beyond the {} that are named", id, n));
      id = given[id];
    }
    return out;
  }

  void direct_map() {
    const auto type = value<std::uint8_t>("the map of ids");
    if (type > 2) refuse(fmt::format("a map of ids of kind {} is unknown", type));
    const std::int64_t entries = count(8, "the map of ids");
    take(static_cast<std::uint64_t>(entries) * 8, "the map of ids");
    if (type != 2) return;
    const std::int64_t pairs = count(16, "the map of ids");
    take(static_cast<std::uint64_t>(pairs) * 16, "the map of ids");
  }

  // read_rows: reads the rows behind the centroids and the map of ids.
  FaissContent inverted(int depth, ReadRows read_rows) {
    const Header about = header();
    FaissContent out(about.dim, about.metric, about.trained);
    const auto lists = value<std::uint64_t>("the number of lists"),
               probes = value<std::uint64_t>("nprobe");
    if (lists < 1 || lists > most_lists)
      refuse(fmt::format("there are {} lists, where 1 to {} can be", lists, most_lists));
    out.lists = static_cast<std::int64_t>(lists);
    out.probes = static_cast<std::int64_t>(std::clamp(probes, std::uint64_t{1}, lists));
    out.centroids = std::make_shared<FaissContent>(index(depth + 1));
    if (out.trained && (out.centroids->dim != out.dim || out.centroids->size() != out.lists))
      refuse(fmt::format("{} lists of {} columns have a quantiser of {} centroids and {} columns",
                         lists, out.dim, out.centroids->size(), out.centroids->dim));
    direct_map();
    read_rows(*this, out, about.rows);
    return out;
  }

  static void read_listed_vectors(FaissFields& in, FaissRows& out, std::int64_t rows) {
    const Matrix<std::uint8_t> bytes =
        in.read_lists(out, rows, out.dim * std::int64_t{sizeof(float)});
    out.rows = AnyMatrix(ElementType::f32, rows, out.dim);
    const std::size_t size = bytes.rows() * bytes.cols();
    if (size > 0) std::memcpy(out.rows.row(0), bytes.data(), size);
  }

  // A matrix with what is added.
  Transform linear_body(std::int64_t rows, std::int64_t columns, std::vector<float> matrix,
                        std::vector<float> offset) {
    if (std::ssize(matrix) != rows * columns || (!offset.empty() && std::ssize(offset) != rows))
      refuse(fmt::format("a transform of {} to {} columns has {} numbers", columns, rows,
                         matrix.size()));
    return Transform::linear({matrix.data(), rows, columns}, offset);
  }
  // The shape of a shift is a rotation's: there is no other word for it.
  std::pair<TransformShape, Transform> transform() {
    using Kind = TransformShape::Kind;
    constexpr std::string_view what = "a transform";
    const std::int64_t begin = at_;
    const std::string type = letters();
    TransformShape shape{};
    const bool pca = type == "Pcam" || type == "PcAm" || type == "PCAm", shift = type == "VCnt",
               linear = pca || type == "LTra" || type == "rrot" || type == "Viqm";
    if (!linear && !shift && type != "VNrm") {
      const std::string_view name = name_of_faiss_transform(type);
      at_ = begin;
      if (name.empty()) refuse(fmt::format("'{}' is no type of a transform", shown(type)));
      not_read(fmt::format("{} ({}) at byte {}", name, type, begin), type == "RmDT" ? yes : no);
    }
    shape.kind = pca ? Kind::pca : linear || shift ? Kind::rotation : Kind::unit_norm;
    if (pca) {
      shape.whiten = value<float>(what) != 0;
      if (type == "Pcam") take(4, what);
      shape.rotate = flag(what);
      if (type != "PCAm") take(4, what);
      for (int i = 0; i < 3; ++i) some_floats(what);  // it is in the matrix
    }
    if (type == "Viqm") take(8, what);  // how it was found
    random_rotation_ = type == "rrot";
    std::vector<float> matrix, offset;
    if (linear) {
      const bool biased = flag(what);
      matrix = some_floats("a matrix");
      offset = some_floats("an offset");
      if (!biased) offset.clear();
    } else if (shift) {
      offset = some_floats("a mean");
      for (float& x : offset) x = -x;
    } else if (const auto norm = value<float>(what); norm != 2) {
      not_read(fmt::format("a NormalizationTransform by norm {}", norm), yes, "norm 2");
    }
    const auto in = value<std::int32_t>(what), out = value<std::int32_t>(what);
    if (in < 1 || in > 65536 || out < 1 || out > 65536 || (!linear && in != out) ||
        (shift && std::ssize(offset) != in))
      refuse(fmt::format("a transform has {} columns and makes {} of them", in, out));
    if (!flag(what))
      not_read(fmt::format("{} ({}) that is not trained", name_of_faiss_transform(type), type),
               yes);
    shape.dim_out = out;
    if (pca && out > in) refuse(fmt::format("a PCA makes {} columns of {}", out, in));
    return {shape, linear  ? linear_body(out, in, std::move(matrix), std::move(offset))
                   : shift ? Transform::shift(offset)
                           : Transform::unit_norm(in)};
  }
  // Adds a transform to others. One that only shifts is a part of the linear one before or after
  // it, if there is one.
  static void add_transform(FaissContent& to, TransformShape shape, Transform one) {
    using Kind = TransformShape::Kind;
    const auto only_shifts = [](const Transform& some) {
      const auto steps = some.steps();
      return steps.size() == 1 && steps[0].kind == Transform::Kind::shift;
    };
    const bool joins = !to.transforms.empty() && to.transforms.back().kind != Kind::unit_norm &&
                       shape.kind != Kind::unit_norm;
    if (joins && only_shifts(one)) {
      to.chain.back() = Transform::chain({to.chain.back(), one});
    } else if (joins && only_shifts(to.chain.back())) {
      to.chain.back() = Transform::chain({to.chain.back(), one}), to.transforms.back() = shape;
    } else {
      to.transforms.push_back(shape), to.chain.push_back(std::move(one));
    }
  }

  FaissContent transformed(int depth) {
    const Header about = header();
    const auto count_of = value<std::int32_t>("the transforms");
    if (count_of < 0 || count_of > 16) refuse(fmt::format("it has {} transforms", count_of));
    FaissContent before;
    std::int64_t dim = about.dim;
    for (int i = 0; i < count_of; ++i) {
      auto [shape, one] = transform();
      if (one.dim_in() != dim)
        refuse(fmt::format("a transform takes {} columns, not {}", one.dim_in(), dim));
      dim = one.dim_out();
      add_transform(before, shape, std::move(one));
    }
    FaissContent out = index(depth + 1);
    if (out.dim != dim || out.metric != about.metric)
      refuse(fmt::format("transforms make {} columns, but the index has {}", dim, out.dim));
    if (out.fine) not_read("an IndexRefine behind transforms", yes, "one that is before them");
    for (std::size_t i = 0; i < out.transforms.size(); ++i)
      add_transform(before, out.transforms[i], std::move(out.chain[i]));
    out.transforms = std::move(before.transforms), out.chain = std::move(before.chain);
    // A rotation before a product quantiser is most likely OPQ's, unless it is a random one.
    if (!random_rotation_ && out.codes && codec_of(*out.codes).has_parts() &&
        !out.transforms.empty() && out.transforms.back().kind == TransformShape::Kind::rotation &&
        out.transforms.back().dim_out <= out.chain.back().dim_in()) {
      out.transforms.back().kind = TransformShape::Kind::opq;
      out.transforms.back().sub_quantizers = out.codes->parts;
      out.transforms.back().bits = out.codes->bits;
    }
    out.dim = about.dim;
    return out;
  }

  // Whether an index of vectors, in whatever order, has those of another in the order of its ids.
  static bool are_the_same(const FaissContent& a, const FaissContent& in_order) {
    if (a.dim != in_order.dim || a.size() != in_order.size() || a.metric != in_order.metric)
      return false;
    const AnyMatrixView ours = a.rows.view(), theirs = in_order.rows.view();
    const auto bytes = static_cast<std::size_t>(a.dim) * sizeof(float);
    for (std::int64_t i = 0; i < a.size(); ++i) {
      const Id id = a.ids.empty() ? i : a.ids[i];
      if (id < 0 || id >= a.size() || std::memcmp(ours.row(i), theirs.row(id), bytes) != 0)
        return false;
    }
    return true;
  }

  FaissContent refined(int depth) {
    const Header about = header();
    FaissContent out = index(depth + 1), fine = index(depth + 1);
    out.k_factor = value<float>("k_factor");
    if (!fine.is_plain())
      not_read("an IndexRefine whose refine_index is of another type", yes,
               "an IndexFlat, IndexScalarQuantizer or IndexPQ there");
    // Vectors that are measured again by themselves stay where they are.
    if (out.is_of_vectors() && fine.is_of_vectors() && are_the_same(out, fine)) return out;
    if (!out.codes || out.fine)
      not_read(fmt::format("an {} of an index without codes",
                           fine.is_of_vectors() ? "IndexRefineFlat" : "IndexRefine"),
               yes, "one that refines codes");
    if (fine.dim != about.dim || out.dim != about.dim || fine.size() != out.size() ||
        fine.metric != out.metric || (fine.codes && fine.trained != out.trained))
      refuse(fmt::format("{} codes of {} columns are refined by {} rows of {}", out.size(), out.dim,
                         fine.size(), fine.dim));
    // In the order of the codes.
    const AnyMatrixView from = fine.codes ? AnyMatrixView(fine.code_rows.view()) : fine.rows.view();
    AnyMatrix rows(from.type(), from.rows(), from.cols());
    const std::size_t bytes = from.cols() * size_of(from.type());
    for (std::int64_t i = 0; i < out.size(); ++i) {
      const Id id = out.ids.empty() ? i : out.ids[i];
      if (id < 0 || id >= out.size()) refuse(fmt::format("id {} has no vector", id));
      std::memcpy(rows.row(i), from.row(id), bytes);
    }
    fine.rows = std::move(rows), fine.code_rows = {};
    out.fine = std::make_shared<FaissContent>(std::move(fine));
    return out;
  }

  bool random_rotation_ = false;  // whether the last linear transform that was read is one
};

}  // namespace

FaissContent read_faiss_content(const std::string& path) {
  try {
    return Reader(path).read();
  } catch (const FaissNotRead&) {
    throw;
  } catch (const InvalidArgument& error) {  // a transform that is none
    throw CorruptFile("{}: {}", path, error.what());
  }
}

}  // namespace knear::detail
