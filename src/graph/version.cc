#include "graph/version.h"

namespace disco_fuse {

const char* Version() { return "0.1.0"; }

}  // namespace disco_fuse
