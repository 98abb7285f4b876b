// python/bindings/bind.hpp -- what each file here adds to the module knear._core.
#pragma once
#include <nanobind/nanobind.h>

namespace knear::python {

void bind_reports(nanobind::module_& m);
void bind_search_settings(nanobind::module_& m);
void bind_searches(nanobind::module_& m);
void bind_selection(nanobind::module_& m);
void bind_clustering(nanobind::module_& m);
void bind_quantizers(nanobind::module_& m);
void bind_choose_index(nanobind::module_& m);
void bind_index(nanobind::module_& m);
void bind_usual_search(nanobind::module_& m);
void bind_parts(nanobind::module_& m);
void bind_graphs(nanobind::module_& m);
void bind_files(nanobind::module_& m);
void bind_machine(nanobind::module_& m);
void bind_devices(nanobind::module_& m);
void bind_device_searches(nanobind::module_& m);

}  // namespace knear::python
