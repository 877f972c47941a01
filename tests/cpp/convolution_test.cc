#include "kernels/convolution.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "kernels/torch_library.h"

namespace disco_fuse {
namespace {

using Ints = std::vector<int64_t>;

// A torch that counts its tensors and computes nothing: a result is the integer that follows.
struct Fake {
  std::set<intptr_t> alive;
  intptr_t num_made = 0;
  int omp_threads = 5;
  int mkl_threads = 6;
  bool fails = false;
  std::string calls;
} g_fake;

TorchTensor Make() {
  g_fake.alive.insert(++g_fake.num_made);
  return reinterpret_cast<TorchTensor>(g_fake.num_made);
}

void ExpectThreads(int expected) {
  EXPECT_EQ(g_fake.omp_threads, expected);
  EXPECT_EQ(g_fake.mkl_threads, expected);
}

TorchFunctions FakeTorch() {
  g_fake = Fake{};
  TorchFunctions torch;
  torch.float32 = [] { return int32_t{6}; };
  torch.float64 = [] { return int32_t{7}; };
  torch.cpu = [] { return int32_t{0}; };
  torch.from_blob = [](void*, int64_t num_dims, const int64_t* sizes, const int64_t* strides,
                       int64_t, int32_t, int32_t, int32_t, TorchTensor* result) {
    EXPECT_EQ(strides[num_dims - 1], 1);
    EXPECT_EQ(strides[0], sizes[1] * strides[1]);
    *result = Make();
    return int32_t{0};
  };
  torch.destroy = [](TorchTensor tensor) {
    EXPECT_EQ(g_fake.alive.erase(reinterpret_cast<intptr_t>(tensor)), 1u);
    return int32_t{0};
  };
  torch.copy = [](TorchTensor to, TorchTensor, int32_t) {
    g_fake.calls += " copy to " + std::to_string(reinterpret_cast<intptr_t>(to));
    return int32_t{0};
  };
  torch.convolution = [](TorchTensor, TorchTensor, TorchTensor*, const int64_t*, int64_t,
                         const int64_t*, int64_t, const int64_t*, int64_t, int32_t, const int64_t*,
                         int64_t, int64_t, TorchTensor* result) {
    ExpectThreads(3);
    g_fake.calls += "forward";
    if (g_fake.fails) return int32_t{1};
    *result = Make();
    return int32_t{0};
  };
  torch.convolution_backward = [](TorchTensor, TorchTensor, TorchTensor, const int64_t**, int64_t,
                                  const int64_t*, int64_t, const int64_t*, int64_t, const int64_t*,
                                  int64_t, int32_t, const int64_t*, int64_t, int64_t,
                                  const int32_t* mask, int64_t, TorchTensor* for_input,
                                  TorchTensor* for_weight, TorchTensor* for_bias) {
    ExpectThreads(3);
    g_fake.calls +=
        "backward " + std::to_string(mask[0]) + std::to_string(mask[1]) + std::to_string(mask[2]);
    if (mask[0] != 0) *for_input = Make();
    if (mask[1] != 0) *for_weight = Make();
    *for_bias = Make();  // torch hands out tensors that are not defined
    return int32_t{0};
  };
  torch.error_message = [] { return "no such convolution"; };
  torch.get_num_threads = [](uint32_t* num_threads) {
    *num_threads = static_cast<uint32_t>(g_fake.omp_threads);
    return int32_t{0};
  };
  torch.omp_set_num_threads = [](int num_threads) { g_fake.omp_threads = num_threads; };
  torch.mkl_set_num_threads_local = [](int num_threads) {
    const int former = g_fake.mkl_threads;
    g_fake.mkl_threads = num_threads;
    return former;
  };
  return torch;
}

std::string Parse(const Ints& ints) {
  ConvolutionProblem problem;
  return ParseConvolution(ints.data(), ints.size(), &problem);
}

std::string Check(const Ints& ints, const ConvolutionShapes& shapes) {
  ConvolutionProblem problem;
  EXPECT_EQ(ParseConvolution(ints.data(), ints.size(), &problem), "");
  return CheckConvolution(problem, shapes);
}

std::string RunPlain(int64_t result, const ConvolutionShapes& shapes, std::vector<float>* out) {
  const Ints ints = {result, 1, 1, 1, 0, 1};
  ConvolutionProblem problem;
  EXPECT_EQ(ParseConvolution(ints.data(), ints.size(), &problem), "");
  const TorchFunctions torch = FakeTorch();
  return RunConvolution(torch, problem, shapes, {out->data(), out->data(), out->data()}, false, 3);
}

TEST(ParseConvolution, ReadsEveryField) {
  const Ints ints = {2, 4, 2, 1, 2, 3, 0, 5, 6};
  ConvolutionProblem problem;
  ASSERT_EQ(ParseConvolution(ints.data(), ints.size(), &problem), "");
  EXPECT_EQ(problem.result, ConvolutionResult::kWeight);
  EXPECT_EQ(problem.groups, 4);
  EXPECT_EQ(problem.num_axes, 2);
  EXPECT_EQ(Ints(problem.stride, problem.stride + 2), (Ints{1, 2}));
  EXPECT_EQ(Ints(problem.padding, problem.padding + 2), (Ints{3, 0}));
  EXPECT_EQ(Ints(problem.dilation, problem.dilation + 2), (Ints{5, 6}));
}

TEST(ParseConvolution, RefusesWhatIsNoPlan) {
  EXPECT_EQ(Parse({0, 1}), "the plan needs at least 3 integers, got 2");
  EXPECT_EQ(Parse({3, 1, 1, 1, 0, 1}),
            "the result must be 0 (small), 1 (large) or 2 (weight), got 3");
  EXPECT_EQ(Parse({0, 0, 1, 1, 0, 1}), "groups must be positive, got 0");
  EXPECT_EQ(Parse({0, 1, 4, 1, 0, 1}), "a convolution has 1 to 3 spatial axes, got 4");
  EXPECT_EQ(Parse({0, 1, 2, 1, 0, 1}), "a plan over 2 axes has 9 integers, got 6");
  const std::string window = "strides and dilations must be positive and paddings not negative";
  EXPECT_EQ(Parse({0, 1, 1, 0, 0, 1}), window);
  EXPECT_EQ(Parse({0, 1, 1, 1, -1, 1}), window);
  EXPECT_EQ(Parse({0, 1, 1, 1, 0, 0}), window);
}

TEST(CheckConvolution, KnowsWhichShapesFit) {
  const Ints plan = {0, 2, 1, 2, 1, 3};  // groups 2, stride 2, padding 1, dilation 3
  EXPECT_EQ(Check(plan, {{5, 4, 9}, {5, 6, 3}, {6, 2, 3}}), "");
  EXPECT_NE(Check(plan, {{5, 4, 9}, {5, 6, 4}, {6, 2, 3}}).find("has room for 3 windows"),
            std::string::npos);
  EXPECT_NE(Check(plan, {{5, 4, 4}, {5, 6, 1}, {6, 2, 3}}).find("has room for 0 windows"),
            std::string::npos);
  EXPECT_NE(Check(plan, {{4, 4, 9}, {5, 6, 3}, {6, 2, 3}}).find("batches differ"),
            std::string::npos);
  for (const ConvolutionShapes& shapes : {ConvolutionShapes{{5, 5, 9}, {5, 6, 3}, {6, 2, 3}},
                                          {{5, 4, 9}, {5, 8, 3}, {6, 2, 3}},
                                          {{5, 4, 9}, {5, 5, 3}, {5, 2, 3}}}) {
    EXPECT_NE(Check(plan, shapes).find("channels do not fit 2 groups"), std::string::npos);
  }
  EXPECT_NE(Check(plan, {{5, 4, 9, 1}, {5, 6, 3}, {6, 2, 3}}).find("must have 3 dimensions"),
            std::string::npos);
}

TEST(RunConvolution, GivesBackTensorsAndThreads) {
  const ConvolutionShapes shapes = {{2, 3, 4}, {2, 5, 4}, {5, 3, 1}};
  std::vector<float> out(100);
  const char* expected[] = {"forward copy to 2", "backward 100 copy to 1",
                            "backward 010 copy to 3"};
  for (int result = 0; result < 3; ++result) {
    EXPECT_EQ(RunPlain(result, shapes, &out), "");
    EXPECT_EQ(g_fake.calls, expected[result]);
    EXPECT_GT(g_fake.num_made, 3);
    EXPECT_TRUE(g_fake.alive.empty());
    EXPECT_EQ(g_fake.omp_threads, 5);
    EXPECT_EQ(g_fake.mkl_threads, 6);
  }
}

TEST(RunConvolution, TellsWhatTorchSays) {
  const Ints ints = {0, 1, 1, 1, 0, 1};
  ConvolutionProblem problem;
  ASSERT_EQ(ParseConvolution(ints.data(), ints.size(), &problem), "");
  const TorchFunctions torch = FakeTorch();
  g_fake.fails = true;
  std::vector<float> data(100);
  const ConvolutionShapes shapes = {{2, 3, 4}, {2, 5, 4}, {5, 3, 1}};
  EXPECT_EQ(
      RunConvolution(torch, problem, shapes, {data.data(), data.data(), data.data()}, false, 3),
      "no such convolution");
  EXPECT_TRUE(g_fake.alive.empty());
  EXPECT_EQ(g_fake.omp_threads, 5);
}

TEST(RunConvolution, SumsOfNothingAreZero) {
  std::vector<float> out(8, 1.0f);
  EXPECT_EQ(RunPlain(0, {{2, 0, 4}, {2, 1, 4}, {1, 0, 1}}, &out), "");
  EXPECT_EQ(out, std::vector<float>(8, 0.0f));
  EXPECT_EQ(RunPlain(0, {{0, 3, 4}, {0, 1, 4}, {1, 3, 1}}, &out), "");
  EXPECT_EQ(g_fake.num_made, 0);
}

TEST(LoadTorch, NamesWhatIsMissing) {
  TorchFunctions functions;
  EXPECT_NE(LoadTorch("/nowhere/libtorch_cpu.so", &functions).find("/nowhere"), std::string::npos);
  const std::string reason = LoadTorch("libm.so.6", &functions);
  EXPECT_EQ(reason.rfind("it lacks aoti_torch_dtype_float32, ", 0), 0u) << reason;
  EXPECT_EQ(functions.convolution, nullptr);
}

}  // namespace
}  // namespace disco_fuse
