#ifndef DISCO_FUSE_RUNTIME_REDUCE_H_
#define DISCO_FUSE_RUNTIME_REDUCE_H_

#include <cstdint>

#include "runtime/communicator.h"

namespace disco_fuse::runtime {

/*! \brief Sets `target` to `(target + values) * scale`, element by element.
 *
 * Sixteen-bit numbers are added and scaled in float and rounded once, to the nearest, ties to even.
 */
void AddThenScale(void* target, const void* values, int64_t count, DataType dtype, double scale);

/*! \brief The value of an IEEE 754 binary16 or of a bfloat16 with these bits. */
float HalfToFloat(uint16_t bits);
float Bfloat16ToFloat(uint16_t bits);

/*! \brief The nearest such number, ties to even; what is too large becomes infinite. */
uint16_t FloatToHalf(float value);
uint16_t FloatToBfloat16(float value);

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_REDUCE_H_
