#include "search/message_floor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace disco_fuse {
namespace {

constexpr int32_t kNumSteps = 1024;
constexpr int32_t kMaxMessages = 100000; /*!< more are not followed: the bound stays lower */
constexpr double kNever = std::numeric_limits<double>::infinity();

double Ns(Nanoseconds time) { return static_cast<double>(time.count()); }

/*! \brief Gradients in order of own time per byte; prefix sums over those added so far. */
class Knapsack {
 public:
  explicit Knapsack(size_t size) : bytes_(size + 1, 0), own_(size + 1, 0) {
    while (2 * top_ <= size) top_ *= 2;
  }
  void Add(size_t place, double bytes, double own) {
    for (size_t i = place + 1; i < bytes_.size(); i += i & (~i + 1)) {
      bytes_[i] += bytes;
      own_[i] += own;
    }
    total_ += bytes;
  }
  double total() const { return total_; }
  /*! \brief Least own time of a fractional choice of `bytes` <= total(). */
  double LeastOwn(double bytes, const std::vector<double>& rate) const {
    size_t place = 0;
    double own = 0;
    for (size_t step = top_; step > 0; step /= 2) {
      if (place + step >= bytes_.size() || bytes_[place + step] > bytes) continue;
      place += step;
      bytes -= bytes_[place];
      own += own_[place];
    }
    // Whatever is left comes from the gradient at `place`, or is a rounding error.
    return place < rate.size() ? own + bytes * rate[place] : own;
  }

 private:
  // Fenwick trees (Fenwick, "A new data structure for cumulative frequency tables", 1994).
  std::vector<double> bytes_;
  std::vector<double> own_;
  size_t top_ = 1;
  double total_ = 0;
};

/*! \brief V(w), from below, at kNumSteps + 1 equally spaced w from 0 to all bytes. */
std::vector<double> LeastCompute(const std::vector<GradientFloor>& gradients, double all_bytes) {
  size_t size = gradients.size();
  auto rate_of = [&](size_t i) {
    return Ns(gradients[i].own) / static_cast<double>(gradients[i].bytes);
  };
  std::vector<size_t> by_rate(size), by_shared(size), place(size);
  std::iota(by_rate.begin(), by_rate.end(), 0);
  by_shared = by_rate;
  std::sort(by_rate.begin(), by_rate.end(),
            [&](size_t a, size_t b) { return rate_of(a) < rate_of(b); });
  std::sort(by_shared.begin(), by_shared.end(),
            [&](size_t a, size_t b) { return gradients[a].shared < gradients[b].shared; });
  std::vector<double> rate(size);
  for (size_t i = 0; i < size; ++i) {
    place[by_rate[i]] = i;
    rate[i] = rate_of(by_rate[i]);
  }
  double first = kNever;  // some gradient is complete in every non-empty set
  for (const GradientFloor& gradient : gradients) {
    first = std::min(first, Ns(gradient.shared) + Ns(gradient.own));
  }
  std::vector<double> least(kNumSteps + 1, kNever);
  Knapsack knapsack(size);
  for (size_t i : by_shared) {
    knapsack.Add(place[i], static_cast<double>(gradients[i].bytes), Ns(gradients[i].own));
    for (int32_t step = 0; step <= kNumSteps; ++step) {
      double bytes = all_bytes * step / kNumSteps;
      if (bytes > knapsack.total() * (1 + 1e-12)) break;
      double own = knapsack.LeastOwn(std::min(bytes, knapsack.total()), rate);
      least[step] = std::min(least[step], Ns(gradients[i].shared) + own);
    }
  }
  for (double& value : least) value = std::max(value, first) * (1 - 1e-9);
  return least;
}

struct Line {
  double latency; /*!< ns */
  double per_byte;
  double At(double bytes) const { return latency + per_byte * bytes; }
};

/*! \brief Lines below the time of every message of up to all_bytes bytes, which do not fall. */
std::vector<Line> LinesBelow(const AllReduceModel& model, double all_bytes) {
  double threshold = static_cast<double>(model.threshold_bytes);
  Line small{1e3 * model.small_latency_us, 1e3 * model.small_us_per_byte};
  Line large{1e3 * model.large_latency_us, 1e3 * model.large_us_per_byte};
  if (threshold <= 0 || threshold > all_bytes) return {threshold <= 0 ? large : small};
  // The corners of the curve: no bytes, just below the threshold, all bytes.
  double bend = std::min(small.At(threshold), large.At(threshold));
  double begin = std::min(small.latency, bend);
  double end = threshold < all_bytes ? large.At(all_bytes) : bend;
  Line whole{begin, (end - begin) / all_bytes};
  if (whole.At(threshold) <= bend) return {whole};
  Line first{begin, (bend - begin) / threshold};
  double slope = (end - bend) / (all_bytes - threshold);
  if (bend >= slope * threshold) return {first, {bend - slope * threshold, slope}};
  // A line that begins below zero would reward many messages: the best one through the origin.
  return {first, {0, std::min(bend / threshold, end / all_bytes)}};
}

/*! \brief Whether real message sizes exist for which (1) holds with `limit`, less `after`. */
bool Fits(const std::vector<double>& least, double all_bytes, const Line& line, double limit) {
  double sent = all_bytes;  // w_k
  for (int32_t messages = 1; messages <= kMaxMessages; ++messages) {
    auto step = static_cast<size_t>(sent / all_bytes * kNumSteps);
    double slack = limit - least[std::min<size_t>(step, kNumSteps)] - messages * line.latency;
    if (slack < 0) return false;
    if (line.per_byte * all_bytes <= slack) return true;
    double before = all_bytes - slack / line.per_byte;
    if (before >= sent) return false;
    sent = before;
  }
  return true;
}

double LeastLimit(const std::vector<double>& least, double all_bytes, const Line& line) {
  double low = 0;
  double high = least.back() + line.latency + line.per_byte * all_bytes;  // one message fits
  for (int32_t i = 0; i < 50; ++i) {
    double middle = (low + high) / 2;
    (Fits(least, all_bytes, line, middle) ? high : low) = middle;
  }
  return low;
}

/*! \brief The largest bound of (2). */
double AroundOneGradient(const std::vector<GradientFloor>& gradients, const Line& line) {
  auto cheaper = [&](const GradientFloor& gradient) {
    return std::min(Ns(gradient.own), line.per_byte * static_cast<double>(gradient.bytes));
  };
  double others = 0;
  for (const GradientFloor& gradient : gradients) others += cheaper(gradient);
  double bound = 0;
  for (const GradientFloor& one : gradients) {
    double itself = Ns(one.shared) + Ns(one.own) + line.At(static_cast<double>(one.bytes));
    bound = std::max(bound, itself + others - cheaper(one));
  }
  return bound * (1 - 1e-9);
}

}  // namespace

Nanoseconds MessageFloor(const std::vector<GradientFloor>& gradients,
                         const AllReduceModel& allreduce) {
  std::vector<GradientFloor> sent;
  Nanoseconds after = Nanoseconds::max();
  double all_bytes = 0;
  for (const GradientFloor& gradient : gradients) {
    after = std::min(after, gradient.after);
    if (gradient.bytes <= 0) continue;
    sent.push_back(gradient);
    all_bytes += static_cast<double>(gradient.bytes);
  }
  if (sent.empty()) return Nanoseconds(0);
  std::vector<double> least = LeastCompute(sent, all_bytes);
  double bound = 0;
  for (const Line& line : LinesBelow(allreduce, all_bytes)) {
    bound = std::max(bound, LeastLimit(least, all_bytes, line));
    bound = std::max(bound, AroundOneGradient(sent, line));
  }
  // Each message, of which there are no more than gradients, is rounded by half a nanosecond.
  bound = std::max(0.0, std::floor(bound - static_cast<double>(sent.size()) / 2));
  return Nanoseconds(static_cast<int64_t>(bound)) + after;
}

}  // namespace disco_fuse
