#ifndef DISCO_FUSE_GRAPH_OP_H_
#define DISCO_FUSE_GRAPH_OP_H_

#include <cstdint>
#include <string>

namespace disco_fuse {

/*! \brief Who executes an op. */
enum class OpKind : int32_t {
  kCompute = 0,   /*!< a generated kernel: may be fused */
  kLibrary = 1,   /*!< a call into a library: always a unit of its own */
  kAllReduce = 2, /*!< a collective on the communication stream; may share a bucket */
};

/*! \brief TVM's OpPatternKind, with TVM's numbers. */
enum class OpPattern : int32_t {
  kElemwise = 0,
  kBroadcast = 1,
  kInjective = 2,
  kCommReduce = 3,
  kOutElemwiseFusable = 4,
  kTuple = 7,
  kOpaque = 8,
};

/*! \brief One operator of the training step. Sizes are bytes of one execution on one rank. */
struct Op {
  std::string name;
  OpKind kind = OpKind::kCompute;
  OpPattern pattern = OpPattern::kOpaque;
  double flops = 0;
  int64_t num_elements = 0; /*!< of the output */
  int64_t rows = 0;         /*!< independent rows, 0 if the op cannot be looped over by rows */
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  std::string signature; /*!< structural hash of the kernel: the key of its profile */
  bool is_output = false;
  bool is_donated = false; /*!< the value overwrites an external one in place */
  std::string collective;  /*!< name of the collective of an allreduce op */
  std::string merge_class; /*!< only collectives of equal class share a bucket */
  std::string op_class;    /*!< kind of work, by which a device states its efficiency */
};

/*! \brief `consumer` reads `bytes` of what `producer` writes, or (order_only) must come after it.
 */
struct Edge {
  int32_t producer = 0;
  int32_t consumer = 0;
  int64_t bytes = 0;
  bool order_only = false;
  bool keeps_rows = true; /*!< false if a view between both gives the data other rows */
};

/*! \brief `op` reads `bytes` of a parameter or constant, which is numbered by `value`. */
struct ExternalRead {
  int32_t op = 0;
  int32_t value = 0;
  int64_t bytes = 0;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_GRAPH_OP_H_
