#ifndef DISCO_FUSE_KERNELS_CONVOLUTION_H_
#define DISCO_FUSE_KERNELS_CONVOLUTION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/torch_library.h"

namespace disco_fuse {

/*! \brief Which of the three tensors of a convolution is computed from the other two. */
enum class ConvolutionResult : int64_t {
  kSmall = 0,   ///< The convolution itself.
  kLarge = 1,   ///< The input gradient, which is also the transposed convolution.
  kWeight = 2,  ///< The weight gradient.
};

/*!
 * \brief The one relation behind a convolution, its gradients and its transpose.
 *
 *     small[n, a, i] = sum over b and p of weight[a, b, p] * large[n, g * B + b, i * s + p * d -
 * pad]
 *
 * i and p have an entry for each of `num_axes` spatial axes, g is the group of channel a. Shapes:
 * large [N, groups * B, ...], small [N, A, ...], weight [A, B, taps...], all contiguous.
 */
struct ConvolutionProblem {
  static constexpr int kMaxAxes = 3;

  ConvolutionResult result = ConvolutionResult::kSmall;
  int64_t groups = 1;
  int num_axes = 0;
  const int64_t* stride = nullptr;
  const int64_t* padding = nullptr;
  const int64_t* dilation = nullptr;
};

/*! \brief The shapes of the three tensors, in this order everywhere. */
struct ConvolutionShapes {
  std::vector<int64_t> large;
  std::vector<int64_t> small;
  std::vector<int64_t> weight;
};

/*!
 * \brief Reads a problem from its integer form; the arrays keep pointing into `ints`.
 *
 *     result, groups, num_axes, stride..., padding..., dilation...
 *
 * \return Empty on success, otherwise the reason.
 */
std::string ParseConvolution(const int64_t* ints, size_t num_ints, ConvolutionProblem* problem);

/*!
 * \brief Says why a problem must not be run on tensors of such shapes.
 *
 * Checked is that the channels fit the groups, and that `small` has as many windows on every axis
 * as fit into the padded `large`.
 *
 * \return Empty when all is well, otherwise the reason.
 */
std::string CheckConvolution(const ConvolutionProblem& problem, const ConvolutionShapes& shapes);

/*!
 * \brief Runs a problem that CheckConvolution accepts, through the library that torch uses.
 *
 * \param torch The library.
 * \param problem What to compute.
 * \param shapes Of large, small and weight.
 * \param data Of large, small and weight; that of the result is written.
 * \param is_double Whether the tensors hold doubles, otherwise floats.
 * \param num_threads As many threads (0: the library decides).
 * \return Empty on success, otherwise what torch says.
 */
std::string RunConvolution(const TorchFunctions& torch, const ConvolutionProblem& problem,
                           const ConvolutionShapes& shapes, const std::array<void*, 3>& data,
                           bool is_double, int num_threads);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_KERNELS_CONVOLUTION_H_
