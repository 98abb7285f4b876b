// python/bindings/quantizers.cpp -- transforms of vectors, product and scalar quantisers.
#include <nanobind/stl/vector.h>

#include "knear/quantize/opq.hpp"
#include "knear/quantize/plain_codes.hpp"
#include "knear/quantize/product_quantizer.hpp"
#include "knear/quantize/scalar_quantizer.hpp"
#include "knear/transform/transform.hpp"
#include "python/bindings/arrays.hpp"
#include "python/bindings/bind.hpp"
#include "python/bindings/call.hpp"

namespace knear::python {
namespace {

nb::object copy_of(MatrixView<float> view) {
  Matrix<float> copy(view.rows(), view.cols());
  for (std::int64_t row = 0; row < view.rows(); ++row)
    std::copy_n(view.row(row), view.cols(), copy.row(row));
  return array_of(std::move(copy));
}

nb::object copy_of(std::span<const float> values) {
  return array_of(std::vector<float>(values.begin(), values.end()));
}

// ("linear", matrix, offset), ("shift", offset) or ("unit_norm", dim).
nb::object tuple_of(const Transform::Step& step) {
  switch (step.kind) {
    case Transform::Kind::linear:
      return nb::make_tuple("linear", copy_of(step.matrix), copy_of(step.offset));
    case Transform::Kind::shift:
      return nb::make_tuple("shift", copy_of(step.offset));
    case Transform::Kind::unit_norm:
      break;
  }
  return nb::make_tuple("unit_norm", step.dim_in);
}

void bind_transforms(nb::module_& m) {
  nb::class_<Transform>(m, "Transform")
      .def_static(
          "pca",
          [](const Array& rows, const std::string& type, std::int64_t components, bool whiten,
             bool rotate, std::int64_t balance_over, std::int64_t most_rows, std::uint64_t seed,
             std::int64_t threads, nb::object progress_to) {
            const AnyMatrixView view = view_of(rows, type);
            std::optional<Transform> out;
            without_interpreter(progress_to, [&](Progress progress) {
              out = Transform::pca(view, components,
                                   {.whiten = whiten,
                                    .rotate = rotate,
                                    .balance_over = balance_over,
                                    .most_rows = most_rows,
                                    .seed = seed,
                                    .threads = thread_count(threads),
                                    .progress = std::move(progress)});
            });
            return *out;
          },
          nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("components"), nb::arg("whiten"),
          nb::arg("rotate"), nb::arg("balance_over"), nb::arg("most_rows"), nb::arg("seed"),
          nb::arg("threads"), nb::arg("progress").none())
      .def_static(
          "opq",
          [](const Array& rows, const std::string& type, std::int64_t sub_quantizers,
             std::int64_t bits, std::int64_t dim_out, std::int64_t iterations, std::uint64_t seed,
             std::int64_t most_rows, std::int64_t threads, nb::object progress_to) {
            const AnyMatrixView view = view_of(rows, type);
            std::optional<Transform> out;
            without_interpreter(progress_to, [&](Progress progress) {
              out = train_opq(view, sub_quantizers,
                              {.bits = narrow(bits),
                               .dim_out = dim_out,
                               .iterations = narrow(iterations),
                               .seed = seed,
                               .most_rows = most_rows,
                               .threads = thread_count(threads),
                               .progress = std::move(progress)});
            });
            return *out;
          },
          nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("sub_quantizers"), nb::arg("bits"),
          nb::arg("dim_out"), nb::arg("iterations"), nb::arg("seed"), nb::arg("most_rows"),
          nb::arg("threads"), nb::arg("progress").none())
      .def_static("rotation", &Transform::rotation, nb::arg("dim_in"), nb::arg("dim_out"),
                  nb::arg("seed"))
      .def_static(
          "centring",
          [](const Array& rows, const std::string& type, std::int64_t threads) {
            return Transform::centring(view_of(rows, type), thread_count(threads));
          },
          nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("threads"))
      .def_static("unit_norm", &Transform::unit_norm, nb::arg("dim"))
      .def_static(
          "shift",
          [](const FloatList& offset) {
            return Transform::shift({offset.data(), offset.size()});
          },
          nb::arg("offset").noconvert())
      .def_static(
          "linear",
          [](const Array& matrix, const FloatList& offset) {
            return Transform::linear(view_of(matrix, "f32").as<float>(),
                                     {offset.data(), offset.size()});
          },
          nb::arg("matrix").noconvert(), nb::arg("offset").noconvert())
      .def_static("chain", &Transform::chain, nb::arg("transforms"))
      .def_prop_ro("dim_in", &Transform::dim_in)
      .def_prop_ro("dim_out", &Transform::dim_out)
      .def_prop_ro("keeps_distances", &Transform::keeps_distances)
      .def("steps",
           [](const Transform& self) {
             nb::list steps;
             for (const Transform::Step& step : self.steps()) steps.append(tuple_of(step));
             return steps;
           })
      .def(
          "apply",
          [](const Transform& self, const Array& rows, const std::string& type,
             std::int64_t threads, nb::object progress_to) {
            const AnyMatrixView view = view_of(rows, type);
            Matrix<float> out;
            without_interpreter(progress_to, [&](Progress progress) {
              out = self.apply(view, thread_count(threads), progress);
            });
            return array_of(std::move(out));
          },
          nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("threads"),
          nb::arg("progress").none() = nb::none())
      .def(
          "inverse",
          [](const Transform& self, const Array& rows, const std::string& type,
             std::int64_t threads, nb::object progress_to) {
            const AnyMatrixView view = view_of(rows, type);
            Matrix<float> out;
            without_interpreter(progress_to, [&](Progress progress) {
              out = self.inverse(view, thread_count(threads), progress);
            });
            return array_of(std::move(out));
          },
          nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("threads"),
          nb::arg("progress").none() = nb::none());
}

ScalarCode scalar_code_of(const std::string& name) {
  for (const ScalarCode code :
       {ScalarCode::bits8, ScalarCode::bits4, ScalarCode::f16, ScalarCode::bf16})
    if (name_of(code) == name) return code;
  throw InvalidArgument("code must be 8, 4, fp16 or bf16, but is {}", name);
}

// Methods that product and scalar quantisers share.
template <class Quantizer>
void bind_coding(nb::class_<Quantizer>& quantizer) {
  quantizer.def_prop_ro("dim", &Quantizer::dim)
      .def_prop_ro("code_size", &Quantizer::code_size)
      .def(
          "encode",
          [](const Quantizer& self, const Array& rows, const std::string& type,
             std::int64_t threads, nb::object progress_to) {
            const AnyMatrixView view = view_of(rows, type);
            Matrix<std::uint8_t> out;
            without_interpreter(progress_to, [&](Progress progress) {
              out = self.encode(view, thread_count(threads), progress);
            });
            return array_of(std::move(out));
          },
          nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("threads"),
          nb::arg("progress").none() = nb::none())
      .def(
          "decode",
          [](const Quantizer& self, const Codes& codes, std::int64_t threads) {
            Matrix<float> out;
            without_interpreter([&](const Progress&) {
              out = self.decode(codes_of(codes), thread_count(threads));
            });
            return array_of(std::move(out));
          },
          nb::arg("codes").noconvert(), nb::arg("threads"))
      .def(
          "distances",
          [](const Quantizer& self, const Array& queries, const std::string& type,
             const Codes& codes, const std::string& metric, std::int64_t threads) {
            const AnyMatrixView view = view_of(queries, type);
            const Metric by = parse_metric(metric);
            Matrix<float> out;
            without_interpreter([&](const Progress&) {
              out = self.distances(view, codes_of(codes), by, thread_count(threads));
            });
            return array_of(std::move(out));
          },
          nb::arg("queries").noconvert(), nb::arg("type"), nb::arg("codes").noconvert(),
          nb::arg("metric"), nb::arg("threads"))
      .def(
          "code_distances",
          [](const Quantizer& self, const Codes& from, const Codes& to, const std::string& metric,
             std::int64_t threads) {
            const Metric by = parse_metric(metric);
            Matrix<float> out;
            without_interpreter([&](const Progress&) {
              out = self.code_distances(codes_of(from), codes_of(to), by, thread_count(threads));
            });
            return array_of(std::move(out));
          },
          nb::arg("from_codes").noconvert(), nb::arg("to_codes").noconvert(), nb::arg("metric"),
          nb::arg("threads"));
}

// Codes of rows into `out` [n x code_size]; the first row that has none, or n.
void bind_plain_codes(nb::module_& m) {
  using CodesOut = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
  nb::class_<detail::PlainCode>(m, "PlainCode")
      .def(
          "__init__",
          [](detail::PlainCode* self, const std::string& kind, std::int64_t dim,
             const FloatList& low, const FloatList& span) {
            new (self) detail::PlainCode(detail::PlainCode::kind_of(kind), dim,
                                         {low.data(), low.size()}, {span.data(), span.size()});
          },
          nb::arg("kind"), nb::arg("dim"), nb::arg("low").noconvert(), nb::arg("span").noconvert())
      .def(
          "encode",
          [](const detail::PlainCode& self, const Array& rows,
             const std::optional<Array>& centroids, const Ids& lists, std::int64_t threads,
             const CodesOut& out) {
            const MatrixView<float> from = view_of(rows, "f32").as<float>();
            MatrixView<float> beside;
            if (centroids) beside = view_of(*centroids, "f32").as<float>();
            const std::span<const Id> list_of = lists ? span_of(*lists) : std::span<const Id>();
            if (from.cols() != self.dim() || (centroids && beside.cols() != self.dim()))
              throw ShapeMismatch("rows and centroids must have {} columns", self.dim());
            if (static_cast<std::int64_t>(out.shape(0)) != from.rows() ||
                static_cast<std::int64_t>(out.shape(1)) != self.code_size())
              throw ShapeMismatch("out must be {} codes of {} bytes", from.rows(),
                                  self.code_size());
            if (centroids && std::ssize(list_of) != from.rows())
              throw ShapeMismatch("lists are {} for {} rows", list_of.size(), from.rows());
            if (centroids)
              for (const Id list : list_of)
                if (list < 0 || list >= beside.rows())
                  throw InvalidArgument("lists hold {}, but there are {} of them", list,
                                        beside.rows());
            std::int64_t bad = 0;
            without_interpreter([&](const Progress&) {
              bad = self.encode(from, beside, list_of, thread_count(threads), out.data());
            });
            return bad;
          },
          nb::arg("rows").noconvert(), nb::arg("centroids").noconvert().none(),
          nb::arg("lists").none(), nb::arg("threads"), nb::arg("out").noconvert());
}

}  // namespace

void bind_quantizers(nb::module_& m) {
  bind_transforms(m);
  bind_plain_codes(m);
  nb::class_<ProductQuantizer> product(m, "ProductQuantizer");
  product
      .def_static(
          "train",
          [](const Array& rows, const std::string& type, std::int64_t sub_quantizers,
             std::int64_t bits, std::int64_t iterations, std::uint64_t seed, std::int64_t most_rows,
             std::int64_t threads, nb::object progress_to) {
            const AnyMatrixView view = view_of(rows, type);
            ProductQuantizerOptions options{.iterations = narrow(iterations), .seed = seed};
            options.most_rows = most_rows, options.threads = thread_count(threads);
            std::optional<ProductQuantizer> out;
            without_interpreter(progress_to, [&](Progress progress) {
              options.progress = std::move(progress);
              out = ProductQuantizer::train(view, sub_quantizers, narrow(bits), options);
            });
            return *out;
          },
          nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("sub_quantizers"), nb::arg("bits"),
          nb::arg("iterations"), nb::arg("seed"), nb::arg("most_rows"), nb::arg("threads"),
          nb::arg("progress").none())
      .def_static(
          "from_centroids",
          [](const Array& centroids, std::int64_t sub_quantizers, std::int64_t bits) {
            return ProductQuantizer::from_centroids(view_of(centroids, "f32").as<float>(),
                                                    sub_quantizers, narrow(bits));
          },
          nb::arg("centroids").noconvert(), nb::arg("sub_quantizers"), nb::arg("bits"))
      // [sub_quantizers * 2^bits x width].
      .def_prop_ro("centroids",
                   [](const ProductQuantizer& pq) { return copy_of(pq.all_centroids()); })
      .def(
          "tables",
          [](const ProductQuantizer& pq, const Array& queries, const std::string& type,
             const std::string& metric, std::int64_t threads) {
            const AnyMatrixView view = view_of(queries, type);
            const Metric by = parse_metric(metric);
            Matrix<float> out;
            without_interpreter(
                [&](const Progress&) { out = pq.tables(view, by, thread_count(threads)); });
            return array_of(std::move(out));
          },
          nb::arg("queries").noconvert(), nb::arg("type"), nb::arg("metric"), nb::arg("threads"));
  bind_coding(product);

  nb::class_<ScalarQuantizer> scalar(m, "ScalarQuantizer");
  scalar
      .def_static(
          "train",
          [](const Array& rows, const std::string& type, const std::string& code,
             std::int64_t threads) {
            const AnyMatrixView view = view_of(rows, type);
            const ScalarCode as = scalar_code_of(code);
            std::optional<ScalarQuantizer> out;
            without_interpreter([&](const Progress&) {
              out = ScalarQuantizer::train(view, as, thread_count(threads));
            });
            return *out;
          },
          nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("code"), nb::arg("threads"))
      .def_static(
          "from_levels",
          [](const std::string& code, const FloatList& low, const FloatList& step) {
            return ScalarQuantizer::from_levels(scalar_code_of(code), {low.data(), low.size()},
                                                {step.data(), step.size()});
          },
          nb::arg("code"), nb::arg("low").noconvert(), nb::arg("step").noconvert())
      .def_static(
          "of_halves",
          [](const std::string& code, std::int64_t dim) {
            return ScalarQuantizer::of_halves(scalar_code_of(code), dim);
          },
          nb::arg("code"), nb::arg("dim"))
      .def_prop_ro("low", [](const ScalarQuantizer& sq) { return copy_of(sq.low()); })
      .def_prop_ro("step", [](const ScalarQuantizer& sq) { return copy_of(sq.step()); });
  bind_coding(scalar);
}

}  // namespace knear::python
