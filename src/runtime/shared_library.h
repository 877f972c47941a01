#ifndef DISCO_FUSE_RUNTIME_SHARED_LIBRARY_H_
#define DISCO_FUSE_RUNTIME_SHARED_LIBRARY_H_

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace disco_fuse::runtime {

/*!
 * \brief A library opened by name, never closed: addresses taken from it outlive every user.
 * \throws std::runtime_error with the loader's own text if it cannot be opened.
 */
inline void* OpenLibrary(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw std::runtime_error("cannot load " + path + ": " + (reason == nullptr ? "?" : reason));
  }
  return library;
}

/*! \throws std::runtime_error if `library` (called `what` in the error) has no `name`. */
template <typename Function>
void FindSymbol(void* library, const char* what, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) {
    throw std::runtime_error(std::string(what) + " has no function " + name);
  }
}

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_SHARED_LIBRARY_H_
