#include "cost/allreduce_model.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

namespace disco_fuse {
namespace {

void Require(const char* field, double value) {
  if (std::isfinite(value) && value >= 0) return;
  std::ostringstream out;
  out << "AllReduceModel: " << field << " must be finite and >= 0, got " << value;
  throw std::invalid_argument(out.str());
}

}  // namespace

void AllReduceModel::Check() const {
  Require("small_latency_us", small_latency_us);
  Require("small_us_per_byte", small_us_per_byte);
  Require("large_latency_us", large_latency_us);
  Require("large_us_per_byte", large_us_per_byte);
  Require("threshold_bytes", static_cast<double>(threshold_bytes));
}

Nanoseconds AllReduceModel::Time(int64_t bytes) const {
  bool small = bytes < threshold_bytes;
  double us = small ? small_latency_us + small_us_per_byte * static_cast<double>(bytes)
                    : large_latency_us + large_us_per_byte * static_cast<double>(bytes);
  return Nanoseconds(std::llround(us * 1000.0));
}

Nanoseconds AllReduceModel::PartitionFloor(int64_t total_bytes) const {
  if (total_bytes <= 0) return Nanoseconds(0);
  double total = static_cast<double>(total_bytes);
  double large_size = std::max(total, static_cast<double>(threshold_bytes));
  double rate = large_latency_us / large_size + large_us_per_byte;
  if (threshold_bytes > 0) {
    double small_size = std::min(total, static_cast<double>(threshold_bytes));
    double small_rate = small_latency_us / small_size + small_us_per_byte;
    rate = total < static_cast<double>(threshold_bytes) ? small_rate : std::min(rate, small_rate);
  }
  // Message times are rounded to nanoseconds, half a nanosecond each; stay below all of them.
  double ns = rate * total * 1000.0;
  return Nanoseconds(static_cast<int64_t>(std::floor(ns * (1 - 1e-6))));
}

}  // namespace disco_fuse
