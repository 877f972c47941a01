#include "runtime/communication_thread.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <time.h>

#include <stdexcept>
#include <utility>

namespace disco_fuse::runtime {

namespace {

constexpr auto kInterruptPeriod = std::chrono::milliseconds(50);

}  // namespace

CommunicationThread::CommunicationThread(std::unique_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)), thread_([this] { Loop(); }) {
  pthread_setname_np(thread_.native_handle(), "disco-comm");
}

CommunicationThread::~CommunicationThread() { Close(); }

void CommunicationThread::Submit(CommunicationJob* job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (control_.stopped()) throw std::runtime_error("the communicator is closed");
    job->done_ = false;
    job->error_ = nullptr;
    queue_.push_back(job);
  }
  submitted_.notify_one();
}

void CommunicationThread::Wait(CommunicationJob* job, CheckInterrupt check_interrupt) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!job->done_) {
    control_.AddWaiter();
    try {
      while (!ended_.wait_for(lock, kInterruptPeriod, [job] { return job->done_; })) {
        lock.unlock();
        check_interrupt();
        lock.lock();
      }
    } catch (...) {
      control_.RemoveWaiter();
      throw;
    }
    control_.RemoveWaiter();
  }
  if (job->error_) std::rethrow_exception(job->error_);
}

bool CommunicationThread::IsDone(const CommunicationJob& job) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return job.done_;
}

void CommunicationThread::Close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    control_.Stop();
  }
  submitted_.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::chrono::nanoseconds CommunicationThread::cpu_time() const {
  // The native handle of a joined thread must not be used; the caller closes and asks in turn.
  if (!thread_.joinable()) return std::chrono::nanoseconds(0);
  clockid_t clock;
  timespec time{};
  pthread_getcpuclockid(const_cast<std::thread&>(thread_).native_handle(), &clock);
  clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

void CommunicationThread::Loop() {
  // The default slack of 50 us would double the short sleeps between polls.
  prctl(PR_SET_TIMERSLACK, 1000UL);
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    submitted_.wait(lock, [this] { return control_.stopped() || !queue_.empty(); });
    if (queue_.empty()) return;  // told to stop and nobody is left to be told
    CommunicationJob* job = queue_.front();
    queue_.pop_front();
    if (!failure_ && control_.stopped()) {
      failure_ = std::make_exception_ptr(std::runtime_error("the communicator was closed"));
    }
    if (!failure_) {
      lock.unlock();
      std::exception_ptr error;
      try {
        job->work_(communicator_.get(), control_);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      failure_ = error;
    }
    job->error_ = failure_;
    job->done_ = true;
    // Whoever wakes needs the mutex at once. The job may be gone when it is taken again.
    lock.unlock();
    ended_.notify_all();
    lock.lock();
  }
}

}  // namespace disco_fuse::runtime
