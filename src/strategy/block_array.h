#ifndef DISCO_FUSE_STRATEGY_BLOCK_ARRAY_H_
#define DISCO_FUSE_STRATEGY_BLOCK_ARRAY_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace disco_fuse {

/*!
 * \brief Integers that are copied, kept and restored block by block, as far as blocks differ.
 *
 *     values   | 3 1 4 1 | 5 9 2 6 | 5 3 5 8 |
 *     images      *A        none      *C        block 1 was written since it was last copied
 *     another     *A        *B        *C     => only block 1 is copied between the two
 *
 * An image is an immutable copy of a block, so that two blocks of the same image are equal. Reading
 * goes to the flat values.
 */
class BlockArray {
 public:
  static constexpr int32_t kBlock = 256; /*!< values; the last block may have fewer */
  using Block = std::array<int32_t, kBlock>;
  using Image = std::shared_ptr<const Block>;

  /*! \brief All zero. */
  explicit BlockArray(int32_t size) : values_(size, 0), images_((size + kBlock - 1) / kBlock) {}

  int32_t size() const { return static_cast<int32_t>(values_.size()); }
  int32_t operator[](int32_t i) const { return values_[i]; }
  const std::vector<int32_t>& values() const { return values_; }
  void Set(int32_t i, int32_t value) {
    values_[i] = value;
    images_[i / kBlock].reset();
  }
  /*! \brief How many blocks the next Save copies: those written since they were last copied. */
  int64_t num_unsaved() const { return std::count(images_.begin(), images_.end(), nullptr); }
  /*! \brief What Restore needs; valid until the array is written. */
  const std::vector<Image>& Save() const {
    for (size_t block = 0; block < images_.size(); ++block) {
      if (images_[block] != nullptr) continue;
      auto image = std::make_shared<Block>();
      std::copy(Begin(block), End(block), image->begin());
      images_[block] = std::move(image);
    }
    return images_;
  }
  void Restore(const std::vector<Image>& images) {
    for (size_t block = 0; block < images.size(); ++block) {
      if (images_[block] == images[block]) continue;
      images_[block] = images[block];
      std::copy_n(images[block]->begin(), End(block) - Begin(block),
                  values_.begin() + block * kBlock);
    }
  }

 private:
  std::vector<int32_t>::const_iterator Begin(size_t block) const {
    return values_.begin() + static_cast<std::ptrdiff_t>(block * kBlock);
  }
  std::vector<int32_t>::const_iterator End(size_t block) const {
    return values_.begin() +
           static_cast<std::ptrdiff_t>(std::min((block + 1) * kBlock, values_.size()));
  }

  std::vector<int32_t> values_;
  mutable std::vector<Image> images_; /*!< null where values were written since */
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_STRATEGY_BLOCK_ARRAY_H_
