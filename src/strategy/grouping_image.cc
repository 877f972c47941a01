#include "strategy/grouping.h"

namespace disco_fuse {

Grouping::Image Grouping::Save() const {
  Image image{{}, copies_, copies_by_group_, priorities_, hash_};
  size_t bytes = 2 * copies_.size() * sizeof(Copy) + priorities_.size() * sizeof(Priority);
  for (const BlockArray* array :
       {&home_, &next_, &num_copies_of_, &group_copies_, &order_, &position_}) {
    bytes += array->num_unsaved() * sizeof(BlockArray::Block);
    image.arrays.push_back(array->Save());
    bytes += image.arrays.back().size() * sizeof(BlockArray::Image);
  }
  image.own_bytes = static_cast<int64_t>(bytes);
  return image;
}

void Grouping::Restore(const Image& image) {
  size_t i = 0;
  for (BlockArray* array : {&home_, &next_, &num_copies_of_, &group_copies_, &order_, &position_}) {
    array->Restore(image.arrays[i++]);
  }
  copies_ = image.copies;
  copies_by_group_ = image.copies_by_group;
  priorities_ = image.priorities;
  hash_ = image.hash;
}

}  // namespace disco_fuse
