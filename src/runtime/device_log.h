#ifndef DISCO_FUSE_RUNTIME_DEVICE_LOG_H_
#define DISCO_FUSE_RUNTIME_DEVICE_LOG_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "runtime/cuda_api.h"
#include "runtime/recorder.h"

namespace disco_fuse::runtime {

/*!
 * \brief Events of one step on a GPU, timed by the GPU itself.
 *
 * A mark is a CUDA event that is recorded on a stream; the marks are made once and used again in
 * every step. What does not fit is counted, not kept.
 */
class DeviceLog {
 public:
  DeviceLog(const CudaApi& cuda, int64_t capacity) : cuda_(cuda), capacity_(capacity) {}
  ~DeviceLog() {
    for (CudaEvent mark : marks_) cuda_.event_destroy(mark);
  }
  DeviceLog(const DeviceLog&) = delete;
  DeviceLog& operator=(const DeviceLog&) = delete;

  void Clear() {
    num_used_ = 0;
    spans_.clear();
    num_dropped_ = 0;
  }

  /*! \brief A mark at what `stream` has been given so far. */
  CudaEvent Record(CudaStream stream) {
    if (num_used_ == marks_.size()) {
      CudaEvent mark = nullptr;
      cuda_.Check(cuda_.event_create(&mark, 0), "cuEventCreate");
      marks_.push_back(mark);
    }
    CudaEvent mark = marks_[num_used_];
    cuda_.Check(cuda_.event_record(mark, stream), "cuEventRecord");
    ++num_used_;
    return mark;
  }

  void Add(EventKind kind, int64_t id, CudaEvent start, CudaEvent finish) {
    if (static_cast<int64_t>(spans_.size()) < capacity_) {
      spans_.push_back({kind, id, start, finish});
    } else {
      ++num_dropped_;
    }
  }

  /*! \brief All spans, timed from `begin`; the GPU must have passed every mark. */
  std::vector<Event> Read(CudaEvent begin) const {
    std::vector<Event> events;
    for (const Span& span : spans_) {
      events.push_back(
          {span.kind, span.id, Elapsed(begin, span.start), Elapsed(begin, span.finish)});
    }
    return events;
  }

  bool HasRoom() const { return static_cast<int64_t>(spans_.size()) < capacity_; }
  void CountDropped() { ++num_dropped_; }
  int64_t num_dropped() const { return num_dropped_; }

 private:
  struct Span {
    EventKind kind;
    int64_t id;
    CudaEvent start;
    CudaEvent finish;
  };

  std::chrono::nanoseconds Elapsed(CudaEvent from, CudaEvent to) const {
    float ms = 0;
    cuda_.Check(cuda_.event_elapsed_ms(&ms, from, to), "cuEventElapsedTime");
    return std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(ms) * 1e6));
  }

  CudaApi cuda_;
  int64_t capacity_;
  std::vector<CudaEvent> marks_;
  size_t num_used_ = 0;
  std::vector<Span> spans_;
  int64_t num_dropped_ = 0;
};

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_DEVICE_LOG_H_
