#include "kernels/convolution.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

namespace disco_fuse {
namespace {

std::string ToString(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

int64_t NumElements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

/*! \brief Windows of an axis that fit into the padded input; negative where not one does. */
int64_t NumWindows(int64_t length, int64_t taps, int64_t stride, int64_t padding,
                   int64_t dilation) {
  const int64_t room = length + 2 * padding - ((taps - 1) * dilation + 1);
  return room < 0 ? -1 : room / stride + 1;
}

/*! \brief Gives the calling thread so many threads inside torch, and the former number back. */
class ScopedTorchThreads {
 public:
  ScopedTorchThreads(const TorchFunctions& torch, int num_threads)
      : torch_(torch), is_set_(num_threads > 0) {
    if (!is_set_) return;
    // Before anything is set: on its first call torch gives the thread its own default.
    torch_.get_num_threads(&former_);
    torch_.omp_set_num_threads(num_threads);
    former_mkl_ = torch_.mkl_set_num_threads_local(num_threads);
  }
  ~ScopedTorchThreads() {
    if (!is_set_) return;
    torch_.mkl_set_num_threads_local(former_mkl_);
    torch_.omp_set_num_threads(static_cast<int>(former_));
  }
  ScopedTorchThreads(const ScopedTorchThreads&) = delete;
  ScopedTorchThreads& operator=(const ScopedTorchThreads&) = delete;

 private:
  const TorchFunctions& torch_;
  bool is_set_;
  uint32_t former_ = 1;
  int former_mkl_ = 0;
};

/*! \brief Tensors of torch that die with it. */
class Tensors {
 public:
  explicit Tensors(const TorchFunctions& torch) : torch_(torch) {}
  ~Tensors() {
    for (const TorchTensor tensor : owned_) torch_.destroy(tensor);
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  /*! \brief A tensor on memory of ours; null on failure. */
  TorchTensor Wrap(void* data, const std::vector<int64_t>& shape, bool is_double) {
    std::vector<int64_t> strides(shape.size(), 1);
    for (size_t i = shape.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
    TorchTensor tensor = nullptr;
    const int32_t dtype = is_double ? torch_.float64() : torch_.float32();
    const int32_t failed = torch_.from_blob(data, static_cast<int64_t>(shape.size()), shape.data(),
                                            strides.data(), 0, dtype, torch_.cpu(), 0, &tensor);
    return failed ? nullptr : Keep(tensor);
  }

  TorchTensor Keep(TorchTensor tensor) {
    if (tensor != nullptr) owned_.push_back(tensor);
    return tensor;
  }

 private:
  const TorchFunctions& torch_;
  std::vector<TorchTensor> owned_;
};

/*!
 * \brief The result as a tensor of torch's own; null on failure.
 *
 * A backward call takes the tensor that it differentiates for, of which it reads the shape only:
 * there the memory of the result stands for it.
 */
TorchTensor Compute(const TorchFunctions& torch, const ConvolutionProblem& problem,
                    const std::array<TorchTensor, 3>& tensors, Tensors* owner) {
  constexpr int64_t kNoOutputPadding[ConvolutionProblem::kMaxAxes] = {0, 0, 0};
  const auto [large, small, weight] = tensors;
  const int64_t n = problem.num_axes;
  if (problem.result == ConvolutionResult::kSmall) {
    TorchTensor result = nullptr;
    const int32_t failed =
        torch.convolution(large, weight, nullptr, problem.stride, n, problem.padding, n,
                          problem.dilation, n, 0, kNoOutputPadding, n, problem.groups, &result);
    owner->Keep(result);
    return failed ? nullptr : result;
  }
  const bool for_weight = problem.result == ConvolutionResult::kWeight;
  const int32_t mask[3] = {!for_weight, for_weight, 0};
  TorchTensor results[3] = {nullptr, nullptr, nullptr};
  const int32_t failed = torch.convolution_backward(
      small, large, weight, nullptr, 0, problem.stride, n, problem.padding, n, problem.dilation, n,
      0, kNoOutputPadding, n, problem.groups, mask, 3, &results[0], &results[1], &results[2]);
  for (const TorchTensor result : results) owner->Keep(result);
  return failed ? nullptr : results[for_weight ? 1 : 0];
}

}  // namespace

std::string ParseConvolution(const int64_t* ints, size_t num_ints, ConvolutionProblem* problem) {
  constexpr size_t kHead = 3;
  if (num_ints < kHead)
    return "the plan needs at least 3 integers, got " + std::to_string(num_ints);
  const int64_t result = ints[0], groups = ints[1], num_axes = ints[2];
  if (result < 0 || result > 2) {
    return "the result must be 0 (small), 1 (large) or 2 (weight), got " + std::to_string(result);
  }
  if (groups < 1) return "groups must be positive, got " + std::to_string(groups);
  if (num_axes < 1 || num_axes > ConvolutionProblem::kMaxAxes) {
    return "a convolution has 1 to 3 spatial axes, got " + std::to_string(num_axes);
  }
  const size_t expected = kHead + 3 * static_cast<size_t>(num_axes);
  if (num_ints != expected) {
    return "a plan over " + std::to_string(num_axes) + " axes has " + std::to_string(expected) +
           " integers, got " + std::to_string(num_ints);
  }
  problem->result = static_cast<ConvolutionResult>(result);
  problem->groups = groups;
  problem->num_axes = static_cast<int>(num_axes);
  problem->stride = ints + kHead;
  problem->padding = problem->stride + num_axes;
  problem->dilation = problem->padding + num_axes;
  for (int64_t i = 0; i < num_axes; ++i) {
    if (problem->stride[i] < 1 || problem->dilation[i] < 1 || problem->padding[i] < 0) {
      return "strides and dilations must be positive and paddings not negative";
    }
  }
  return {};
}

std::string CheckConvolution(const ConvolutionProblem& problem, const ConvolutionShapes& shapes) {
  const size_t num_dims = static_cast<size_t>(problem.num_axes) + 2;
  const auto& [large, small, weight] = shapes;
  const std::string all = ToString(large) + " (large), " + ToString(small) + " (small), " +
                          ToString(weight) + " (weight)";
  if (large.size() != num_dims || small.size() != num_dims || weight.size() != num_dims) {
    return "every tensor must have " + std::to_string(num_dims) + " dimensions: " + all;
  }
  if (large[0] != small[0]) return "the batches differ: " + all;
  if (small[1] != weight[0] || small[1] % problem.groups != 0 ||
      large[1] != problem.groups * weight[1]) {
    return "the channels do not fit " + std::to_string(problem.groups) + " groups: " + all;
  }
  for (size_t axis = 2; axis < num_dims; ++axis) {
    const int64_t windows = NumWindows(large[axis], weight[axis], problem.stride[axis - 2],
                                       problem.padding[axis - 2], problem.dilation[axis - 2]);
    if (weight[axis] < 1 || windows != small[axis]) {
      return "axis " + std::to_string(axis) + " has room for " +
             std::to_string(std::max<int64_t>(windows, 0)) + " windows: " + all;
    }
  }
  return {};
}

std::string RunConvolution(const TorchFunctions& torch, const ConvolutionProblem& problem,
                           const ConvolutionShapes& shapes, const std::array<void*, 3>& data,
                           bool is_double, int num_threads) {
  const std::array<const std::vector<int64_t>*, 3> all = {&shapes.large, &shapes.small,
                                                          &shapes.weight};
  constexpr int kTargets[3] = {1, 0, 2};  // places of small, large, weight in `all`
  const int target = kTargets[static_cast<int>(problem.result)];
  const int64_t num_results = NumElements(*all[target]);
  if (num_results == 0) return {};
  for (const auto* shape : all) {
    if (NumElements(*shape) == 0) {  // sums of nothing
      std::memset(data[target], 0, num_results * (is_double ? sizeof(double) : sizeof(float)));
      return {};
    }
  }
  const ScopedTorchThreads threads(torch, num_threads);
  Tensors owner(torch);
  std::array<TorchTensor, 3> tensors = {};
  for (int i = 0; i < 3; ++i) {
    tensors[i] = owner.Wrap(data[i], *all[i], is_double);
    if (tensors[i] == nullptr) return torch.error_message();
  }
  const TorchTensor result = Compute(torch, problem, tensors, &owner);
  // Torch has no form of these that writes into memory of the caller's.
  if (result == nullptr || torch.copy(tensors[target], result, 0) != 0) {
    return torch.error_message();
  }
  return {};
}

}  // namespace disco_fuse
