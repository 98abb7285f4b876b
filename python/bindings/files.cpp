// python/bindings/files.cpp -- vectors and ids in files, and what this machine can do.
#include "knear/io/vectors.hpp"

#include <cmath>
#include <memory>

#include "knear/cost/peak_cache.hpp"
#include "knear/cost/peaks.hpp"
#include "knear/index/codecs/faiss_types.hpp"
#include "python/bindings/arrays.hpp"
#include "python/bindings/bind.hpp"
#include "python/bindings/call.hpp"

namespace knear::python {

void bind_files(nb::module_& m) {
  // (array, element type): a view of the mapped file, or of its content in memory; bfloat16 as its
  // bits.
  m.def(
      "read_vectors",
      [](const nb::bytes& name, const std::string& type, std::int64_t begin, std::int64_t end,
         const std::string& dataset, nb::object progress_to) {
        const std::string path = path_of(name);
        io::OpenOptions options;
        if (!type.empty()) options.type = parse_element_type(type);
        if (begin != 0 || end >= 0) {
          options.rows = io::RowRange{begin, {}};
          if (end >= 0) options.rows->end = end;
        }
        options.dataset = dataset;
        std::unique_ptr<io::VectorFile> file;
        without_interpreter(progress_to, [&](Progress progress) {
          options.progress = std::move(progress);
          file = std::make_unique<io::VectorFile>(io::VectorFile::open(path, options));
        });
        const AnyMatrixView view = file->view();
        const std::size_t shape[] = {static_cast<std::size_t>(view.rows()),
                                     static_cast<std::size_t>(view.cols())};
        const std::int64_t strides[] = {view.stride(), 1};
        nb::dlpack::dtype of = nb::dtype<float>();
        switch (view.type()) {
          case ElementType::f32:
            break;
          case ElementType::f64:
            of = nb::dtype<double>();
            break;
          case ElementType::u8:
            of = nb::dtype<std::uint8_t>();
            break;
          case ElementType::i8:
            of = nb::dtype<std::int8_t>();
            break;
          case ElementType::f16:
          case ElementType::bf16:
            of = nb::dtype<std::uint16_t>();
            break;
        }
        nb::capsule owner(file.get(),
                          [](void* p) noexcept { delete static_cast<io::VectorFile*>(p); });
        file.release();
        return nb::make_tuple(
            nb::cast(nb::ndarray<nb::numpy, nb::ro>(view.data(), 2, shape, owner, strides, of)),
            std::string(name_of(view.type())));
      },
      nb::arg("path"), nb::arg("type"), nb::arg("begin"), nb::arg("end"), nb::arg("dataset"),
      nb::arg("progress").none());
  m.def(
      "read_ids",
      [](const nb::bytes& name, nb::object progress_to) {
        const std::string path = path_of(name);
        Matrix<Id> ids;
        without_interpreter(progress_to,
                            [&](Progress progress) { ids = io::read_ids(path, progress); });
        return array_of(std::move(ids));
      },
      nb::arg("path"), nb::arg("progress").none());
  m.def(
      "write_vectors",
      [](const nb::bytes& name, const Array& vectors, const std::string& type,
         nb::object progress_to) {
        const std::string path = path_of(name);
        const AnyMatrixView view = view_of(vectors, type);
        without_interpreter(progress_to,
                            [&](Progress progress) { io::write_vectors(path, view, progress); });
      },
      nb::arg("path"), nb::arg("vectors").noconvert(), nb::arg("type"), nb::arg("progress").none());
  m.def(
      "write_ids",
      [](const nb::bytes& name,
         const nb::ndarray<const Id, nb::ndim<2>, nb::c_contig, nb::device::cpu>& ids,
         nb::object progress_to) {
        const std::string path = path_of(name);
        const MatrixView<Id> view(ids.data(), static_cast<std::int64_t>(ids.shape(0)),
                                  static_cast<std::int64_t>(ids.shape(1)));
        without_interpreter(progress_to,
                            [&](Progress progress) { io::write_ids(path, view, progress); });
      },
      nb::arg("path"), nb::arg("ids").noconvert(), nb::arg("progress").none());
  m.def(
      "name_of_faiss",
      [](const std::string& letters) {
        const std::string_view index = detail::name_of_faiss_index(letters);
        return std::string(index.empty() ? detail::name_of_faiss_transform(letters) : index);
      },
      nb::arg("letters"));
}

void bind_machine(nb::module_& m) {
  m.def(
      "roofline",
      [](std::int64_t threads, double seconds) {
        MachinePeaks peaks;
        without_interpreter(
            [&](const Progress&) { peaks = measure_peaks(thread_count(threads), seconds); });
        nb::dict d;
        const auto set = [&](const char* name, double value) {
          d[name] = std::isfinite(value) ? nb::cast(value) : nb::none();
        };
        set("fp32_flops", peaks.fp32_flops);
        set("bf16_flops", peaks.bf16_flops);
        set("int16_ops", peaks.int16_ops);
        set("int8_ops", peaks.int8_ops);
        set("memory_bytes_per_second", peaks.memory_bytes_per_second);
        set("cop_per_second", peaks.cop_per_second);
        set("cycles_per_second", peaks.cycles_per_second);
        d["threads"] = peaks.threads;
        d["isa"] = std::string(name_of(peaks.isa));
        d["processor"] = processor_name();
        return d;
      },
      nb::arg("threads"), nb::arg("seconds"));
}

}  // namespace knear::python
