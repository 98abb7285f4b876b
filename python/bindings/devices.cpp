// python/bindings/devices.cpp -- arrays in the memory of a GPU: where they lie, copies, and
// searches and selection of them.
#include "python/bindings/arrays.hpp"
#include "python/bindings/bind.hpp"
#include "python/bindings/call.hpp"
#include "python/bindings/device_arrays.hpp"

namespace knear::python {

namespace {

// Address, element type, rows and columns of a matrix in device memory.
using DeviceTuple = std::tuple<std::uintptr_t, std::string, std::int64_t, std::int64_t>;

cuda::MatrixView matrix_of(const DeviceTuple& from) {
  const auto& [address, type, rows, cols] = from;
  return {reinterpret_cast<const void*>(address), parse_element_type(type), rows, cols};
}

// (address, object with __dlpack__) of an array that keeps its memory.
nb::object array_of(DeviceMemory memory, int device, const std::vector<std::size_t>& shape,
                    nb::dlpack::dtype type) {
  auto owned = std::make_unique<DeviceMemory>(std::move(memory));
  void* data = owned->get();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<DeviceMemory*>(p); });
  owned.release();
  return nb::make_tuple(reinterpret_cast<std::uintptr_t>(data),
                        nb::cast(nb::ndarray<nb::array_api, nb::device::cuda>(
                            data, shape.size(), shape.data(), owner, nullptr, type,
                            nb::device::cuda::value, device)));
}

// Distances and ids [rows x k].
nb::object result_of(DeviceNeighbors near, SearchReport report, int device, std::int64_t rows,
                     std::int64_t k) {
  const std::vector<std::size_t> shape = {static_cast<std::size_t>(rows),
                                          static_cast<std::size_t>(k)};
  return nb::make_tuple(array_of(std::move(near.distances), device, shape, nb::dtype<float>()),
                        array_of(std::move(near.ids), device, shape, nb::dtype<Id>()),
                        std::move(report));
}

}  // namespace

// Where an array lies, and copies from there and to it.
void bind_devices(nb::module_& m) {
  m.def(
      "check_device", [](const std::string& device) { check_device(device); }, nb::arg("device"));

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
      [](std::uintptr_t address) { return device_at(reinterpret_cast<const void*>(address)); },
      nb::arg("address"));
  m.def("wait_for_stream", &wait_for_stream, nb::arg("number"), nb::arg("stream"),
        nb::call_guard<nb::gil_scoped_release>());

  // The rows of `out` are bytes; those of the device are `pitch` bytes apart.
  m.def(
      "copy_from_device",
      [](int number, std::uintptr_t address, std::int64_t pitch,
         const nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& out) {
        const auto rows = static_cast<std::int64_t>(out.shape(0));
        const auto width = static_cast<std::int64_t>(out.shape(1));
        const nb::gil_scoped_release released;
        copy_from_device(number, reinterpret_cast<const void*>(address), rows, width, pitch,
                         out.data());
      },
      nb::arg("number"), nb::arg("address"), nb::arg("pitch"), nb::arg("out").noconvert());
  m.def(
      "copy_to_device",
      [](int number, const nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>& array) {
        std::vector<std::size_t> shape;
        for (std::size_t i = 0; i < array.ndim(); ++i) shape.push_back(array.shape(i));
        DeviceMemory there;
        {
          const nb::gil_scoped_release released;
          there = copy_to_device(number, array.data(), static_cast<std::int64_t>(array.size()),
                                 static_cast<std::int64_t>(array.itemsize()));
        }
        return array_of(std::move(there), number, shape, array.dtype());
      },
      nb::arg("number"), nb::arg("array").noconvert());
}

// The searches of arrays on a device.
void bind_device_searches(nb::module_& m) {
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
        DeviceSelection found;
        {
          const nb::gil_scoped_release released;
          found = select_on_device(from, counts, k, options, number);
        }
        std::vector<std::size_t> shape = {static_cast<std::size_t>(k)};
        if (!one_row) shape.insert(shape.begin(), rows);
        return nb::make_tuple(array_of(std::move(found.values), number, shape, nb::dtype<float>()),
                              array_of(std::move(found.places), number, shape, nb::dtype<Id>()));
      },
      nb::arg("x"), nb::arg("number"), nb::arg("k"), nb::arg("largest"), nb::arg("sorted"),
      nb::arg("lengths").none(), nb::arg("one_row"));

  m.def(
      "knn_on_device",
      [](const DeviceTuple& queries, const DeviceTuple& base, int number, std::int64_t k,
         const std::string& metric, const SearchSettings& settings, const Ids& ids,
         const Bits& bits, nb::object progress_to) {
        const cuda::MatrixView q = matrix_of(queries), b = matrix_of(base);
        auto options = settings.options<KnnOptions>(filter_of(ids, bits, b.rows));
        options.metric = parse_metric(metric);
        auto [near, told] = found_by(progress_to, [&](Progress progress, KnnReport* filled) {
          options.progress = std::move(progress);
          return knn_on_device(q, b, k, number, options, filled);
        });
        return result_of(std::move(near), std::move(told), number, q.rows, k);
      },
      nb::arg("queries"), nb::arg("base"), nb::arg("number"), nb::arg("k"), nb::arg("metric"),
      nb::arg("settings"), nb::arg("filter_ids").none(), nb::arg("filter_bits").none(),
      nb::arg("progress").none());

  m.def(
      "search_on_device",
      [](const Index& index, const DeviceTuple& queries, int number, std::int64_t k,
         const SearchSettings& settings, const Ids& ids, const Bits& bits, std::int64_t bit_count,
         nb::object progress_to) {
        const cuda::MatrixView q = matrix_of(queries);
        auto options = settings.options<SearchOptions>(id_filter_of(ids, bits, bit_count));
        auto [near, told] = found_by(progress_to, [&](Progress progress, KnnReport* filled) {
          options.progress = std::move(progress);
          return search_on_device(index, q, k, number, options, filled);
        });
        return result_of(std::move(near), std::move(told), number, q.rows, k);
      },
      nb::arg("index"), nb::arg("queries"), nb::arg("number"), nb::arg("k"), nb::arg("settings"),
      nb::arg("filter_ids").none(), nb::arg("filter_bits").none(), nb::arg("bit_count"),
      nb::arg("progress").none());

  m.def(
      "self_join_on_device",
      [](const DeviceTuple& base, int number, std::int64_t k, const std::string& metric,
         const SearchSettings& settings, const Ids& ids, const Bits& bits, nb::object progress_to) {
        const cuda::MatrixView b = matrix_of(base);
        auto options = settings.options<KnnOptions>(filter_of(ids, bits, b.rows));
        options.metric = parse_metric(metric);
        auto [near, told] = found_by(progress_to, [&](Progress progress, KnnReport* filled) {
          options.progress = std::move(progress);
          return self_join_on_device(b, k, number, options, filled);
        });
        return result_of(std::move(near), std::move(told), number, b.rows, k);
      },
      nb::arg("base"), nb::arg("number"), nb::arg("k"), nb::arg("metric"), nb::arg("settings"),
      nb::arg("filter_ids").none(), nb::arg("filter_bits").none(), nb::arg("progress").none());

  m.def(
      "range_search_on_device",
      [](const DeviceTuple& queries, const DeviceTuple& base, int number, double radius,
         const std::string& metric, const SearchSettings& settings, const Ids& ids,
         const Bits& bits, nb::object progress_to) {
        const cuda::MatrixView q = matrix_of(queries), b = matrix_of(base);
        auto options = settings.options<KnnOptions>(filter_of(ids, bits, b.rows));
        options.metric = parse_metric(metric);
        return run(progress_to, [&](Progress progress, KnnReport* filled) {
          options.progress = std::move(progress);
          return range_search_on_device(q, b, radius, number, options, filled);
        });
      },
      nb::arg("queries"), nb::arg("base"), nb::arg("number"), nb::arg("radius"), nb::arg("metric"),
      nb::arg("settings"), nb::arg("filter_ids").none(), nb::arg("filter_bits").none(),
      nb::arg("progress").none());
}

}  // namespace knear::python
