#include "runtime/communicator.h"

namespace disco_fuse::runtime {

// Whoever changes what a sleeper looks at holds the mutex, so that it changes before the sleeper
// looks or wakes it.

void ProgressControl::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  awaited_.notify_all();
}

void ProgressControl::AddWaiter() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++num_waiters_;
  }
  awaited_.notify_all();
}

void ProgressControl::SleepUnlessAwaited(std::chrono::nanoseconds time) const {
  std::unique_lock<std::mutex> lock(mutex_);
  awaited_.wait_for(lock, time, [this] { return stopped() || has_waiter(); });
}

}  // namespace disco_fuse::runtime
