#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/mpi_communicator.h"
#include "runtime/reduce.h"
#include "runtime_fake_mpi.h"

namespace disco_fuse::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FakeWorld;

/*! \brief Hosts of so many consecutive ranks; of one rank: no groups. */
HostGroups GroupsOf(int rank, int world_size, int ranks_per_host) {
  HostGroups groups;
  if (ranks_per_host == 1) return groups;
  for (int other = 0; other < world_size; ++other) {
    if (other / ranks_per_host == rank / ranks_per_host) groups.local.push_back(other);
    if (other % ranks_per_host == rank % ranks_per_host) groups.across.push_back(other);
  }
  return groups;
}

/*! \brief Runs `body(communicator, rank)` on one thread per rank. */
void RunRanks(FakeWorld* world, int world_size,
              const std::function<void(MpiCommunicator*, int)>& body, int ranks_per_host = 1) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([=] {
      MpiCommunicator communicator(world->Link(rank, seconds(20)),
                                   GroupsOf(rank, world_size, ranks_per_host));
      body(&communicator, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

template <typename T>
std::vector<T> Values(int rank, int64_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) * 7919U + 1);
  std::normal_distribution<T> normal;
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = normal(random);
  return values;
}

template <typename T>
void ExpectReduced(int world_size, int64_t count, DataType dtype, Reduction reduction,
                   int ranks_per_host = 1) {
  SCOPED_TRACE(std::to_string(world_size) + " ranks, " + std::to_string(count) + " elements");
  FakeWorld world(world_size);
  const ProgressControl control;
  std::vector<std::vector<T>> results(world_size);
  RunRanks(
      &world, world_size,
      [&](MpiCommunicator* communicator, int rank) {
        results[rank] = Values<T>(rank, count);
        communicator->AllReduce({"bucket", 0}, results[rank].data(), count, dtype, reduction,
                                control);
      },
      ranks_per_host);
  std::vector<double> expected(static_cast<size_t>(count), 0.0);
  for (int rank = 0; rank < world_size; ++rank) {
    const std::vector<T> values = Values<T>(rank, count);
    for (int64_t i = 0; i < count; ++i) expected[i] += values[i];
  }
  const double scale = reduction == Reduction::kAverage ? 1.0 / world_size : 1.0;
  const double tolerance = 64.0 * std::numeric_limits<T>::epsilon();
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_NEAR(results[0][i], expected[i] * scale, tolerance) << "element " << i;
  }
  for (int rank = 1; rank < world_size; ++rank) {
    ASSERT_EQ(std::memcmp(results[rank].data(), results[0].data(), count * sizeof(T)), 0)
        << "rank " << rank << " differs from rank 0";
  }
}

// 4096 floats are the largest small message, 4097 the smallest that goes around the ring; 65536
// floats give two ranks segments of three chunks; the last has segments of unequal lengths.
constexpr int64_t kCounts[] = {1, 2, 5, 4096, 4097, 65536, 1'000'003};

TEST(MpiCommunicatorTest, AveragesAndAllRanksHoldTheSameBits) {
  for (int world_size : {1, 2, 3, 4, 5, 7, 8}) {
    for (int64_t count : kCounts) {
      ExpectReduced<float>(world_size, count, DataType::kFloat32, Reduction::kAverage);
    }
    ExpectReduced<double>(world_size, 3, DataType::kFloat64, Reduction::kAverage);
    ExpectReduced<double>(world_size, 200'001, DataType::kFloat64, Reduction::kAverage);
  }
}

TEST(MpiCommunicatorTest, TwoLevelsGiveAveragesAndTheSameBits) {
  constexpr std::pair<int, int> kShapes[] = {{4, 2}, {6, 2}, {6, 3}, {9, 3}};  // ranks, per host
  for (const auto& [world_size, ranks_per_host] : kShapes) {
    for (int64_t count : kCounts) {
      ExpectReduced<float>(world_size, count, DataType::kFloat32, Reduction::kAverage,
                           ranks_per_host);
    }
    ExpectReduced<double>(world_size, 200'001, DataType::kFloat64, Reduction::kSum, ranks_per_host);
  }
}

TEST(MpiCommunicatorTest, TwoLevelsSendLessBetweenHosts) {
  constexpr int kWorldSize = 6;
  constexpr int kRanksPerHost = 3;
  constexpr int64_t kCount = 360'000;
  FakeWorld world(kWorldSize);
  const ProgressControl control;
  RunRanks(
      &world, kWorldSize,
      [&](MpiCommunicator* communicator, int rank) {
        std::vector<float> values = Values<float>(rank, kCount);
        communicator->AllReduce({"bucket", 0}, values.data(), kCount, DataType::kFloat32,
                                Reduction::kAverage, control);
      },
      kRanksPerHost);
  const auto is_from = [](int host) {
    return [host](int from, int to) {
      return from / kRanksPerHost == host && to / kRanksPerHost != host;
    };
  };
  // 2 (hosts - 1) / hosts of the bucket; around one ring it would be 10 / 6.
  for (int host : {0, 1}) EXPECT_EQ(world.num_bytes(is_from(host)), kCount * 4);
}

/*! \brief Averages of small integers: no addition is rounded, only the average, once. */
void ExpectSixteenBitAverages(int world_size, int64_t count, DataType dtype,
                              uint16_t (*narrow)(float)) {
  const auto value = [](int rank, int64_t i) { return static_cast<float>((i + 3 * rank) % 17); };
  FakeWorld world(world_size);
  const ProgressControl control;
  std::vector<std::vector<uint16_t>> results(world_size);
  RunRanks(&world, world_size, [&](MpiCommunicator* communicator, int rank) {
    for (int64_t i = 0; i < count; ++i) results[rank].push_back(narrow(value(rank, i)));
    communicator->AllReduce({"bucket", 0}, results[rank].data(), count, dtype, Reduction::kAverage,
                            control);
  });
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int rank = 0; rank < world_size; ++rank) sum += value(rank, i);
    ASSERT_EQ(results[0][i], narrow(sum * (1.0F / static_cast<float>(world_size)))) << i;
  }
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

TEST(MpiCommunicatorTest, SixteenBitAveragesAreComputedInFloat) {
  for (int world_size : {2, 3, 4, 5}) {
    for (int64_t count : {int64_t{5}, int64_t{20'000}}) {  // in one message, and around the ring
      ExpectSixteenBitAverages(world_size, count, DataType::kFloat16, FloatToHalf);
      ExpectSixteenBitAverages(world_size, count, DataType::kBfloat16, FloatToBfloat16);
    }
  }
}

TEST(MpiCommunicatorTest, Sums) {
  ExpectReduced<float>(3, 10, DataType::kFloat32, Reduction::kSum);
  ExpectReduced<float>(3, 100'000, DataType::kFloat32, Reduction::kSum);
}

TEST(MpiCommunicatorTest, NothingToReduce) {
  ExpectReduced<float>(2, 0, DataType::kFloat32, Reduction::kAverage);
}

TEST(MpiCommunicatorTest, RingSendsTheLeastPossible) {
  constexpr int kWorldSize = 4;
  constexpr int64_t kCount = 400'000;
  FakeWorld world(kWorldSize);
  const ProgressControl control;
  RunRanks(&world, kWorldSize, [&](MpiCommunicator* communicator, int rank) {
    std::vector<float> values = Values<float>(rank, kCount);
    communicator->AllReduce({"bucket", 0}, values.data(), kCount, DataType::kFloat32,
                            Reduction::kAverage, control);
  });
  EXPECT_EQ(world.num_bytes([](int, int) { return true; }), 2 * (kWorldSize - 1) * kCount * 4);
}

TEST(MpiCommunicatorTest, SmallMessagesTakeLogarithmicallyManySteps) {
  constexpr int kWorldSize = 8;
  FakeWorld world(kWorldSize);
  const ProgressControl control;
  RunRanks(&world, kWorldSize, [&](MpiCommunicator* communicator, int) {
    float value = 1;
    communicator->AllReduce({"bucket", 0}, &value, 1, DataType::kFloat32, Reduction::kAverage,
                            control);
  });
  EXPECT_EQ(world.num_messages(), 3 * kWorldSize);
}

TEST(MpiCommunicatorTest, CollectivesInARowDoNotMix) {
  constexpr int kWorldSize = 3;
  FakeWorld world(kWorldSize);
  const ProgressControl control;
  std::vector<std::string> wrong(kWorldSize);
  RunRanks(&world, kWorldSize, [&](MpiCommunicator* communicator, int rank) {
    for (int64_t i = 0; i < 200; ++i) {
      std::vector<float> values(i % 2 == 0 ? 3 : 9000, static_cast<float>(rank + i));
      // 32768 buckets apart: the same MPI tag.
      communicator->AllReduce({"bucket", 32768 * i}, values.data(),
                              static_cast<int64_t>(values.size()), DataType::kFloat32,
                              Reduction::kAverage, control);
      for (float value : values) {
        if (value != static_cast<float>(1 + i)) wrong[rank] = "collective " + std::to_string(i);
      }
    }
  });
  EXPECT_EQ(wrong, std::vector<std::string>(kWorldSize));
}

TEST(MpiCommunicatorTest, Broadcast) {
  constexpr int kWorldSize = 4;
  for (int root = 0; root < kWorldSize; ++root) {
    for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{65536}, int64_t{300'001}}) {
      FakeWorld world(kWorldSize);
      const ProgressControl control;
      std::vector<std::vector<float>> results(kWorldSize);
      RunRanks(&world, kWorldSize, [&](MpiCommunicator* communicator, int rank) {
        results[rank] = Values<float>(rank, count);
        communicator->Broadcast({"broadcast", 0}, results[rank].data(), count * 4, root, control);
      });
      for (const auto& result : results) EXPECT_EQ(result, Values<float>(root, count));
    }
  }
}

std::string ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(MpiCommunicatorTest, TimeoutNamesTheBucketAndThePeers) {
  FakeWorld world(3);
  const ProgressControl control;
  MpiCommunicator communicator(world.Link(1, milliseconds(20)));
  std::vector<float> values(100'000);
  EXPECT_EQ(ErrorOf([&] {
              communicator.AllReduce({"bucket", 12}, values.data(), 100'000, DataType::kFloat32,
                                     Reduction::kAverage, control);
            }),
            "bucket 12 on rank 1 of 3: nothing moved for 0.02 s; 12 messages missing from rank 0; "
            "12 messages not taken by rank 2");
}

TEST(MpiCommunicatorTest, CancelledReceivesDoNotWriteLater) {
  FakeWorld world(2);
  const ProgressControl control;
  MpiCommunicator late(world.Link(0, milliseconds(20)));
  MpiCommunicator early(world.Link(1, milliseconds(20)));
  std::vector<float> mine(2'000'000, 1.0F);
  std::vector<float> theirs(2'000'000, 2.0F);
  const auto broadcast = [&](MpiCommunicator* communicator, std::vector<float>* values) {
    communicator->Broadcast({"broadcast", 0}, values->data(), 8'000'000, 0, control);
  };
  EXPECT_NE(ErrorOf([&] { broadcast(&early, &theirs); }), "");
  EXPECT_NE(ErrorOf([&] { broadcast(&late, &mine); }), "");
  EXPECT_EQ(theirs, std::vector<float>(2'000'000, 2.0F));
}

TEST(MpiCommunicatorTest, StopEndsTheCollective) {
  FakeWorld world(2);
  ProgressControl control;
  MpiCommunicator communicator(world.Link(0, seconds(100)));
  std::thread stopper([&] {
    std::this_thread::sleep_for(milliseconds(20));
    control.Stop();
  });
  std::vector<float> values(10);
  const std::string error = ErrorOf([&] {
    communicator.AllReduce({"bucket", 1}, values.data(), 10, DataType::kFloat32,
                           Reduction::kAverage, control);
  });
  stopper.join();
  EXPECT_NE(error.find("given up because the communicator was closed"), std::string::npos) << error;
}

TEST(ProgressControlTest, SleepEndsWhenSomebodyWaitsOrStops) {
  const auto sleep_while = [](const std::function<void(ProgressControl*)>& action) {
    ProgressControl control;
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(20));
      action(&control);
    });
    const auto begin = std::chrono::steady_clock::now();
    control.SleepUnlessAwaited(seconds(100));
    other.join();
    return std::chrono::steady_clock::now() - begin;
  };
  EXPECT_LT(sleep_while([](ProgressControl* control) { control->AddWaiter(); }), seconds(50));
  EXPECT_LT(sleep_while([](ProgressControl* control) { control->Stop(); }), seconds(50));
  ProgressControl control;
  control.AddWaiter();
  control.RemoveWaiter();
  const auto begin = std::chrono::steady_clock::now();
  control.SleepUnlessAwaited(milliseconds(20));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(20));
}

TEST(MpiCommunicatorTest, ErrorsOfMpiAreNamed) {
  FakeWorld world(2);
  world.Break();
  const ProgressControl control;
  MpiCommunicator communicator(world.Link(0, seconds(100)));
  float value = 0;
  EXPECT_EQ(ErrorOf([&] {
              communicator.AllReduce({"bucket", 1}, &value, 1, DataType::kFloat32,
                                     Reduction::kAverage, control);
            }),
            "MPI_Irecv failed: the cable was cut");
}

TEST(MpiApiTest, OnlyLoadedLibrariesWithAllFunctionsAreTaken) {
  EXPECT_EQ(ErrorOf([] { MpiApi::Find("/no/such/library.so"); }),
            "not a loaded library: /no/such/library.so");
  EXPECT_EQ(ErrorOf([] { MpiApi::Find("libc.so.6"); }),
            "the MPI library has no function MPI_Isend");
}

}  // namespace
}  // namespace disco_fuse::runtime
