#ifndef DISCO_FUSE_KERNELS_ENTRY_POINTS_H_
#define DISCO_FUSE_KERNELS_ENTRY_POINTS_H_

#include <dlfcn.h>

#include <string>

namespace disco_fuse {

/*! \brief A library that is opened at run time, and what was looked for in it in vain. */
class EntryPoints {
 public:
  /*! \brief Opens `path`; never closed: the library's threads and their state would outlive it. */
  explicit EntryPoints(const std::string& path)
      : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ != nullptr) return;
    const char* error = dlerror();
    reason_ = error == nullptr ? "dlopen failed" : error;
  }

  /*! \brief Looks `name` up, in the library or its dependencies, as a function or a pointer. */
  template <typename T>
  void Find(const char* name, T* target) {
    if (handle_ == nullptr) return;
    void* symbol = dlsym(handle_, name);
    if (symbol == nullptr) reason_ += (reason_.empty() ? "it lacks " : ", ") + std::string(name);
    *target = reinterpret_cast<T>(symbol);
  }

  /*! \brief Empty if all was found, else the reason. */
  const std::string& reason() const { return reason_; }

 private:
  void* handle_;
  std::string reason_;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_KERNELS_ENTRY_POINTS_H_
