#ifndef DISCO_FUSE_SIMULATE_TIMELINE_H_
#define DISCO_FUSE_SIMULATE_TIMELINE_H_

#include <cstdint>
#include <vector>

#include "cost/cost_model.h"
#include "simulate/memory.h"

namespace disco_fuse {

/*! \brief Lanes on which units run one after the other. */
enum class Stream : int32_t { kCompute = 0, kCommunication = 1 };
constexpr int32_t kNumStreams = 2;

/*! \brief One unit (named by its representative) on its stream. */
struct Event {
  int32_t unit;
  Stream stream;
  Nanoseconds start;
  Nanoseconds finish;
  bool operator==(const Event& other) const {
    return unit == other.unit && stream == other.stream && start == other.start &&
           finish == other.finish;
  }
};

/*! \brief What one training step would look like. */
struct Timeline {
  std::vector<Event> events; /*!< in emitted order */
  Nanoseconds makespan{0};
  Nanoseconds compute{0};    /*!< sum over compute units without contention */
  Nanoseconds allreduce{0};  /*!< time during which the communication stream is busy */
  Nanoseconds overlapped{0}; /*!< part of `allreduce` during which a compute unit runs */
  /*! \brief Units from the first to the last, each of which started when the one before ended. */
  std::vector<int32_t> critical_path;
  StepMemory memory;
  bool operator==(const Timeline& other) const {
    return events == other.events && makespan == other.makespan && compute == other.compute &&
           allreduce == other.allreduce && overlapped == other.overlapped &&
           critical_path == other.critical_path && memory == other.memory;
  }
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SIMULATE_TIMELINE_H_
