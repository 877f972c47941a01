#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/device_session.h"
#include "runtime_fake_gpu.h"

namespace disco_fuse::runtime::testing {

namespace {

constexpr auto kTimeout = std::chrono::milliseconds(100);

std::shared_ptr<NcclCommunicator> Join(int world_size, int device = 0) {
  return std::make_shared<NcclCommunicator>(FakeGpu::Cuda(), FakeGpu::Nccl(), NcclUniqueId{},
                                            NcclPlace{0, world_size, device, kTimeout});
}

std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

class DeviceSessionTest : public ::testing::TestWithParam<Prefer> {
 protected:
  std::vector<DeviceSpan> Spans() {
    return {{first_.data(), static_cast<int64_t>(first_.size()), NcclType::kFloat32},
            {second_.data(), static_cast<int64_t>(second_.size()), NcclType::kFloat64}};
  }
  void Finish(DeviceSession* session) {
    session->FinishStep(stream_, [] {});
  }

  FakeGpu gpu_{GetParam()};
  CudaStream stream_ = FakeGpu::compute_stream();
  std::vector<float> first_ = std::vector<float>(3, 0.0F);
  std::vector<double> second_ = std::vector<double>(2, 0.0);
};

TEST_P(DeviceSessionTest, ReducesBetweenTheKernelsThatWriteAndRead) {
  DeviceSession session(Join(4), 100);
  float read = 0;
  for (int step = 1; step <= 3; ++step) {
    session.BeginStep(stream_);
    gpu_.Launch(1, [&] {
      std::fill(first_.begin(), first_.end(), 8.0F * static_cast<float>(step));
      std::fill(second_.begin(), second_.end(), 4.0);
    });
    session.Start(7, Spans(), NcclOperation::kAverage, stream_);
    gpu_.Launch(1, [] {});
    session.Wait(7, Spans(), stream_);
    gpu_.Launch(1, [&] { read = first_[2] + static_cast<float>(second_[1]); });
    Finish(&session);
    EXPECT_EQ(read, 2.0F * static_cast<float>(step) + 1.0F);
  }
  EXPECT_EQ(gpu_.num_groups(), 3);  // one launch a bucket, of two tensors and two types
}

TEST_P(DeviceSessionTest, RecordsTheTimesOfTheGpu) {
  DeviceSession session(Join(2), 100);
  session.BeginStep(stream_);
  session.BeginKernel(stream_);
  gpu_.Launch(5, [] {});
  session.FinishKernel("backward", stream_);
  session.Start(0, Spans(), NcclOperation::kSum, stream_);  // 2 ms: two tensors
  gpu_.Launch(0.5, [] {});
  session.Wait(0, Spans(), stream_);
  Finish(&session);
  using std::chrono::microseconds;
  std::vector<std::pair<EventKind, std::pair<int64_t, int64_t>>> found;
  for (const Event& event : session.Events()) {
    const auto us = [](auto time) {
      return std::chrono::duration_cast<microseconds>(time).count();
    };
    found.push_back({event.kind, {us(event.start), us(event.finish)}});
  }
  std::sort(found.begin(), found.end());
  const std::vector<std::pair<EventKind, std::pair<int64_t, int64_t>>> expected = {
      {EventKind::kAllReduce, {5000, 7000}},
      {EventKind::kWait, {5500, 7000}},
      {EventKind::kKernel, {0, 5000}},
      {EventKind::kStep, {0, 7000}}};
  EXPECT_EQ(found, expected);
  EXPECT_EQ(session.kernel_names(), std::vector<std::string>{"backward"});
}

TEST_P(DeviceSessionTest, StepsUseTheSameMarksAgain) {
  {
    DeviceSession session(Join(2), 100);
    int after_first = 0;
    for (int step = 0; step < 20; ++step) {
      session.BeginStep(stream_);
      session.Start(0, Spans(), NcclOperation::kAverage, stream_);
      session.Wait(0, Spans(), stream_);
      Finish(&session);
      if (step == 0) after_first = gpu_.num_live_events();
    }
    EXPECT_EQ(gpu_.num_live_events(), after_first);
  }
  EXPECT_EQ(gpu_.num_live_events(), 0);
  EXPECT_FALSE(gpu_.is_open());
}

TEST_P(DeviceSessionTest, CountsWhatDoesNotFit) {
  DeviceSession session(Join(2), 1);
  session.BeginStep(stream_);
  for (int i = 0; i < 3; ++i) {
    session.BeginKernel(stream_);
    session.FinishKernel("kernel", stream_);
  }
  Finish(&session);
  EXPECT_EQ(session.Events().size(), 1U);
  EXPECT_EQ(session.num_dropped(), 3);  // two kernels and the step
}

TEST_P(DeviceSessionTest, RefusesMisuse) {
  DeviceSession session(Join(2), 100);
  session.BeginStep(stream_);
  EXPECT_EQ(ErrorOf([&] { session.Events(); }),
            "no step has finished: there are no events to read");
  EXPECT_EQ(ErrorOf([&] { session.Start(-1, Spans(), NcclOperation::kSum, stream_); }),
            "bucket -1: the number of a bucket must be at least 0");
  EXPECT_EQ(ErrorOf([&] { session.Start(0, {}, NcclOperation::kSum, stream_); }),
            "bucket 0: has no tensors; at least one is needed");
  EXPECT_EQ(ErrorOf([&] { session.Wait(0, Spans(), stream_); }),
            "bucket 0: waited for but not started");
  session.Start(0, Spans(), NcclOperation::kSum, stream_);
  EXPECT_EQ(ErrorOf([&] { session.Start(0, Spans(), NcclOperation::kSum, stream_); }),
            "bucket 0: started twice without a wait between");
  EXPECT_EQ(ErrorOf([&] { session.Wait(0, {}, stream_); }),
            "bucket 0: waited for with other tensors than started");
  EXPECT_EQ(ErrorOf([&] { Finish(&session); }),
            "bucket 0: started but not waited for; a step cannot finish before that");
}

TEST_P(DeviceSessionTest, ABucketThatHangsIsNamed) {
  DeviceSession session(Join(2), 100);
  session.BeginStep(stream_);
  session.Start(3, Spans(), NcclOperation::kAverage, stream_);
  gpu_.HangReductions();
  session.Start(4, Spans(), NcclOperation::kAverage, stream_);
  session.Wait(3, Spans(), stream_);
  session.Wait(4, Spans(), stream_);
  EXPECT_EQ(ErrorOf([&] { Finish(&session); }), "rank 0 of 2: bucket 4 has not arrived: timed out");
  EXPECT_FALSE(gpu_.is_open());
  session.BeginStep(stream_);
  EXPECT_EQ(ErrorOf([&] { session.Start(3, Spans(), NcclOperation::kAverage, stream_); }),
            "the NCCL communicator was closed");
}

TEST_P(DeviceSessionTest, ALostPeerEndsTheStep) {
  DeviceSession session(Join(2), 100);
  session.BeginStep(stream_);
  gpu_.HangReductions();
  session.Start(3, Spans(), NcclOperation::kAverage, stream_);
  session.Wait(3, Spans(), stream_);
  gpu_.BreakAsync();
  EXPECT_EQ(ErrorOf([&] { Finish(&session); }),
            "rank 0 of 2: bucket 3 has not arrived: remote process exited");
}

TEST_P(DeviceSessionTest, AFailedCallClosesItsGroup) {
  DeviceSession session(Join(2), 100);
  session.BeginStep(stream_);
  gpu_.FailReductions();
  EXPECT_EQ(ErrorOf([&] { session.Start(3, Spans(), NcclOperation::kAverage, stream_); }),
            "ncclAllReduce failed: remote process exited");
  EXPECT_EQ(gpu_.num_groups(), 1);
}

TEST_P(DeviceSessionTest, AStepLeftHalfwayGivesTheCommunicatorUp) {
  auto communicator = Join(2);
  {
    DeviceSession session(communicator, 100);
    session.BeginStep(stream_);
    session.Start(0, Spans(), NcclOperation::kAverage, stream_);
  }
  EXPECT_FALSE(gpu_.is_open());
}

TEST_P(DeviceSessionTest, JoiningFailsWithTheReason) {
  EXPECT_EQ(ErrorOf([] { Join(2, 5); }), "cuDeviceGet failed: invalid device ordinal");
  gpu_.HangJoining();
  EXPECT_EQ(ErrorOf([] { Join(2); }), "rank 0 of 2 waited 0.100000 s for the others to join NCCL");
}

INSTANTIATE_TEST_SUITE_P(Orders, DeviceSessionTest,
                         ::testing::Values(Prefer::kCompute, Prefer::kCommunication));

TEST(GpuLibrariesTest, WhatIsNotThereIsNamed) {
  EXPECT_NE(ErrorOf([] { NcclApi::Find("libno_such_nccl.so.2"); }).find("libno_such_nccl.so.2"),
            std::string::npos);
  EXPECT_EQ(ErrorOf([] { CudaApi::Find("libc.so.6"); }), "the CUDA driver has no function cuInit");
}

}  // namespace

}  // namespace disco_fuse::runtime::testing
