// python/bindings/older_glibc.cpp -- what a static libgcc wants of glibc 2.35, for systems
// with 2.34.
//
// libgcc of GCC 12 finds the table by which an exception is unwound with _dl_find_object(), which
// is new in glibc 2.35. Self-contained wheels are linked with --wrap=_dl_find_object, so that the
// call comes here and is answered as libgcc did before: by dl_iterate_phdr().
#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

namespace {

struct Wanted {
  std::uintptr_t address;
  dl_find_object* found;
};

// Returns true if the address is in this module, and sets `found` to the place of its table.
int look(dl_phdr_info* module, std::size_t, void* data) {
  auto& [address, found] = *static_cast<Wanted*>(data);
  bool inside = false;
  std::uintptr_t begin = 0, end = 0, table = 0;
  for (int i = 0; i < module->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = module->dlpi_phdr[i];
    const std::uintptr_t from = module->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_GNU_EH_FRAME) table = from;
    if (part.p_type != PT_LOAD || address < from || address - from >= part.p_memsz) continue;
    inside = true, begin = from, end = from + part.p_memsz;
  }
  if (!inside || table == 0) return inside ? 1 : 0;
  *found = {};
  found->dlfo_map_start = reinterpret_cast<void*>(begin);
  found->dlfo_map_end = reinterpret_cast<void*>(end);
  found->dlfo_eh_frame = reinterpret_cast<void*>(table);
  return 2;
}

}  // namespace

// 0 where the object was found, else -1, as _dl_find_object().
extern "C" int __wrap__dl_find_object(void* address, dl_find_object* found) {
  Wanted wanted{reinterpret_cast<std::uintptr_t>(address), found};
  return dl_iterate_phdr(look, &wanted) == 2 ? 0 : -1;
}
