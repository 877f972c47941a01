#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/blas.h"

namespace disco_fuse {
namespace {

int g_num_threads = 7;
std::vector<int> g_batch_sizes;

// Textbook loops in the place of a library: the tests are about strides, not about speed.
template <typename T>
void Gemm(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
          const T* alpha, const T* a, const int* lda, const T* b, const int* ldb, const T* beta,
          T* c, const int* ldc) {
  EXPECT_EQ(g_num_threads, 3);
  EXPECT_GE(*lda, *trans_a == 'N' ? *m : *k);
  EXPECT_GE(*ldb, *trans_b == 'N' ? *k : *n);
  EXPECT_GE(*ldc, *m);
  for (int i = 0; i < *m; ++i) {
    for (int j = 0; j < *n; ++j) {
      T sum(0);
      for (int p = 0; p < *k; ++p) {
        sum += (*trans_a == 'N' ? a[i + p * *lda] : a[p + i * *lda]) *
               (*trans_b == 'N' ? b[p + j * *ldb] : b[j + p * *ldb]);
      }
      T& target = c[i + j * *ldc];
      target = *alpha * sum + (*beta == T(0) ? T(0) : *beta * target);
    }
  }
}

template <typename T>
void GemmBatch(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
               const T* alpha, const T** a, const int* lda, const T** b, const int* ldb,
               const T* beta, T** c, const int* ldc, const int* num_groups,
               const int* group_sizes) {
  EXPECT_EQ(*num_groups, 1);
  g_batch_sizes.push_back(group_sizes[0]);
  for (int i = 0; i < group_sizes[0]; ++i) {
    Gemm<T>(trans_a, trans_b, m, n, k, alpha, a[i], lda, b[i], ldb, beta, c[i], ldc);
  }
}

int SetNumThreads(int num_threads) {
  const int former = g_num_threads;
  g_num_threads = num_threads;
  return former;
}

BlasFunctions Textbook() {
  return {Gemm<float>, Gemm<double>, GemmBatch<float>, GemmBatch<double>, SetNumThreads};
}

std::string Check(const std::vector<int64_t>& ints, int64_t a, int64_t b, int64_t c) {
  GemmProblem problem;
  const std::string reason = ParseGemm(ints.data(), ints.size(), &problem);
  return reason.empty() ? CheckGemm(problem, {a, b, c}) : reason;
}

template <typename T>
std::vector<T> Product(const std::vector<int64_t>& ints, const std::vector<T>& a,
                       const std::vector<T>& b, size_t num_results) {
  GemmProblem problem;
  EXPECT_EQ(ParseGemm(ints.data(), ints.size(), &problem), "");
  std::vector<T> c(num_results, std::numeric_limits<T>::quiet_NaN());
  EXPECT_EQ(CheckGemm(problem, {static_cast<int64_t>(a.size()), static_cast<int64_t>(b.size()),
                                static_cast<int64_t>(c.size())}),
            "");
  g_num_threads = 7;
  RunGemm<T>(Textbook(), problem, a.data(), b.data(), c.data(), 3);
  EXPECT_EQ(g_num_threads, 7) << "the caller's number of threads must come back";
  return c;
}

TEST(Gemm, EveryLayoutOfOneProduct) {
  // A = [1 2 3; 4 5 6], B = [1 0 2; 2 1 0; 0 3 1], so C = [5 11 5; 14 23 14].
  const std::vector<double> a_rows = {1, 2, 3, 4, 5, 6}, a_cols = {1, 4, 2, 5, 3, 6};
  const std::vector<double> b_rows = {1, 0, 2, 2, 1, 0, 0, 3, 1};
  const std::vector<double> b_cols = {1, 2, 0, 0, 1, 3, 2, 0, 1};
  const std::vector<double> c_rows = {5, 11, 5, 14, 23, 14}, c_cols = {5, 14, 11, 23, 5, 14};
  for (bool a_row : {true, false}) {
    for (bool b_row : {true, false}) {
      for (bool c_row : {true, false}) {
        std::vector<int64_t> ints = {0, 2, 3, 3};
        for (int64_t i : {0, a_row ? 3 : 1, a_row ? 1 : 2}) ints.push_back(i);
        for (int64_t i : {0, b_row ? 3 : 1, b_row ? 1 : 3}) ints.push_back(i);
        for (int64_t i : {0, c_row ? 3 : 1, c_row ? 1 : 2}) ints.push_back(i);
        EXPECT_EQ(Product<double>(ints, a_row ? a_rows : a_cols, b_row ? b_rows : b_cols, 6),
                  c_row ? c_rows : c_cols);
      }
    }
  }
}

TEST(Gemm, BatchWithRepeatedOperandAndOffset) {
  // Batch (2, 2): A differs along the first dimension only, B begins at element 1 of its tensor.
  const std::vector<float> a = {1, 2, 10, 20};
  const std::vector<float> b = {99, 1, 1, 2, 2, 3, 3, 4, 4};
  const std::vector<int64_t> ints = {
      2, 1, 1, 2, 2, 2, 0, 2, 1, 2, 0,
      1, 1, 1, 4, 2, 0, 1, 1, 1, 2};  // C is written transposed: (0,0) (1,0) ...
  EXPECT_EQ(Product<float>(ints, a, b, 4), (std::vector<float>{3, 90, 6, 120}));
}

TEST(Gemm, LongBatchesAreCutInPieces) {
  const int64_t num = 600;
  std::vector<float> a(num), b(num), expected(num);
  for (int64_t i = 0; i < num; ++i) {
    a[i] = static_cast<float>(i);
    b[i] = 2;
    expected[i] = static_cast<float>(2 * i);
  }
  g_batch_sizes.clear();
  EXPECT_EQ(Product<float>({1, 1, 1, 1, num, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1}, a, b, num),
            expected);
  EXPECT_EQ(g_batch_sizes, (std::vector<int>{256, 256, 88}));
}

TEST(Gemm, EmptySum) {
  EXPECT_EQ(Product<float>({0, 2, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 1}, {}, {}, 2),
            (std::vector<float>{0, 0}));
}

TEST(Gemm, EmptyOutputTouchesNothing) {
  EXPECT_TRUE(Product<float>({0, 0, 4, 3, 0, 3, 1, 0, 4, 1, 0, 4, 1}, {}, {}, 0).empty());
  // An empty batch wins even over sizes whose product has no 64-bit value.
  const int64_t big = std::numeric_limits<int>::max();
  EXPECT_EQ(
      Check({3, big, big, 1, big, 0, big, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0}, 0,
            0, 0),
      "");
}

TEST(GemmCheck, SizesThatOverflow) {
  const int64_t big = std::numeric_limits<int>::max();
  EXPECT_EQ(Check({1, big, big, 1, big, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0}, 1, 1, 1),
            "output is too large");
}

TEST(GemmCheck, AccessOutsideATensor) {
  const std::vector<int64_t> good = {0, 2, 2, 3, 0, 3, 1, 0, 2, 1, 0, 2, 1};
  EXPECT_EQ(Check(good, 6, 6, 4), "");
  EXPECT_EQ(Check(good, 5, 6, 4), "first operand reaches outside a tensor of 5 elements");
  EXPECT_EQ(Check(good, 6, 5, 4), "second operand reaches outside a tensor of 5 elements");
  EXPECT_EQ(Check(good, 6, 6, 5), "output must have 4 elements, got 5");
  // A product of single elements has no stride to catch an offset that is too large.
  EXPECT_EQ(Check({0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 1, 1}, 1, 1, 1),
            "first operand reaches outside a tensor of 1 elements");
  for (int at : {4, 5, 7, 8, 10}) {
    for (int64_t wrong : {int64_t{7}, std::numeric_limits<int64_t>::max()}) {
      std::vector<int64_t> ints = good;
      ints[at] = wrong;
      EXPECT_NE(Check(ints, 6, 6, 4).find("reaches outside"), std::string::npos) << at;
    }
  }
}

TEST(GemmCheck, StridesOfASingleStepAreFree) {
  const int64_t far = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Product<float>({1, 1, 1, 2, 1, 0, far, 1, far, 0, 1, far, far, 0, far, far, far},
                           {1, 2}, {3, 4}, 1),
            (std::vector<float>{11}));
}

TEST(GemmCheck, OutputWrittenTwiceOrWithGaps) {
  const std::string reason = Check({1, 1, 2, 1, 2, 0, 1, 1, 0, 0, 2, 1, 0, 0, 2, 1, 1}, 1, 2, 4);
  EXPECT_NE(reason.find("must be written densely"), std::string::npos) << reason;
}

TEST(GemmCheck, NeitherRowNorColumnMajor) {
  EXPECT_EQ(Check({0, 2, 1, 2, 0, 4, 2, 0, 1, 1, 0, 1, 1}, 8, 2, 2),
            "first operand is neither row-major nor column-major: 2 x 2 with row stride 4 and "
            "column stride 2");
  // Rows that overlap: BLAS wants a leading dimension of at least the row's length.
  EXPECT_NE(Check({0, 2, 1, 2, 0, 1, 1, 0, 1, 1, 0, 1, 1}, 8, 2, 2), "");
}

TEST(GemmParse, CountsAndSigns) {
  EXPECT_EQ(Check({}, 1, 1, 1), "needs at least 13 integers, got 0");
  EXPECT_EQ(Check(std::vector<int64_t>(14, 1), 1, 1, 1),
            "needs 17 integers for 1 batch dimensions, got 14");
  EXPECT_EQ(Check(std::vector<int64_t>(50, 9), 1, 1, 1),
            "number of batch dimensions must be 0 to 8, got 9");
  EXPECT_EQ(Check({0, 1, 1, 1, 0, -1, 1, 0, 1, 1, 0, 1, 1}, 1, 1, 1),
            "integer 5 is out of range: -1");
  EXPECT_EQ(Check({0, int64_t{1} << 31, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1}, 1, 1, 1),
            "integer 1 is out of range: 2147483648");
}

TEST(LoadBlas, SaysWhatIsMissing) {
  BlasFunctions functions;
  const std::string reason = LoadBlas("/no/such/library.so", &functions);
  EXPECT_NE(reason.find("/no/such/library.so"), std::string::npos) << reason;
  // Any library that is no BLAS: the C++ runtime is always there.
  EXPECT_EQ(LoadBlas("libstdc++.so.6", &functions),
            "it lacks sgemm_, dgemm_, sgemm_batch_, dgemm_batch_, MKL_Set_Num_Threads_Local");
  EXPECT_EQ(functions.sgemm, nullptr);
}

}  // namespace
}  // namespace disco_fuse
