#include "simulate/simulate.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace disco_fuse {
namespace {

/*! \brief Time during which both an event of `a` and one of `b` run; each list is sequential. */
Nanoseconds Overlap(const std::vector<Event>& a, const std::vector<Event>& b) {
  Nanoseconds total(0);
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    Nanoseconds begin = std::max(a[i].start, b[j].start);
    Nanoseconds end = std::min(a[i].finish, b[j].finish);
    if (end > begin) total += end - begin;
    if (a[i].finish < b[j].finish) {
      ++i;
    } else {
      ++j;
    }
  }
  return total;
}

/*! \brief From the unit that ends last back through whatever each unit had to wait for. */
std::vector<int32_t> CriticalPath(const UnitGraph& units, const std::vector<int32_t>& order,
                                  const Streams& streams) {
  // What stood before a unit on its own stream, and on the compute stream, which issues buckets.
  std::vector<std::array<int32_t, 2>> issued_before(units.num_units());
  std::array<int32_t, kNumStreams> last;
  last.fill(-1);
  int32_t unit = -1;
  for (int32_t next : order) {
    int32_t stream = static_cast<int32_t>(StreamOf(units.kind(next)));
    issued_before[next] = {last[stream], last[static_cast<int32_t>(Stream::kCompute)]};
    last[stream] = next;
    if (unit < 0 || streams.finish(next) > streams.finish(unit)) unit = next;
  }
  std::vector<int32_t> path;
  while (unit >= 0) {
    path.push_back(units.representative(unit));
    int32_t cause = -1;
    auto consider = [&](int32_t candidate) {
      if (cause >= 0 || candidate < 0) return;
      if (streams.finish(candidate) == streams.start(unit)) cause = candidate;
    };
    for (int32_t before : units.predecessors(unit)) consider(before);
    for (int32_t before : issued_before[unit]) consider(before);
    unit = cause;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace

Streams::Streams(int32_t contention_permille) : contention_permille_(contention_permille) {
  if (contention_permille < 1000) {
    throw std::invalid_argument("contention must be >= 1 (1000 permille), got " +
                                std::to_string(contention_permille) + " permille");
  }
  free_.fill(Nanoseconds(0));
}

void Streams::Reset(const UnitGraph& units) {
  free_.fill(Nanoseconds(0));
  start_.assign(units.num_units(), Nanoseconds(0));
  finish_.assign(units.num_units(), Nanoseconds(0));
}

Nanoseconds Streams::FinishOfCompute(Nanoseconds start, Nanoseconds work) const {
  Nanoseconds busy_until = free(Stream::kCommunication);
  if (busy_until <= start || contention_permille_ == 1000) return start + work;
  // The work that fits into the busy time, rounded down; what does not fit runs at full speed.
  Nanoseconds fits((busy_until - start).count() * 1000 / contention_permille_);
  if (work > fits) return busy_until + (work - fits);
  return start + Nanoseconds(work.count() * contention_permille_ / 1000);
}

void Streams::Issue(const UnitGraph& units, int32_t unit, Nanoseconds duration) {
  Stream stream = StreamOf(units.kind(unit));
  Nanoseconds start = std::max(free(stream), free(Stream::kCompute));
  if (stream == Stream::kCompute) start = free(Stream::kCompute);
  for (int32_t before : units.predecessors(unit)) start = std::max(start, finish_[before]);
  start_[unit] = start;
  finish_[unit] = stream == Stream::kCompute ? FinishOfCompute(start, duration) : start + duration;
  free_[static_cast<int32_t>(stream)] = finish_[unit];
}

Timeline Simulate(const UnitGraph& units, const std::vector<int32_t>& order,
                  const std::vector<Nanoseconds>& durations, int32_t contention_permille) {
  Streams streams(contention_permille);
  streams.Reset(units);
  Timeline timeline;
  std::array<std::vector<Event>, kNumStreams> lanes;
  for (int32_t unit : order) {
    streams.Issue(units, unit, durations[unit]);
    Stream stream = StreamOf(units.kind(unit));
    Event event{units.representative(unit), stream, streams.start(unit), streams.finish(unit)};
    timeline.events.push_back(event);
    lanes[static_cast<int32_t>(stream)].push_back(event);
    timeline.makespan = std::max(timeline.makespan, event.finish);
    (stream == Stream::kCompute ? timeline.compute : timeline.allreduce) += durations[unit];
  }
  timeline.overlapped = Overlap(lanes[0], lanes[1]);
  timeline.critical_path = CriticalPath(units, order, streams);
  return timeline;
}

}  // namespace disco_fuse
