// python/bindings/usual_search.cpp -- Index.search() of a few rows of float32 with usual arguments,
// in one call: arguments are read, the arrays of the answer made, and the result built here, where
// each step takes tens of nanoseconds.
//
// Whatever is not usual is left to python/knear/_index.py, which checks it and names what is wrong.
#include <cstring>
#include <optional>

#include "knear/core/public_call.hpp"
#include "knear/index/impl/index_body.hpp"
#include "knear/index/index.hpp"
#include "knear/knn/search/few_rows_search.hpp"
#include "python/bindings/arrays.hpp"
#include "python/bindings/bind.hpp"
#include "python/bindings/call.hpp"

namespace knear::python {
namespace {

// Objects of Python that every call needs. knear/_results.py gives them once.
struct PythonObjects {
  PyObject* array = nullptr;  // the type numpy.ndarray
  PyObject* empty = nullptr;  // numpy.empty
  PyObject* float32 = nullptr;
  PyObject* int64 = nullptr;
  PyTypeObject* result = nullptr;  // SearchResult, a tuple with an attribute _told
  PyObject* told = nullptr;        // that name
  newfunc make_tuple = nullptr;    // tuple.__new__
};
PythonObjects objects;

// Memory of an object that has the buffer protocol, while this lives.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() {
    if (held_) PyBuffer_Release(&view);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  bool take(PyObject* object, int flags) {
    held_ = PyObject_GetBuffer(object, &view, flags) == 0;
    return held_;
  }
  Py_buffer view;

 private:
  bool held_ = false;
};

// Numbers from Python, or nothing for other types and for numbers out of range.
std::optional<std::int64_t> integer_of(PyObject* object) {
  if (!PyLong_CheckExact(object)) return {};
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow != 0) return {};
  return number;
}
// The same of a count, for which None stands for 0.
std::optional<std::int64_t> count_of(PyObject* object) {
  if (object == Py_None) return 0;
  const auto number = integer_of(object);
  return number && *number >= 1 ? number : std::nullopt;
}

// Those arguments of Index.search() of which a usual call may give any.
struct UsualArguments {
  PyObject *q, *k, *probes, *recall, *threads, *refine_factor, *ef;

  // Sets k and the options, or returns false where one of them is not usual.
  bool read(std::int64_t& wanted, SearchOptions& options) const {
    const auto number = integer_of(k), thread_number = integer_of(threads);
    const auto probed = count_of(probes), factor = count_of(refine_factor), effort = count_of(ef);
    if (!number || !probed || !factor || !effort || !thread_number) return false;
    if (*thread_number < 0 || *thread_number > 4096) return false;
    wanted = *number, options.threads = static_cast<int>(*thread_number);
    options.method.probes = *probed, options.method.ef = *effort;
    options.method.codes.refine_factor = *factor;
    if (recall == Py_None) return true;
    if (!PyFloat_CheckExact(recall)) return false;
    options.method.recall = PyFloat_AsDouble(recall);
    return true;
  }
};

// Rows and k of an answer so small that it is copied into arrays that NumPy makes.
constexpr std::int64_t most_places = 4096;

// An array [rows x k], and its memory.
struct Answer {
  nb::object array;
  Buffer memory;
  bool make(PyObject* shape, PyObject* type) {
    PyObject* const arguments[] = {shape, type};
    array = nb::steal(PyObject_Vectorcall(objects.empty, arguments, 2, nullptr));
    return array.is_valid() && memory.take(array.ptr(), PyBUF_WRITABLE);
  }
};

// SearchResult((distances, ids)), which knows how it went.
nb::object result_of(const Answer& distances, const Answer& ids, nb::handle told) {
  const nb::object pair = nb::make_tuple(distances.array, ids.array);
  const nb::object arguments = nb::make_tuple(pair);
  nb::object result = nb::steal(objects.make_tuple(objects.result, arguments.ptr(), nullptr));
  if (!result.is_valid() || PyObject_SetAttr(result.ptr(), objects.told, told.ptr()) != 0)
    throw nb::python_error();
  return result;
}

// The result of a usual call, or None for any other.
nb::object search(const Index& index, const UsualArguments& arguments) {
  SearchOptions options;
  std::int64_t k = 0;
  if (!objects.array || reinterpret_cast<PyObject*>(Py_TYPE(arguments.q)) != objects.array ||
      !arguments.read(k, options))
    return nb::none();
  Buffer q;
  if (!q.take(arguments.q, PyBUF_ND | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)) {
    PyErr_Clear();
    return nb::none();
  }
  const Py_buffer& from = q.view;
  if (from.ndim != 2 || std::strcmp(from.format, "f") != 0 ||
      reinterpret_cast<std::uintptr_t>(from.buf) % sizeof(float) != 0)
    return nb::none();
  const std::int64_t rows = from.shape[0];
  if (rows < 1 || k < 1 || k > most_places || rows > most_places || rows * k > most_places)
    return nb::none();
  const AnyMatrixView queries =
      MatrixView<float>(static_cast<const float*>(from.buf), rows, from.shape[1]);
  Answer distances, ids;
  const nb::object shape = nb::make_tuple(rows, k);
  if (!distances.make(shape.ptr(), objects.float32) || !ids.make(shape.ptr(), objects.int64))
    throw nb::python_error();
  auto* const to_distances = static_cast<float*>(distances.memory.view.buf);
  auto* const to_ids = static_cast<Id*>(ids.memory.view.buf);
  std::optional<detail::FewRowsFacts> facts;
  if (rows == 1)  // in less time than it takes to release the interpreter lock
    detail::public_call([&] {
      detail::FewRowsSearch search;
      if (!index.body().nearest_at_once(queries, k, options, search)) return;
      search.write(to_ids, to_distances);
      facts = search.facts;
    });
  if (facts) return result_of(distances, ids, nb::cast(*facts));
  auto [near, report] = found_by(nb::none(), [&](Progress progress, KnnReport* filled) {
    options.progress = std::move(progress);
    return index.search(queries, k, options, filled);
  });
  std::memcpy(to_distances, near.distances.data(), static_cast<std::size_t>(rows * k) * 4);
  std::memcpy(to_ids, near.ids.data(), static_cast<std::size_t>(rows * k) * 8);
  return result_of(distances, ids, nb::cast(std::move(report)));
}

}  // namespace

void bind_usual_search(nb::module_& m) {
  m.def(
      "has_nan",
      [](nb::handle x) {  // contiguous floats, which need not be aligned
        Buffer memory;
        if (!memory.take(x.ptr(), PyBUF_C_CONTIGUOUS)) throw nb::python_error();
        const auto* const bytes = static_cast<const char*>(memory.view.buf);
        int found = 0;
        for (Py_ssize_t at = 0; at + 4 <= memory.view.len; at += 4) {
          float value;
          std::memcpy(&value, bytes + at, 4);
          found |= value != value;
        }
        return found != 0;
      },
      nb::arg("x"));
  m.def(
      "set_result_types",
      [](nb::handle array, nb::handle empty, nb::handle float32, nb::handle int64,
         nb::handle result) {
        for (const nb::handle& each : {array, empty, float32, int64, result}) each.inc_ref();
        objects = {
            .array = array.ptr(),
            .empty = empty.ptr(),
            .float32 = float32.ptr(),
            .int64 = int64.ptr(),
            .result = reinterpret_cast<PyTypeObject*>(result.ptr()),
            .told = PyUnicode_InternFromString("_told"),
            .make_tuple = reinterpret_cast<newfunc>(PyType_GetSlot(&PyTuple_Type, Py_tp_new))};
      },
      nb::arg("array"), nb::arg("empty"), nb::arg("float32"), nb::arg("int64"), nb::arg("result"));
  // Arguments beyond ef are None or False in a usual call.
  m.def(
      "usual_search",
      [](nb::handle index, nb::handle q, nb::handle k, nb::handle probes, nb::handle recall,
         nb::handle threads, nb::handle refine_factor, nb::handle ef, nb::handle widen,
         nb::handle certify, nb::handle filter, nb::handle memory, nb::handle device,
         nb::handle usual_device, nb::handle out, nb::handle progress, nb::handle report) {
        for (const nb::handle& none : {filter, memory, device, usual_device, out, progress, report})
          if (!none.is_none()) return nb::object(nb::none());
        if (widen.ptr() != Py_False || certify.ptr() != Py_False) return nb::object(nb::none());
        if (!nb::isinstance<Index>(index)) return nb::object(nb::none());
        return search(*nb::inst_ptr<Index>(index), {q.ptr(), k.ptr(), probes.ptr(), recall.ptr(),
                                                    threads.ptr(), refine_factor.ptr(), ef.ptr()});
      },
      nb::arg("index"), nb::arg("q").none(), nb::arg("k").none(), nb::arg("probes").none(),
      nb::arg("recall").none(), nb::arg("threads").none(), nb::arg("refine_factor").none(),
      nb::arg("ef").none(), nb::arg("widen").none(), nb::arg("certify").none(),
      nb::arg("filter").none(), nb::arg("memory").none(), nb::arg("device").none(),
      nb::arg("usual_device").none(), nb::arg("out").none(), nb::arg("progress").none(),
      nb::arg("report").none());
}

}  // namespace knear::python
