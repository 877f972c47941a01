#include "search/lineage.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace disco_fuse {

int32_t Lineage::Add(int32_t parent, std::vector<Edit> edits) {
  nodes_.push_back({parent, std::move(edits)});
  return static_cast<int32_t>(nodes_.size()) - 1;
}

int32_t Lineage::StartOf(int32_t node) const {
  while (node >= 0) node = nodes_[node].parent;
  return -1 - node;
}

std::vector<Edit> Lineage::EditsBetween(int32_t ancestor, int32_t node) const {
  std::vector<Edit> edits;
  for (; node >= 0 && node != ancestor; node = nodes_[node].parent) {
    edits.insert(edits.end(), nodes_[node].edits.rbegin(), nodes_[node].edits.rend());
  }
  std::reverse(edits.begin(), edits.end());
  return edits;
}

int32_t Lineage::Distance(int32_t ancestor, int32_t node) const {
  int32_t distance = 0;
  for (; node != ancestor; node = nodes_[node].parent) ++distance;
  return distance;
}

void Lineage::Rebuild(const Checkpoint& from, int32_t node, Grouping* grouping) const {
  grouping->Restore(from.image);
  for (const Edit& edit : EditsBetween(from.node, node)) {
    if (ApplyEdit(limits_, edit, grouping).allowed()) continue;
    throw std::logic_error("an edit of a strategy that waited can not be repeated");
  }
}

}  // namespace disco_fuse
