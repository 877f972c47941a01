#ifndef DISCO_FUSE_KERNELS_BUCKET_SPEC_H_
#define DISCO_FUSE_KERNELS_BUCKET_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace disco_fuse {

/*!
 * Gradients of one bucket on their way through an AllReduce:
 *
 *   gradients    [ t0 float32 ...... ]   [ t1 float16 .. ]   [ t2 float32 ............... ]
 *                      \                      |                    /
 *                       x scale, cast     (pack: one launch)      /
 *                        \                    |                  /
 *   bucket       | t0 .......... | gap | t1 ....... | t2 ..................... |    one dtype
 *                                             |
 *                                         AllReduce
 *                                             |
 *                        cast, update     (unpack: one launch)
 *                        /                    |                  \
 *   parameters   [ t0 .............. ]   [ t1 .......... ]   [ t2 ....................... ]
 *   and states
 *
 * Everything but the pointers is known when the plan is built, so kernels are generated for exactly
 * one bucket. Three writers of the same computation read a BucketSpec:
 *
 *   bucket_cuda.h   CUDA source text
 *   bucket_c.h      C source text, for a host that has a compiler
 *   bucket_cpu.h    compiled loops, for a host that has none
 */

/*! \brief Element types of gradients, parameters and buckets. */
enum class ElementType { kFloat32, kFloat64, kFloat16, kBFloat16 };
constexpr int kNumElementTypes = 4;

/*! \brief Bytes of one element. */
int64_t SizeOf(ElementType type);
/*! \brief numpy's name of the type. */
const char* NameOf(ElementType type);
/*! \brief \throws std::invalid_argument for a name that is none of the four. */
ElementType ParseElementType(const std::string& name);

/*! \brief One tensor and its place in the bucket; everything counts elements. */
struct BucketTensor {
  int64_t count = 0;
  ElementType dtype = ElementType::kFloat32;
  int64_t offset = 0;

  bool operator==(const BucketTensor& other) const {
    return count == other.count && dtype == other.dtype && offset == other.offset;
  }
};

/*!
 * \brief What unpack does with the averaged gradients.
 *
 * kNone writes them into the tensors. The others update parameters in place; their formulas are
 * those of python/disco_fuse/frontend/optimizer (sgd.py, adam.py). Numbers that change between
 * steps are `scalars`, float64, computed once a step by StepScalars.
 */
struct UpdateRule {
  enum class Kind { kNone, kSgd, kAdam, kAdamW };

  Kind kind = Kind::kNone;
  double momentum = 0.0;  // kSgd
  bool nesterov = false;  // kSgd
  double beta1 = 0.9;     // kAdam, kAdamW
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;  // 0 leaves the term out

  bool operator==(const UpdateRule& other) const {
    return kind == other.kind && momentum == other.momentum && nesterov == other.nesterov &&
           beta1 == other.beta1 && beta2 == other.beta2 && eps == other.eps &&
           weight_decay == other.weight_decay;
  }
};

/*! \brief "none", "sgd", "adam" or "adamw"; \throws std::invalid_argument for another name. */
UpdateRule::Kind ParseUpdateKind(const std::string& name);

/*! \brief Names of the state tensors of a parameter, in the order in which kernels take them. */
std::vector<std::string> StateNames(const UpdateRule& rule);
/*!
 * \brief Names of the scalars, in order.
 *
 *   sgd     learning_rate
 *   adam    step_size  = learning_rate / (1 - beta1^step),   root = sqrt(1 - beta2^step)
 *   adamw   as adam, then kept = 1 - learning_rate * weight_decay
 */
std::vector<std::string> ScalarNames(const UpdateRule& rule);
/*!
 * \brief Values of the scalars in one step; the first step has number 1.
 * \throws std::invalid_argument if the step is below 1 or the learning rate is no number >= 0.
 */
std::vector<double> StepScalars(const UpdateRule& rule, double learning_rate, int64_t step);

/*! \brief Limits that keep byte offsets in 64 bits and the numbers of GPU blocks in 31. */
constexpr int64_t kMaxBucketElements = int64_t{1} << 40;
constexpr size_t kMaxBucketTensors = size_t{1} << 24;

/*! \brief One bucket: all that its kernels depend on, except pointers. */
struct BucketSpec {
  std::string name = "bucket";  // prefix of the entry names of generated sources
  std::vector<BucketTensor> tensors;
  ElementType dtype = ElementType::kFloat32;
  int64_t count = 0;   // elements of the bucket; what lies between tensors is never touched
  double scale = 1.0;  // pack multiplies by it
  UpdateRule update;
  // What the address of every tensor, state and of the bucket is a multiple of. 16 allows the
  // widest accesses of a GPU.
  int64_t alignment_bytes = 16;

  bool operator==(const BucketSpec& other) const {
    return name == other.name && tensors == other.tensors && dtype == other.dtype &&
           count == other.count && scale == other.scale && update == other.update &&
           alignment_bytes == other.alignment_bytes;
  }
};

/*!
 * \brief Checks a spec before anything is generated or run from it.
 * \throws std::invalid_argument that names the field, its value and what is allowed: no tensors,
 * a negative size, a tensor outside the bucket or over another one, a scale that is not positive,
 * an update parameter out of range, a name that is no identifier, an odd alignment.
 */
void CheckBucketSpec(const BucketSpec& spec);

/*! \brief What pack computes in: float64 if one side is, otherwise float32. */
ElementType PackType(const BucketSpec& spec, const BucketTensor& tensor);
/*!
 * \brief What an update computes in and stores states in: float64 for float64 parameters, otherwise
 * float32, also for 16-bit parameters (as frontend/torch/updates.py does).
 */
ElementType UpdateType(const BucketTensor& tensor);

/*! \brief One function of a generated source. */
struct GeneratedEntry {
  enum class Passing {
    kPointer,       // one pointer
    kPointerArray,  // the address of an array of pointers, one a tensor (empty ones included)
    kPointerStruct  // the same array by value, as one kernel argument of 8 bytes a tensor
  };
  struct Argument {
    std::string name;  // "bucket", "tensors", "parameters", "scalars" or a state's name
    Passing passing;
  };

  std::string name;
  std::vector<Argument> arguments;
  int64_t num_blocks = 1;         // 1 on a CPU
  int64_t threads_per_block = 1;  // 1 on a CPU
};

/*! \brief Source text; equal specs give equal bytes. */
struct GeneratedSource {
  std::string code;
  GeneratedEntry pack;
  GeneratedEntry unpack;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_KERNELS_BUCKET_SPEC_H_
