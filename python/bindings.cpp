// python/bindings.cpp -- the extension knear._core: the library for NumPy arrays.
//
// A thin layer: python/knear/_arrays.py or the library checks arguments. Here arrays become views
// of the same memory, results become arrays that own theirs, exceptions get the Python class of
// their name, and the interpreter lock is released while the library works.
#include <Python.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "knear/cluster/k_means.hpp"
#include "knear/core/error.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/version.hpp"
#include "knear/factory/choose_index.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/faiss_file.hpp"
#include "knear/knn/knn.hpp"
#include "knear/quantize/product_quantizer.hpp"
#include "knear/select/select_k.hpp"
#include "python/device_arrays.hpp"

namespace nb = nanobind;

namespace knear {
namespace {

using Array = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using Report = std::optional<nb::dict>;
using FloatList = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IdArray = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = std::optional<IdArray>;
using Bits =
    std::optional<nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

// Method, recall, samples, logical rows, whether candidates become the k nearest; probes, whether
// they are widened, whether queries are certified; codes refined for each neighbour.
using MethodTuple = std::tuple<std::string, std::optional<double>, std::int64_t, std::int64_t, bool,
                               std::int64_t, bool, bool, std::int64_t>;

MethodOptions method_options_of(const MethodTuple& from) {
  const auto& [method, recall, samples, logical_rows, aggregate, probes, widen, certify, refine] =
      from;
  return {.kind = parse_method(method),
          .recall = recall,
          .samples = samples,
          .logical_rows = logical_rows,
          .aggregate = aggregate,
          .probes = probes,
          .widen = widen,
          .refine_factor = refine,
          .certify = certify};
}

RowFilter filter_of(const Ids& ids, const Bits& bits, std::int64_t rows) {
  if (ids) return RowFilter::of_ids({ids->data(), ids->size()}, rows);
  if (bits) return RowFilter::of_bits({bits->data(), bits->size()}, rows);
  return {};
}

std::span<const Id> span_of(const IdArray& ids) { return {ids.data(), ids.size()}; }

IdFilter id_filter_of(const Ids& ids, const Bits& bits, std::int64_t bit_count) {
  if (ids) return IdFilter::of_ids({ids->data(), ids->size()});
  if (bits) return IdFilter::of_bits({bits->data(), bits->size()}, bit_count);
  return {};
}

AnyMatrixView view_of(const Array& array, const std::string& type) {
  const auto rows = static_cast<std::int64_t>(array.shape(0));
  const auto cols = static_cast<std::int64_t>(array.shape(1));
  const ElementType element = parse_element_type(type);
  if (array.dtype().bits != 8 * size_of(element))
    throw InvalidArgument("an array of {}-bit elements was passed as {}", array.dtype().bits, type);
  // The stride of a single row has no meaning, and NumPy lets it be anything.
  const std::int64_t stride = rows > 1 ? array.stride(0) : cols;
  return {element, array.data(), rows, cols, stride};
}

// A number that is too large stays too large, for the library to refuse.
int narrow(std::int64_t threads) {
  return static_cast<int>(std::clamp<std::int64_t>(threads, -1, 1 << 30));
}

template <class T>
nb::object array_of(Matrix<T>&& matrix) {
  auto owned = std::make_unique<Matrix<T>>(std::move(matrix));
  const std::size_t shape[] = {static_cast<std::size_t>(owned->rows()),
                               static_cast<std::size_t>(owned->cols())};
  T* data = owned->data();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<Matrix<T>*>(p); });
  owned.release();
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<2>>(data, 2, shape, owner));
}

// Checks now and then whether Python got a signal (Ctrl-C). Only the calling thread may check, so
// the other threads read its flag; it does its share of the work and so checks often enough.
class Interruptible {
 public:
  Progress progress() {
    return [this](std::string_view, double) {
      const auto now = std::chrono::steady_clock::now();
      if (std::this_thread::get_id() == caller_ && now >= next_) {
        const nb::gil_scoped_acquire python;
        if (PyErr_CheckSignals() != 0) stopped_ = true;  // the exception is pending in this thread
        next_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
      }
      return !stopped_;
    };
  }
  bool stopped() const { return stopped_; }

 private:
  const std::thread::id caller_ = std::this_thread::get_id();
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now();
  std::atomic<bool> stopped_ = false;
};

nb::object result_of(Neighbors near) {
  return nb::make_tuple(array_of(std::move(near.distances)), array_of(std::move(near.ids)));
}

template <class T>
nb::object array_of(std::vector<T>&& values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  const std::size_t shape[] = {owned->size()};
  T* data = owned->data();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  owned.release();
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, 1, shape, owner));
}

nb::object result_of(RangeNeighbors near) {
  return nb::make_tuple(array_of(std::move(near.begin)), array_of(std::move(near.distances)),
                        array_of(std::move(near.ids)));
}

// Runs work(progress) with the interpreter lock released.
template <class Work>
void without_interpreter(Work work) {
  Interruptible interruptible;
  try {
    const nb::gil_scoped_release released;
    work(interruptible.progress());
  } catch (const Cancelled&) {
    if (interruptible.stopped()) throw nb::python_error();  // takes the pending exception
    throw;
  }
  if (interruptible.stopped()) throw nb::python_error();  // stopped too late to matter
}

// Runs search(progress, report) with the interpreter lock released; returns its result, and fills
// `out` where it is wanted.
template <class Search>
auto found_by(Report& out, Search search) {
  KnnReport report;
  std::optional<decltype(search(Progress(), &report))> near;
  without_interpreter(
      [&](Progress progress) { near = search(std::move(progress), out ? &report : nullptr); });
  if (out) {
    nb::dict& d = *out;
    d.clear();
    d["rows"] = report.rows;
    d["allowed_rows"] = report.allowed_rows;
    d["dim"] = report.dim;
    d["queries"] = report.queries;
    d["k"] = report.k;
    d["metric"] = std::string(name_of(report.metric));
    d["isa"] = report.isa;
    d["first_pass"] = report.first_pass;
    d["centred"] = report.centred;
    d["threads"] = report.threads;
    d["prepare_seconds"] = report.prepare_seconds;
    d["seconds"] = report.seconds;
    d["scan_seconds"] = report.scan_seconds;
    d["query_seconds"] = report.query_seconds;
    d["seed_seconds"] = report.seed_seconds;
    d["score_seconds"] = report.score_seconds;
    d["select_seconds"] = report.select_seconds;
    d["rescore_seconds"] = report.rescore_seconds;
    d["hits_per_query"] = report.hits_per_query;
    d["refined_per_query"] = report.refined_per_query;
    d["survivors_per_query"] = report.survivors_per_query;
    d["fallback_queries"] = report.fallback_queries;
    d["repeated_queries"] = report.repeated_queries;
    d["certified_queries"] = report.certified_queries;
    d["method"] = report.method;
    d["device"] = report.device;
    if (report.device != "cpu") d["device_bytes"] = report.device_bytes;
    d["promised_recall"] = report.promised_recall;
    d["expected_recall"] = report.expected_recall;
    d["recall_argument"] = report.recall_argument;
    if (report.method == "partial-reduce") {
      d["bins"] = report.bins;
      d["kept_per_bin"] = report.kept_per_bin;
      d["repaired_queries"] = report.repaired_queries;
      d["uncertified"] = array_of(std::move(report.uncertified));
    }
    if (report.lists > 0) {
      d["lists"] = report.lists;
      d["probes"] = report.probes;
      d["probed_rows"] = report.probed_rows;
      d["short_queries"] = report.short_queries;
      if (!report.note.empty()) d["note"] = report.note;
      d["uncertified"] = array_of(std::move(report.uncertified));
    }
    if (report.method == "threshold-heap") {
      d["samples"] = report.samples;
      d["compression_ratio"] = report.compression_ratio;
      d["threshold_ratio"] = report.threshold_ratio;
      d["sampling_seconds"] = report.sampling_seconds;
      d["sorting_seconds"] = report.sorting_seconds;
    }
    d["memory_bytes"] = report.memory_bytes;
    d["multiply_adds"] = report.multiply_adds;
    if (report.prefix_columns > 0) d["prefix_columns"] = report.prefix_columns;
    if (report.prefix_columns > 0) d["clusters"] = report.clusters;
    if (report.joined) d["joined"] = true;
    d["group"] = report.group;
    d["tile_rows"] = report.tile_rows;
    d["parts"] = report.parts;
    d["guessed"] = report.guessed;
    d["bytes_read"] = report.bytes_read;
    d["version"] = report.version;
  }
  return std::move(*near);
}

// As found_by, but returns the result's arrays: (distances, ids), or (begin, distances, ids) of a
// range search.
template <class Search>
nb::object run(Report& out, Search search) {
  return result_of(found_by(out, std::move(search)));
}

// Address, element type, rows and columns of a matrix in device memory.
using DeviceTuple = std::tuple<std::uintptr_t, std::string, std::int64_t, std::int64_t>;

cuda::MatrixView matrix_of(const DeviceTuple& from) {
  const auto& [address, type, rows, cols] = from;
  return {reinterpret_cast<const void*>(address), parse_element_type(type), rows, cols};
}

// (address, object with __dlpack__) of an array that keeps its memory.
nb::object array_of(python::DeviceMemory memory, int device, const std::vector<std::size_t>& shape,
                    nb::dlpack::dtype type) {
  auto owned = std::make_unique<python::DeviceMemory>(std::move(memory));
  void* data = owned->get();
  nb::capsule owner(owned.get(),
                    [](void* p) noexcept { delete static_cast<python::DeviceMemory*>(p); });
  owned.release();
  return nb::make_tuple(reinterpret_cast<std::uintptr_t>(data),
                        nb::cast(nb::ndarray<nb::array_api, nb::device::cuda>(
                            data, shape.size(), shape.data(), owner, nullptr, type,
                            nb::device::cuda::value, device)));
}

// Distances and ids [rows x k].
nb::object result_of(python::DeviceNeighbors near, int device, std::int64_t rows, std::int64_t k) {
  const std::vector<std::size_t> shape = {static_cast<std::size_t>(rows),
                                          static_cast<std::size_t>(k)};
  return nb::make_tuple(array_of(std::move(near.distances), device, shape, nb::dtype<float>()),
                        array_of(std::move(near.ids), device, shape, nb::dtype<Id>()));
}

// The lengths of this many rows; an empty list given for them does not mean all.
std::span<const std::int64_t> lengths_of(const Ids& lengths, std::int64_t rows) {
  if (!lengths) return {};
  if (lengths->size() == 0 && rows > 0)
    throw ShapeMismatch("lengths has 0 values, rows has {} rows", rows);
  return span_of(*lengths);
}

// Raises the exception of this name in knear/errors.py.
void raise(const char* name, const char* message) {
  const nb::object type = nb::module_::import_("knear.errors").attr(name);
  PyErr_SetString(type.ptr(), message);
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const InvalidArgument& e) {
    raise("InvalidArgument", e.what());
  } catch (const ShapeMismatch& e) {
    raise("ShapeMismatch", e.what());
  } catch (const CorruptFile& e) {
    raise("CorruptFile", e.what());
  } catch (const IoError& e) {
    raise("IoError", e.what());
  } catch (const MemoryBudgetError& e) {
    raise("MemoryBudgetError", e.what());
  } catch (const DeviceUnavailable& e) {
    raise("DeviceUnavailable", e.what());
  } catch (const Cancelled& e) {
    raise("Cancelled", e.what());
  } catch (const Error& e) {
    raise("Error", e.what());
  } catch (const std::bad_alloc&) {  // of what the bindings do outside the library's calls
    raise("MemoryBudgetError", "the system has no memory left that this call needs");
  }
}

// The searches of arrays.
void bind_searches(nb::module_& m) {
  m.def(
      "knn",
      [](const Array& queries, const std::string& queries_type, const Array& base,
         const std::string& base_type, std::int64_t k, const std::string& metric,
         std::int64_t threads, std::int64_t memory, const std::string& first_pass,
         const std::string& choices, const MethodTuple& method_options, const std::string& device,
         const Ids& ids, const Bits& bits, Report report) {
        const AnyMatrixView q = view_of(queries, queries_type), b = view_of(base, base_type);
        KnnOptions options{.metric = parse_metric(metric),
                           .threads = narrow(threads),
                           .memory = memory,
                           .first_pass = parse_first_pass(first_pass),
                           .filter = filter_of(ids, bits, b.rows()),
                           .tuning = parse_tuning(choices),
                           .method = method_options_of(method_options),
                           .device = device};
        return run(report, [&](Progress progress, KnnReport* filled) {
          options.progress = std::move(progress);
          return knn(q, b, k, options, filled);
        });
      },
      nb::arg("queries").noconvert(), nb::arg("queries_type"), nb::arg("base").noconvert(),
      nb::arg("base_type"), nb::arg("k"), nb::arg("metric"), nb::arg("threads"), nb::arg("memory"),
      nb::arg("first_pass"), nb::arg("choices"), nb::arg("method_options"), nb::arg("device"),
      nb::arg("filter_ids").none(), nb::arg("filter_bits").none(), nb::arg("report").none());

  m.def(
      "self_join",
      [](const Array& base, const std::string& base_type, std::int64_t k, const std::string& metric,
         std::int64_t threads, std::int64_t memory, const std::string& first_pass,
         const std::string& choices, const std::string& device, const Ids& ids, const Bits& bits,
         Report report) {
        const AnyMatrixView b = view_of(base, base_type);
        KnnOptions options{.metric = parse_metric(metric),
                           .threads = narrow(threads),
                           .memory = memory,
                           .first_pass = parse_first_pass(first_pass),
                           .filter = filter_of(ids, bits, b.rows()),
                           .tuning = parse_tuning(choices),
                           .device = device};
        return run(report, [&](Progress progress, KnnReport* filled) {
          options.progress = std::move(progress);
          return self_join(b, k, options, filled);
        });
      },
      nb::arg("base").noconvert(), nb::arg("base_type"), nb::arg("k"), nb::arg("metric"),
      nb::arg("threads"), nb::arg("memory"), nb::arg("first_pass"), nb::arg("choices"),
      nb::arg("device"), nb::arg("filter_ids").none(), nb::arg("filter_bits").none(),
      nb::arg("report").none());

  m.def(
      "range_search",
      [](const Array& queries, const std::string& queries_type, const Array& base,
         const std::string& base_type, double radius, const std::string& metric,
         std::int64_t threads, std::int64_t memory, const std::string& first_pass,
         const std::string& device, const Ids& ids, const Bits& bits, Report report) {
        const AnyMatrixView q = view_of(queries, queries_type), b = view_of(base, base_type);
        KnnOptions options{.metric = parse_metric(metric),
                           .threads = narrow(threads),
                           .memory = memory,
                           .first_pass = parse_first_pass(first_pass),
                           .filter = filter_of(ids, bits, b.rows()),
                           .device = device};
        return run(report, [&](Progress progress, KnnReport* filled) {
          options.progress = std::move(progress);
          return range_search(q, b, radius, options, filled);
        });
      },
      nb::arg("queries").noconvert(), nb::arg("queries_type"), nb::arg("base").noconvert(),
      nb::arg("base_type"), nb::arg("radius"), nb::arg("metric"), nb::arg("threads"),
      nb::arg("memory"), nb::arg("first_pass"), nb::arg("device"), nb::arg("filter_ids").none(),
      nb::arg("filter_bits").none(), nb::arg("report").none());
}

// Selection, of arrays here and on a device.
void bind_selection(nb::module_& m) {
  m.def(
      "select_k",
      [](const Array& x, const std::string& type, std::int64_t k, bool largest, bool sorted,
         const Ids& lengths, std::int64_t threads, const std::string& method) {
        SelectOptions options{.extreme = largest ? Extreme::largest : Extreme::smallest,
                              .sorted = sorted,
                              .threads = narrow(threads),
                              .method = parse_select_method(method)};
        const AnyMatrixView rows = view_of(x, type);
        options.lengths = lengths_of(lengths, rows.rows());
        Selection found;
        without_interpreter([&](Progress progress) {
          options.progress = std::move(progress);
          found = select_k(rows, k, options);
        });
        return nb::make_tuple(array_of(std::move(found.values)), array_of(std::move(found.places)));
      },
      nb::arg("x").noconvert(), nb::arg("x_type"), nb::arg("k"), nb::arg("largest"),
      nb::arg("sorted"), nb::arg("lengths").none(), nb::arg("threads"), nb::arg("method"));

  // x: address, rows, columns and stride of a matrix of f32 in device memory. The answers are [k]
  // where `x` is a one-dimensional array.
  m.def(
      "select_on_device",
      [](const std::tuple<std::uintptr_t, std::int64_t, std::int64_t, std::int64_t>& x, int number,
         std::int64_t k, bool largest, bool sorted, const Ids& lengths, bool one_row) {
        const auto& [address, rows, cols, stride] = x;
        const DeviceRows from = {reinterpret_cast<const float*>(address), rows, cols, stride,
                                 nullptr};
        const DeviceSelectOptions options{largest ? Extreme::largest : Extreme::smallest, sorted};
        const std::span<const std::int64_t> counts = lengths_of(lengths, rows);
        python::DeviceSelection found;
        {
          const nb::gil_scoped_release released;
          found = python::select_on_device(from, counts, k, options, number);
        }
        std::vector<std::size_t> shape = {static_cast<std::size_t>(k)};
        if (!one_row) shape.insert(shape.begin(), static_cast<std::size_t>(rows));
        return nb::make_tuple(array_of(std::move(found.values), number, shape, nb::dtype<float>()),
                              array_of(std::move(found.places), number, shape, nb::dtype<Id>()));
      },
      nb::arg("x"), nb::arg("number"), nb::arg("k"), nb::arg("largest"), nb::arg("sorted"),
      nb::arg("lengths").none(), nb::arg("one_row"));
}

void bind_clustering(nb::module_& m) {
  // Returns (centroids, steps); each step is (restart, iteration, objective, moved, empty,
  // seconds).
  m.def(
      "k_means",
      [](const Array& rows, const std::string& type, std::int64_t count, const std::string& metric,
         std::int64_t iterations, std::uint64_t seed, const std::string& seeding,
         std::int64_t restarts, double tolerance, std::int64_t rows_per_centroid,
         std::int64_t levels, std::int64_t threads, const std::optional<Array>& initial,
         bool frozen, const std::optional<FloatList>& weights) {
        const AnyMatrixView view = view_of(rows, type);
        KMeansOptions options{.metric = parse_metric(metric),
                              .iterations = narrow(iterations),
                              .seed = seed,
                              .seeding = parse_seeding(seeding),
                              .restarts = narrow(restarts),
                              .frozen = frozen,
                              .rows_per_centroid = rows_per_centroid,
                              .tolerance = tolerance,
                              .levels = narrow(levels),
                              .threads = narrow(threads)};
        if (initial) options.initial = view_of(*initial, "f32").as<float>();
        if (weights) options.weights = {weights->data(), weights->size()};
        KMeans found;
        without_interpreter([&](Progress progress) {
          options.progress = std::move(progress);
          found = k_means(view, count, options);
        });
        nb::list steps;
        for (const KMeansStep& step : found.steps)
          steps.append(nb::make_tuple(step.restart, step.iteration, step.objective, step.moved,
                                      step.empty, step.seconds));
        return nb::make_tuple(array_of(std::move(found.centroids)), steps);
      },
      nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("count"), nb::arg("metric"),
      nb::arg("iterations"), nb::arg("seed"), nb::arg("seeding"), nb::arg("restarts"),
      nb::arg("tolerance"), nb::arg("rows_per_centroid"), nb::arg("levels"), nb::arg("threads"),
      nb::arg("initial").none(), nb::arg("frozen"), nb::arg("weights").none());
  m.def(
      "nearest_centroids",
      [](const Array& centroids, const Array& rows, const std::string& type,
         const std::string& metric, std::int64_t threads) {
        const MatrixView<float> from = view_of(centroids, "f32").as<float>();
        const AnyMatrixView view = view_of(rows, type);
        const Metric by = parse_metric(metric);
        Assignment found;
        without_interpreter([&](Progress progress) {
          found = nearest_centroids(from, view, by, narrow(threads), progress);
        });
        return nb::make_tuple(array_of(std::move(found.distances)), array_of(std::move(found.ids)));
      },
      nb::arg("centroids").noconvert(), nb::arg("rows").noconvert(), nb::arg("type"),
      nb::arg("metric"), nb::arg("threads"));
}

void bind_quantizers(nb::module_& m) {
  using Codes = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
  const auto codes_of = [](const Codes& array) {
    return MatrixView<std::uint8_t>(array.data(), static_cast<std::int64_t>(array.shape(0)),
                                    static_cast<std::int64_t>(array.shape(1)));
  };
  nb::class_<ProductQuantizer>(m, "ProductQuantizer")
      .def_static(
          "train",
          [](const Array& rows, const std::string& type, std::int64_t sub_quantizers,
             std::int64_t bits, std::int64_t iterations, std::uint64_t seed, std::int64_t most_rows,
             std::int64_t threads) {
            const AnyMatrixView view = view_of(rows, type);
            ProductQuantizerOptions options{.iterations = narrow(iterations), .seed = seed};
            options.most_rows = most_rows, options.threads = narrow(threads);
            std::optional<ProductQuantizer> out;
            without_interpreter([&](Progress progress) {
              options.progress = std::move(progress);
              out = ProductQuantizer::train(view, sub_quantizers, narrow(bits), options);
            });
            return *out;
          },
          nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("sub_quantizers"), nb::arg("bits"),
          nb::arg("iterations"), nb::arg("seed"), nb::arg("most_rows"), nb::arg("threads"))
      .def_prop_ro("dim", &ProductQuantizer::dim)
      .def_prop_ro("code_size", &ProductQuantizer::code_size)
      // [sub_quantizers * 2^bits x width].
      .def_prop_ro("centroids",
                   [](const ProductQuantizer& pq) {
                     const MatrixView<float> all = pq.all_centroids();
                     Matrix<float> copy(all.rows(), all.cols());
                     std::copy_n(all.data(), all.rows() * all.cols(), copy.data());
                     return array_of(std::move(copy));
                   })
      .def(
          "encode",
          [](const ProductQuantizer& pq, const Array& rows, const std::string& type,
             std::int64_t threads) {
            const AnyMatrixView view = view_of(rows, type);
            Matrix<std::uint8_t> out;
            without_interpreter(
                [&](Progress progress) { out = pq.encode(view, narrow(threads), progress); });
            return array_of(std::move(out));
          },
          nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("threads"))
      .def(
          "decode",
          [codes_of](const ProductQuantizer& pq, const Codes& codes, std::int64_t threads) {
            Matrix<float> out;
            without_interpreter(
                [&](const Progress&) { out = pq.decode(codes_of(codes), narrow(threads)); });
            return array_of(std::move(out));
          },
          nb::arg("codes").noconvert(), nb::arg("threads"))
      .def(
          "distances",
          [codes_of](const ProductQuantizer& pq, const Array& queries, const std::string& type,
                     const Codes& codes, const std::string& metric, std::int64_t threads) {
            const AnyMatrixView view = view_of(queries, type);
            const Metric by = parse_metric(metric);
            Matrix<float> out;
            without_interpreter([&](const Progress&) {
              out = pq.distances(view, codes_of(codes), by, narrow(threads));
            });
            return array_of(std::move(out));
          },
          nb::arg("queries").noconvert(), nb::arg("type"), nb::arg("codes").noconvert(),
          nb::arg("metric"), nb::arg("threads"));
}

// Where an array lies, and copies from there and to it.
void bind_devices(nb::module_& m) {
  // What a DLPack capsule says of its array: (owner, address, (device type, number), (type code,
  // bits, lanes), shape, strides in elements). The memory lives as long as the owner.
  m.def(
      "read_dlpack",
      [](const nb::ndarray<nb::ro>& array) {
        nb::list shape, strides;
        for (std::size_t i = 0; i < array.ndim(); ++i) {
          shape.append(array.shape(i));
          strides.append(array.stride(i));
        }
        const nb::dlpack::dtype type = array.dtype();
        return nb::make_tuple(nb::cast(array, nb::rv_policy::reference),
                              reinterpret_cast<std::uintptr_t>(array.data()),
                              nb::make_tuple(array.device_type(), array.device_id()),
                              nb::make_tuple(type.code, type.bits, type.lanes), nb::tuple(shape),
                              nb::tuple(strides));
      },
      nb::arg("capsule").noconvert());

  m.def(
      "device_at",
      [](std::uintptr_t address) {
        return python::device_at(reinterpret_cast<const void*>(address));
      },
      nb::arg("address"));
  m.def("wait_for_stream", &python::wait_for_stream, nb::arg("number"), nb::arg("stream"),
        nb::call_guard<nb::gil_scoped_release>());

  // The rows of `out` are bytes; those of the device are `pitch` bytes apart.
  m.def(
      "copy_from_device",
      [](int number, std::uintptr_t address, std::int64_t pitch,
         const nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& out) {
        const auto rows = static_cast<std::int64_t>(out.shape(0));
        const auto width = static_cast<std::int64_t>(out.shape(1));
        const nb::gil_scoped_release released;
        python::copy_from_device(number, reinterpret_cast<const void*>(address), rows, width, pitch,
                                 out.data());
      },
      nb::arg("number"), nb::arg("address"), nb::arg("pitch"), nb::arg("out").noconvert());
  m.def(
      "copy_to_device",
      [](int number, const nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>& array) {
        std::vector<std::size_t> shape;
        for (std::size_t i = 0; i < array.ndim(); ++i) shape.push_back(array.shape(i));
        python::DeviceMemory there;
        {
          const nb::gil_scoped_release released;
          there =
              python::copy_to_device(number, array.data(), static_cast<std::int64_t>(array.size()),
                                     static_cast<std::int64_t>(array.itemsize()));
        }
        return array_of(std::move(there), number, shape, array.dtype());
      },
      nb::arg("number"), nb::arg("array").noconvert());
}

// The searches of arrays on a device.
void bind_device_searches(nb::module_& m) {
  m.def(
      "knn_on_device",
      [](const DeviceTuple& queries, const DeviceTuple& base, int number, std::int64_t k,
         const std::string& metric, std::int64_t threads, std::int64_t memory,
         const std::string& first_pass, const std::string& choices,
         const MethodTuple& method_options, const std::string& device, const Ids& ids,
         const Bits& bits, Report report) {
        const cuda::MatrixView q = matrix_of(queries), b = matrix_of(base);
        KnnOptions options{.metric = parse_metric(metric),
                           .threads = narrow(threads),
                           .memory = memory,
                           .first_pass = parse_first_pass(first_pass),
                           .filter = filter_of(ids, bits, b.rows),
                           .tuning = parse_tuning(choices),
                           .method = method_options_of(method_options),
                           .device = device};
        python::DeviceNeighbors near = found_by(report, [&](Progress progress, KnnReport* filled) {
          options.progress = std::move(progress);
          return python::knn_on_device(q, b, k, number, options, filled);
        });
        return result_of(std::move(near), number, q.rows, k);
      },
      nb::arg("queries"), nb::arg("base"), nb::arg("number"), nb::arg("k"), nb::arg("metric"),
      nb::arg("threads"), nb::arg("memory"), nb::arg("first_pass"), nb::arg("choices"),
      nb::arg("method_options"), nb::arg("device"), nb::arg("filter_ids").none(),
      nb::arg("filter_bits").none(), nb::arg("report").none());

  m.def(
      "self_join_on_device",
      [](const DeviceTuple& base, int number, std::int64_t k, const std::string& metric,
         std::int64_t threads, std::int64_t memory, const std::string& first_pass,
         const std::string& choices, const std::string& device, const Ids& ids, const Bits& bits,
         Report report) {
        const cuda::MatrixView b = matrix_of(base);
        KnnOptions options{.metric = parse_metric(metric),
                           .threads = narrow(threads),
                           .memory = memory,
                           .first_pass = parse_first_pass(first_pass),
                           .filter = filter_of(ids, bits, b.rows),
                           .tuning = parse_tuning(choices),
                           .device = device};
        python::DeviceNeighbors near = found_by(report, [&](Progress progress, KnnReport* filled) {
          options.progress = std::move(progress);
          return python::self_join_on_device(b, k, number, options, filled);
        });
        return result_of(std::move(near), number, b.rows, k);
      },
      nb::arg("base"), nb::arg("number"), nb::arg("k"), nb::arg("metric"), nb::arg("threads"),
      nb::arg("memory"), nb::arg("first_pass"), nb::arg("choices"), nb::arg("device"),
      nb::arg("filter_ids").none(), nb::arg("filter_bits").none(), nb::arg("report").none());

  m.def(
      "range_search_on_device",
      [](const DeviceTuple& queries, const DeviceTuple& base, int number, double radius,
         const std::string& metric, std::int64_t threads, std::int64_t memory,
         const std::string& first_pass, const std::string& device, const Ids& ids, const Bits& bits,
         Report report) {
        const cuda::MatrixView q = matrix_of(queries), b = matrix_of(base);
        KnnOptions options{.metric = parse_metric(metric),
                           .threads = narrow(threads),
                           .memory = memory,
                           .first_pass = parse_first_pass(first_pass),
                           .filter = filter_of(ids, bits, b.rows),
                           .device = device};
        return run(report, [&](Progress progress, KnnReport* filled) {
          options.progress = std::move(progress);
          return python::range_search_on_device(q, b, radius, number, options, filled);
        });
      },
      nb::arg("queries"), nb::arg("base"), nb::arg("number"), nb::arg("radius"), nb::arg("metric"),
      nb::arg("threads"), nb::arg("memory"), nb::arg("first_pass"), nb::arg("device"),
      nb::arg("filter_ids").none(), nb::arg("filter_bits").none(), nb::arg("report").none());
}

void bind_choose_index(nb::module_& m) {
  m.def(
      "choose_index",
      [](std::int64_t rows, std::int64_t dim, const std::string& metric, const std::string& type,
         std::int64_t memory, double recall, std::int64_t batch) {
        const IndexChoice choice = choose_index(rows, dim,
                                                {.metric = parse_metric(metric),
                                                 .type = parse_element_type(type),
                                                 .memory = memory,
                                                 .recall = recall,
                                                 .batch = batch});
        return std::tuple(choice.factory, choice.reason, choice.bytes);
      },
      nb::arg("rows"), nb::arg("dim"), nb::arg("metric"), nb::arg("type"), nb::arg("memory"),
      nb::arg("recall"), nb::arg("batch"));
}

// The rows of an index: how they come in, are changed and read, and its file.
void bind_index_contents(nb::class_<Index>& index) {
  index
      .def(
          "__init__",
          [](Index* self, const std::string& factory, std::int64_t dim, const std::string& metric) {
            new (self) Index(make_index(factory, dim, parse_metric(metric)));
          },
          nb::arg("factory"), nb::arg("dim"), nb::arg("metric"))
      .def(
          "train",
          [](Index& self, const Array& vectors, const std::string& type, int iterations,
             std::int64_t rows, std::uint64_t seed, std::int64_t threads) {
            const AnyMatrixView view = view_of(vectors, type);
            without_interpreter([&](Progress progress) {
              self.train(view, {.iterations = iterations,
                                .rows = rows,
                                .seed = seed,
                                .threads = narrow(threads),
                                .progress = std::move(progress)});
            });
          },
          nb::arg("vectors").noconvert(), nb::arg("type"), nb::arg("iterations"), nb::arg("rows"),
          nb::arg("seed"), nb::arg("threads"))
      .def(
          "add",
          [](Index& self, const Array& vectors, const std::string& type, const Ids& ids,
             std::int64_t threads) {
            const AnyMatrixView view = view_of(vectors, type);
            without_interpreter([&](Progress progress) {
              const ChangeOptions options{.threads = narrow(threads),
                                          .progress = std::move(progress)};
              ids ? self.add(view, span_of(*ids), options) : self.add(view, options);
            });
          },
          nb::arg("vectors").noconvert(), nb::arg("type"), nb::arg("ids").none(),
          nb::arg("threads"))
      .def(
          "remove",
          [](Index& self, const IdArray& ids) {
            without_interpreter([&](Progress progress) {
              self.remove(span_of(ids), {.progress = std::move(progress)});
            });
          },
          nb::arg("ids"))
      .def(
          "replace",
          [](Index& self, const IdArray& ids, const Array& vectors, const std::string& type) {
            const AnyMatrixView view = view_of(vectors, type);
            without_interpreter([&](Progress progress) {
              self.replace(span_of(ids), view, {.progress = std::move(progress)});
            });
          },
          nb::arg("ids"), nb::arg("vectors").noconvert(), nb::arg("type"))
      .def(
          "merge",
          [](Index& self, const Index& other, bool keep_ids) {
            const nb::gil_scoped_release released;
            self.merge(other, keep_ids ? MergeIds::keep : MergeIds::shifted);
          },
          nb::arg("other"), nb::arg("keep_ids"))
      .def("compact",
           [](Index& self) {
             without_interpreter(
                 [&](Progress progress) { self.compact({.progress = std::move(progress)}); });
           })
      .def(
          "optimize",
          [](Index& self, int threads) {
            std::int64_t rows = 0;
            without_interpreter([&](Progress progress) {
              rows = self.optimize({.threads = threads, .progress = std::move(progress)});
            });
            return rows;
          },
          nb::arg("threads"))
      .def(
          "tune",
          [](Index& self, std::int64_t k, const std::optional<Array>& queries,
             const std::string& type, const std::optional<Array>& base,
             const std::string& base_type, const std::optional<IdArray>& ids,
             std::int64_t threads) {
            AnyMatrixView view, base_view;
            if (queries) view = view_of(*queries, type);
            if (base) base_view = view_of(*base, base_type);
            std::vector<OperatingPoint> points;
            without_interpreter([&](Progress progress) {
              const ChangeOptions options{.threads = narrow(threads),
                                          .progress = std::move(progress)};
              points = base ? self.tune(k, view, base_view,
                                        ids ? span_of(*ids) : std::span<const Id>(), options)
                            : self.tune(k, view, options);
            });
            nb::list out;
            for (const OperatingPoint& point : points)
              out.append(nb::make_tuple(point.promised_recall, point.expected_recall, point.probes,
                                        point.rows));
            return out;
          },
          nb::arg("k"), nb::arg("queries").noconvert().none(), nb::arg("type"),
          nb::arg("base").noconvert().none(), nb::arg("base_type"), nb::arg("ids").none(),
          nb::arg("threads"))
      .def("reserve", &Index::reserve, nb::arg("rows"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "reconstruct",
          [](const Index& self, const IdArray& ids) {  // rows as bytes, and their type
            AnyMatrix rows;
            {
              const nb::gil_scoped_release released;
              rows = self.reconstruct(span_of(ids));
            }
            std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows.view().bytes()));
            if (!bytes.empty()) std::memcpy(bytes.data(), rows.row(0), bytes.size());
            return nb::make_tuple(array_of(std::move(bytes)), std::string(name_of(rows.type())));
          },
          nb::arg("ids"))
      .def("ids",
           [](const Index& self) {
             std::vector<Id> ids;
             {
               const nb::gil_scoped_release released;
               ids = self.ids();
             }
             return array_of(std::move(ids));
           })
      .def("contains", &Index::contains, nb::arg("id"))
      .def(
          "save",
          [](const Index& self, const std::string& path) {
            without_interpreter([&](Progress progress) { self.save(path, progress); });
          },
          nb::arg("path"))
      .def(
          "write_faiss",
          [](const Index& self, const std::string& path) {
            without_interpreter([&](Progress progress) { write_faiss(self, path, progress); });
          },
          nb::arg("path"))
      .def_static(
          "load",
          [](const std::string& path) {
            const nb::gil_scoped_release released;
            return Index::load(path);
          },
          nb::arg("path"));
}

void bind_index_searches(nb::class_<Index>& index) {
  index
      .def(
          "search",
          [](const Index& self, const Array& queries, const std::string& type, std::int64_t k,
             std::int64_t threads, std::int64_t memory, const std::string& first_pass,
             const std::string& choices, const MethodTuple& method_options,
             const std::string& device, const Ids& ids, const Bits& bits, std::int64_t bit_count,
             Report report) {
            const AnyMatrixView q = view_of(queries, type);
            SearchOptions options{.threads = narrow(threads),
                                  .memory = memory,
                                  .first_pass = parse_first_pass(first_pass),
                                  .filter = id_filter_of(ids, bits, bit_count),
                                  .tuning = parse_tuning(choices),
                                  .method = method_options_of(method_options),
                                  .device = device};
            return run(report, [&](Progress progress, KnnReport* filled) {
              options.progress = std::move(progress);
              return self.search(q, k, options, filled);
            });
          },
          nb::arg("queries").noconvert(), nb::arg("queries_type"), nb::arg("k"), nb::arg("threads"),
          nb::arg("memory"), nb::arg("first_pass"), nb::arg("choices"), nb::arg("method_options"),
          nb::arg("device"), nb::arg("filter_ids").none(), nb::arg("filter_bits").none(),
          nb::arg("bit_count"), nb::arg("report").none())
      .def(
          "range_search",
          [](const Index& self, const Array& queries, const std::string& type, double radius,
             std::int64_t threads, std::int64_t memory, const std::string& first_pass,
             const MethodTuple& method_options, const std::string& device, const Ids& ids,
             const Bits& bits, std::int64_t bit_count, Report report) {
            const AnyMatrixView q = view_of(queries, type);
            SearchOptions options{.threads = narrow(threads),
                                  .memory = memory,
                                  .first_pass = parse_first_pass(first_pass),
                                  .filter = id_filter_of(ids, bits, bit_count),
                                  .method = method_options_of(method_options),
                                  .device = device};
            return run(report, [&](Progress progress, KnnReport* filled) {
              options.progress = std::move(progress);
              return self.range_search(q, radius, options, filled);
            });
          },
          nb::arg("queries").noconvert(), nb::arg("queries_type"), nb::arg("radius"),
          nb::arg("threads"), nb::arg("memory"), nb::arg("first_pass"), nb::arg("method_options"),
          nb::arg("device"), nb::arg("filter_ids").none(), nb::arg("filter_bits").none(),
          nb::arg("bit_count"), nb::arg("report").none());
}

void bind_index(nb::module_& m) {
  nb::class_<Index> index(m, "Index");
  index.def_prop_ro("dim", &Index::dim)
      .def_prop_ro("factory", &Index::description)
      .def_prop_ro("is_trained", &Index::is_trained)
      .def_prop_ro("lists", &Index::lists)
      .def("centroids", [](const Index& self) { return array_of(self.centroids()); })
      .def_prop_ro("next_id", &Index::next_id)
      .def_prop_ro("version", &Index::version)
      .def("memory_bytes", &Index::memory_bytes, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("metric", [](const Index& self) { return std::string(name_of(self.metric())); })
      .def_prop_ro("size",
                   [](const Index& self) {
                     const nb::gil_scoped_release released;  // an add may be running
                     return self.size();
                   })
      .def_prop_ro("element_type", [](const Index& self) {
        const nb::gil_scoped_release released;
        return std::string(name_of(self.element_type()));
      });
  bind_index_contents(index);
  bind_index_searches(index);
}

}  // namespace
}  // namespace knear

NB_MODULE(_core, m) {
  using namespace knear;
  m.attr("version") = KNEAR_VERSION;
  m.attr("has_cuda") = python::has_cuda();
  nb::register_exception_translator(translate);
  bind_searches(m);
  bind_selection(m);
  bind_clustering(m);
  bind_quantizers(m);
  bind_choose_index(m);
  bind_index(m);
  bind_devices(m);
  bind_device_searches(m);
}
