// python/bindings/module.cpp -- the extension knear._core: the library for NumPy arrays.
//
// A thin layer: python/knear/_arrays.py or the library checks arguments. Here arrays become views
// of the same memory, results become arrays that own theirs, exceptions get the Python class of
// their name, and the interpreter lock is released while the library works. Searches with usual
// arguments have a way of their own (usual_search.cpp).
#include <Python.h>
#include <nanobind/nanobind.h>

#include <exception>
#include <new>

#include "knear/core/error.hpp"
#include "knear/core/version.hpp"
#include "python/bindings/bind.hpp"
#include "python/bindings/device_arrays.hpp"

namespace nb = nanobind;

namespace knear::python {
namespace {

// Raises the exception of this name in knear/errors.py, with the name of the argument that it is
// about.
void raise(const char* name, const Error& error) {
  const nb::object type = nb::module_::import_("knear.errors").attr(name);
  // A message may name a path that is no text.
  const auto text = nb::steal(PyUnicode_DecodeFSDefault(error.what()));
  if (!text.is_valid()) return;
  const nb::object raised = type(text);
  if (const std::string argument(error.argument()); !argument.empty())
    raised.attr("argument") = argument;
  PyErr_SetObject(type.ptr(), raised.ptr());
}

// The IoError that is also FileNotFoundError or the like, with errno and filename.
void raise(const IoError& error) {
  const auto text = nb::steal(PyUnicode_DecodeFSDefault(error.what()));
  const auto path = nb::steal(PyUnicode_DecodeFSDefault(error.cause().path.c_str()));
  if (!text.is_valid() || !path.is_valid()) return;
  const nb::object made =
      nb::module_::import_("knear.errors").attr("_io_error")(text, error.cause().number, path);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const InvalidArgument& e) {
    raise("InvalidArgument", e);
  } catch (const ShapeMismatch& e) {
    raise("ShapeMismatch", e);
  } catch (const CorruptFile& e) {
    raise("CorruptFile", e);
  } catch (const IoError& e) {
    raise(e);
  } catch (const MemoryBudgetError& e) {
    raise("MemoryBudgetError", e);
  } catch (const DeviceUnavailable& e) {
    raise("DeviceUnavailable", e);
  } catch (const Cancelled& e) {
    raise("Cancelled", e);
  } catch (const Error& e) {
    raise("Error", e);
  } catch (const std::bad_alloc&) {  // of what the bindings do outside the library's calls
    raise("MemoryBudgetError",
          MemoryBudgetError("the system has no memory left that this call needs"));
  }
}

}  // namespace
}  // namespace knear::python

NB_MODULE(_core, m) {
  using namespace knear::python;
  m.attr("version") = KNEAR_VERSION;
  m.attr("has_cuda") = has_cuda();
  nb::register_exception_translator(translate);
  bind_reports(m);
  bind_search_settings(m);
  bind_searches(m);
  bind_selection(m);
  bind_clustering(m);
  bind_quantizers(m);
  bind_choose_index(m);
  bind_index(m);
  bind_usual_search(m);
  bind_parts(m);
  bind_files(m);
  bind_graphs(m);
  bind_machine(m);
  bind_devices(m);
  bind_device_searches(m);
}
