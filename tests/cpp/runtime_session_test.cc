#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/session.h"

namespace disco_fuse::runtime {
namespace {

using std::chrono::milliseconds;

void NeverInterrupt() {}

/*! \brief Two ranks as seen by one: the average with a peer that holds zeros. */
class HalvingCommunicator final : public Communicator {
 public:
  explicit HalvingCommunicator(std::vector<int64_t>* order) : order_(order) {}
  int rank() const final { return 0; }
  int world_size() const final { return 2; }
  void AllReduce(const CollectiveName& name, void* data, int64_t count, DataType dtype, Reduction,
                 const ProgressControl& control) final {
    while (blocked && !control.stopped()) std::this_thread::sleep_for(milliseconds(1));
    if (control.stopped()) throw std::runtime_error("stopped");
    if (name.id == 1313) throw std::runtime_error("bucket 1313 is unlucky");
    order_->push_back(name.id);
    for (int64_t i = 0; i < count; ++i) {
      if (dtype == DataType::kFloat32) {
        static_cast<float*>(data)[i] /= 2;
      } else {
        static_cast<double*>(data)[i] /= 2;
      }
    }
  }
  void Broadcast(const CollectiveName&, void*, int64_t, int, const ProgressControl&) final {}

  std::atomic<bool> blocked{false};

 private:
  std::vector<int64_t>* order_;
};

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    auto communicator = std::make_unique<HalvingCommunicator>(&order_);
    communicator_ = communicator.get();
    thread_ = std::make_shared<CommunicationThread>(std::move(communicator));
    session_ = std::make_unique<Session>(thread_, 100);
  }

  static TensorSpan Span(std::vector<float>* values) {
    return {values->data(), static_cast<int64_t>(values->size()), DataType::kFloat32};
  }
  static TensorSpan Span(std::vector<double>* values) {
    return {values->data(), static_cast<int64_t>(values->size()), DataType::kFloat64};
  }

  std::vector<int64_t> order_;
  HalvingCommunicator* communicator_;
  std::shared_ptr<CommunicationThread> thread_;
  std::unique_ptr<Session> session_;
};

TEST_F(SessionTest, SeveralTensorsTravelTogetherAndComeBack) {
  std::vector<float> a{2, 4}, b{6}, c{8, 10, 12};
  const std::vector<TensorSpan> tensors{Span(&a), Span(&b), Span(&c)};
  session_->Start(0, tensors);
  session_->Wait(0, tensors, NeverInterrupt);
  EXPECT_EQ(a, (std::vector<float>{1, 2}));
  EXPECT_EQ(b, (std::vector<float>{3}));
  EXPECT_EQ(c, (std::vector<float>{4, 5, 6}));
}

TEST_F(SessionTest, GradientsInTheMemoryOfTheirBucketAreNotCopied) {
  // 16 floats are 64 bytes: the second lies behind the first, the third behind a gap.
  const std::shared_ptr<char> memory = session_->BucketMemory(0, 64 + 4 + 60 + 8);
  auto* floats = reinterpret_cast<float*>(memory.get());
  for (int i = 0; i < 34; ++i) EXPECT_EQ(floats[i], 0.0F);
  std::fill(floats, floats + 16, 2.0F);
  floats[16] = 4.0F;
  floats[32] = 6.0F;
  floats[33] = 8.0F;
  const std::vector<TensorSpan> tensors{{floats, 16, DataType::kFloat32},
                                        {floats + 16, 1, DataType::kFloat32},
                                        {floats + 32, 2, DataType::kFloat32}};
  session_->Start(0, tensors);
  EXPECT_THROW(session_->BucketMemory(0, 8), std::invalid_argument);
  session_->Wait(0, tensors, NeverInterrupt);
  EXPECT_EQ(floats[15], 1.0F);
  EXPECT_EQ(floats[16], 2.0F);
  EXPECT_EQ(floats[17], 0.0F);
  EXPECT_EQ(floats[33], 4.0F);
  EXPECT_EQ(session_->CopiedBytes(), (std::map<int64_t, int64_t>{{0, 0}}));
}

TEST_F(SessionTest, OnlyGradientsElsewhereAreCopied) {
  const std::shared_ptr<char> memory = session_->BucketMemory(5, 64 + 12);
  auto* floats = reinterpret_cast<float*>(memory.get());
  floats[0] = 2.0F;
  std::vector<float> other{4, 6, 8};
  const std::vector<TensorSpan> tensors{{floats, 1, DataType::kFloat32}, Span(&other)};
  session_->Start(5, tensors);
  session_->Wait(5, tensors, NeverInterrupt);
  EXPECT_EQ(floats[0], 1.0F);
  EXPECT_EQ(other, (std::vector<float>{2, 3, 4}));
  EXPECT_EQ(session_->CopiedBytes(), (std::map<int64_t, int64_t>{{5, 12}}));
  std::vector<float> alone{2};
  session_->Start(6, {Span(&alone)});
  session_->Wait(6, {Span(&alone)}, NeverInterrupt);
  EXPECT_EQ(session_->CopiedBytes().at(6), 0);
}

TEST_F(SessionTest, BucketBuffersGrowAndChangeType) {
  for (size_t size : {1, 1000, 10}) {
    std::vector<double> a(size, 2.0), b(size + 1, 4.0);
    const std::vector<TensorSpan> tensors{Span(&a), Span(&b)};
    session_->Start(0, tensors);
    session_->Wait(0, tensors, NeverInterrupt);
    EXPECT_EQ(a, std::vector<double>(size, 1.0));
    EXPECT_EQ(b, std::vector<double>(size + 1, 2.0));
  }
  std::vector<float> c{2}, d{4};
  session_->Start(0, {Span(&c), Span(&d)});
  session_->Wait(0, {Span(&c), Span(&d)}, NeverInterrupt);
  EXPECT_EQ(d, (std::vector<float>{2}));
}

TEST_F(SessionTest, BucketsTravelInStartOrder) {
  std::vector<std::vector<float>> values(20, std::vector<float>(3, 1));
  for (int64_t i = 0; i < 20; ++i) session_->Start(19 - i, {Span(&values[i])});
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < 20; ++i) {
    session_->Wait(i, {Span(&values[19 - i])}, NeverInterrupt);
    expected.push_back(19 - i);
  }
  EXPECT_EQ(order_, expected);
}

TEST_F(SessionTest, FailureReachesItsWaitAndAllLaterOnes) {
  std::vector<float> a{2}, b{2}, c{2};
  session_->BeginStep();
  session_->Start(1, {Span(&a)});
  session_->Start(1313, {Span(&b)});
  session_->Start(2, {Span(&c)});
  session_->Wait(1, {Span(&a)}, NeverInterrupt);
  EXPECT_THROW(session_->Wait(1313, {Span(&b)}, NeverInterrupt), std::runtime_error);
  EXPECT_THROW(session_->Wait(2, {Span(&c)}, NeverInterrupt), std::runtime_error);
  EXPECT_EQ(a[0], 1);
  EXPECT_EQ(c[0], 2);
  session_->BeginStep();  // nothing is in flight after failed waits
}

TEST_F(SessionTest, InterruptedWaitCanBeRepeated) {
  communicator_->blocked = true;
  std::vector<float> a{2};
  session_->Start(0, {Span(&a)});
  EXPECT_THROW(session_->Wait(0, {Span(&a)}, [] { throw std::domain_error("Ctrl-C"); }),
               std::domain_error);
  EXPECT_THROW(session_->BeginStep(), std::invalid_argument);
  communicator_->blocked = false;
  session_->Wait(0, {Span(&a)}, NeverInterrupt);
  EXPECT_EQ(a[0], 1);
}

TEST_F(SessionTest, DestructionWithABucketInFlightDoesNotHang) {
  communicator_->blocked = true;
  std::vector<float> a{2};
  session_->Start(0, {Span(&a)});
  session_.reset();
  EXPECT_EQ(a[0], 2);
  Session other(thread_, 10);
  EXPECT_THROW(other.Start(0, {Span(&a)}), std::runtime_error);
}

TEST_F(SessionTest, EventsOfBothThreadsByStart) {
  std::vector<float> a{2}, b{2};
  session_->BeginStep();
  session_->Start(4, {Span(&a)});
  session_->BeginKernel();
  session_->FinishKernel("fused_add");
  session_->Wait(4, {Span(&a)}, NeverInterrupt);
  session_->FinishStep();
  int counts[5] = {};
  const std::vector<Event> events = session_->Events();
  for (size_t i = 0; i < events.size(); ++i) {
    ++counts[static_cast<int64_t>(events[i].kind)];
    EXPECT_LE(events[i].start, events[i].finish);
    if (i > 0) {
      EXPECT_LE(events[i - 1].start, events[i].start);
    }
  }
  for (int count : counts) EXPECT_EQ(count, 1);
  EXPECT_EQ(session_->kernel_names(), std::vector<std::string>{"fused_add"});
}

TEST_F(SessionTest, ProcessorTimeUntilClosed) {
  std::vector<float> a{2};
  session_->Start(0, {Span(&a)});
  session_->Wait(0, {Span(&a)}, NeverInterrupt);
  EXPECT_GT(thread_->cpu_time().count(), 0);
  thread_->Close();
  thread_->Close();
  EXPECT_EQ(thread_->cpu_time().count(), 0);
}

}  // namespace
}  // namespace disco_fuse::runtime
