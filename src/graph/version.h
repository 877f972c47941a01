#ifndef DISCO_FUSE_GRAPH_VERSION_H_
#define DISCO_FUSE_GRAPH_VERSION_H_

namespace disco_fuse {

/*! \brief Version of the library, the same as in pyproject.toml. */
const char* Version();

}  // namespace disco_fuse

#endif  // DISCO_FUSE_GRAPH_VERSION_H_
