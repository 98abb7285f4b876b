// tests/simt/thread_sanitizer.hpp -- what the emulator tells the thread sanitiser: which emulated
// thread is running, what orders the memory accesses of two of them, and what is not to be looked
// at. Built without that sanitiser it does nothing.
//
// The sanitiser knows a thread by its clock: for each other thread, how much of what that one did
// has happened before. Two accesses race if neither is before the other by these clocks, whichever
// was made first. Emulated threads have a clock each, and running them in turn orders nothing.
#pragma once
#include <string>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>

// In the run-time library, but in no header of it; signatures as the compiler has them.
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void __tsan_func_entry(void* caller);
void __tsan_func_exit(void*);
void __tsan_read_range(void* begin, long bytes);
void __tsan_write_range(void* begin, long bytes);
}

// A function that is entered by one emulated thread and left by another, or never.
#define KNEAR_BETWEEN_THREADS gnu::noinline, gnu::no_sanitize_thread

namespace knear::tsan {

inline constexpr bool on = true;

inline void* current_thread() { return __tsan_get_current_fiber(); }
[[gnu::always_inline]] inline void switch_to(void* thread) {
  __tsan_switch_to_fiber(thread, __tsan_switch_to_fiber_no_sync);
}

// What is before release() is before what follows an acquire() of the same address.
inline void release(void* at) { __tsan_release(at); }
inline void acquire(void* at) { __tsan_acquire(at); }

// What was done before a thread is created is before what it does, and that is before what follows
// its end.
inline void* create_thread(const std::string& name) {
  void* const thread = __tsan_create_fiber(0);
  __tsan_set_fiber_name(thread, name.c_str());
  return thread;
}
[[KNEAR_BETWEEN_THREADS]] inline void destroy_thread(void* thread) {
  void* const current = current_thread();
  switch_to(thread);
  release(thread);
  switch_to(current);
  acquire(thread);
  __tsan_destroy_fiber(thread);
}

// As if a function called from `caller` wrote `bytes` at `to` and read as many at `from`, if that
// is no nullptr.
inline void show_accesses(void* caller, void* to, const void* from, long bytes) {
  __tsan_func_entry(caller);
  __tsan_write_range(to, bytes);
  if (from) __tsan_read_range(const_cast<void*>(from), bytes);
  __tsan_func_exit(nullptr);
}

inline void show_read(void* caller, const void* from, long bytes) {
  __tsan_func_entry(caller);
  __tsan_read_range(const_cast<void*>(from), bytes);
  __tsan_func_exit(nullptr);
}

// While it lives, accesses of the current thread are not looked at.
class Unseen {
 public:
  Unseen() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

}  // namespace knear::tsan
#else
#define KNEAR_BETWEEN_THREADS gnu::noinline, gnu::no_sanitize_address

namespace knear::tsan {

inline constexpr bool on = false;

inline void* create_thread(const std::string&) { return nullptr; }
inline void destroy_thread(void*) {}
inline void* current_thread() { return nullptr; }
inline void switch_to(void*) {}
inline void release(void*) {}
inline void acquire(void*) {}
inline void show_accesses(void*, void*, const void*, long) {}
inline void show_read(void*, const void*, long) {}
struct Unseen {
  Unseen() {}  // so that nobody warns of a variable without use
};

}  // namespace knear::tsan
#endif
