#ifndef DISCO_FUSE_RUNTIME_RECORDER_H_
#define DISCO_FUSE_RUNTIME_RECORDER_H_

#include <chrono>
#include <cstdint>
#include <vector>

namespace disco_fuse::runtime {

/*! \brief What an event of a step was. The numbers are read by Python (runtime/events.py). */
enum class EventKind : int64_t { kAllReduce = 0, kStart = 1, kWait = 2, kKernel = 3, kStep = 4 };

struct Event {
  EventKind kind;
  int64_t id;  // bucket; kernel: index of its name
  std::chrono::nanoseconds start;
  std::chrono::nanoseconds finish;
};

/*!
 * \brief Events of the current step on one thread, timed from the step's begin.
 *
 * One writer. Memory is taken once, so that recording costs two clock reads; what does not fit is
 * counted, not kept.
 */
class EventLog {
 public:
  explicit EventLog(int64_t capacity) { events_.reserve(static_cast<size_t>(capacity)); }

  void Clear() {
    events_.clear();
    num_dropped_ = 0;
  }
  void Add(const Event& event) {
    if (events_.size() < events_.capacity()) {
      events_.push_back(event);
    } else {
      ++num_dropped_;
    }
  }
  const std::vector<Event>& events() const { return events_; }
  int64_t num_dropped() const { return num_dropped_; }

 private:
  std::vector<Event> events_;
  int64_t num_dropped_ = 0;
};

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_RECORDER_H_
