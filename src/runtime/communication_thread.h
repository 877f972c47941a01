#ifndef DISCO_FUSE_RUNTIME_COMMUNICATION_THREAD_H_
#define DISCO_FUSE_RUNTIME_COMMUNICATION_THREAD_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/communicator.h"

namespace disco_fuse::runtime {

/*! \brief One piece of communication; lives from its submission until it has been waited for. */
class CommunicationJob {
 public:
  using Work = std::function<void(Communicator*, const ProgressControl&)>;
  explicit CommunicationJob(Work work) : work_(std::move(work)) {}

 private:
  friend class CommunicationThread;
  Work work_;
  bool done_ = true;          // guarded by the thread's mutex, as is error_
  std::exception_ptr error_;  // what ended the work, if anything
};

/*! \brief Called now and then while a thread waits; it may throw to stop waiting. */
using CheckInterrupt = void (*)();

/*!
 * \brief The thread that runs a communicator's collectives, in the order they were submitted.
 *
 * After a job has failed every later one fails with the same error, since the ranks no longer
 * agree on what comes next.
 */
class CommunicationThread {
 public:
  explicit CommunicationThread(std::unique_ptr<Communicator> communicator);
  ~CommunicationThread();
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;

  int rank() const { return communicator_->rank(); }
  int world_size() const { return communicator_->world_size(); }

  /*! \brief Queues `job`, which must stay where it is until Wait returns or Close has. */
  void Submit(CommunicationJob* job);

  /*! \brief Blocks until `job` has ended and throws what ended it. */
  void Wait(CommunicationJob* job, CheckInterrupt check_interrupt);

  /*! \brief Whether Wait would return at once. */
  bool IsDone(const CommunicationJob& job) const;

  /*! \brief Stops the running collective, fails the queued ones and ends the thread. */
  void Close();

  /*! \brief Processor time the thread has used so far: what overlapping costs the kernels. */
  std::chrono::nanoseconds cpu_time() const;

 private:
  void Loop();

  std::unique_ptr<Communicator> communicator_;
  ProgressControl control_;
  mutable std::mutex mutex_;
  std::condition_variable submitted_;
  std::condition_variable ended_;
  std::deque<CommunicationJob*> queue_;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_COMMUNICATION_THREAD_H_
