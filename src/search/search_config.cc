#include "search/search_config.h"

#include <cmath>
#include <sstream>
#include <stdexcept>

namespace disco_fuse {
namespace {

template <typename T>
void Require(bool ok, const char* field, const T& value, const char* allowed) {
  if (ok) return;
  std::ostringstream out;
  out << "SearchConfig: " << field << " must be " << allowed << ", got " << value;
  throw std::invalid_argument(out.str());
}

}  // namespace

void SearchConfig::Check() const {
  Require(std::isfinite(alpha) && alpha >= 1, "alpha", alpha, "finite and >= 1");
  Require(beta >= 1, "beta", beta, ">= 1");
  Require(num_chains >= 0, "num_chains", num_chains, ">= 0");
  Require(patience >= 1, "patience", patience, ">= 1");
  Require(children_per_pop >= 1, "children_per_pop", children_per_pop, ">= 1");
  Require(queue_cap != 0, "queue_cap", queue_cap, ">= 1 or no cap");
  Require(image_bytes >= 0, "image_bytes", image_bytes, ">= 0");
  Require(num_tries >= 1, "num_tries", num_tries, ">= 1");
  Require(!methods.empty(), "methods", "none", "at least one kind of edit");
  Require(num_starts >= 1, "num_starts", num_starts, ">= 1");
  Require(num_threads >= 1, "num_threads", num_threads, ">= 1");
  for (EditKind kind : methods) {
    bool known = static_cast<int32_t>(kind) >= 0 && static_cast<int32_t>(kind) < kNumEditKinds;
    Require(known, "methods", static_cast<int32_t>(kind), "kinds of edits");
    Require(num_chains == 0 || IsFusion(kind), "num_chains", num_chains,
            "0 unless all methods are fusions");
  }
  Require(report_every >= 1, "report_every", report_every, ">= 1");
  Require(limits.max_group_ops >= 1, "max_group_ops", limits.max_group_ops, ">= 1");
  Require(limits.max_group_args >= 1, "max_group_args", limits.max_group_args, ">= 1");
}

const char* StopReasonName(StopReason reason) {
  switch (reason) {
    case StopReason::kQueueEmpty:
      return "queue-empty";
    case StopReason::kPatience:
      return "patience";
    case StopReason::kMaxSteps:
      return "max-steps";
    case StopReason::kTimeLimit:
      return "time-limit";
    case StopReason::kInterrupted:
      return "interrupted";
    case StopReason::kExhausted:
      return "exhausted";
  }
  throw std::logic_error("unknown stop reason");
}

}  // namespace disco_fuse
