#ifndef DISCO_FUSE_KERNELS_BUCKET_TEXT_H_
#define DISCO_FUSE_KERNELS_BUCKET_TEXT_H_

#include <string>
#include <utility>
#include <vector>

#include "kernels/bucket_spec.h"

namespace disco_fuse {

/*! \brief The shortest decimal form that reads back as the same number, in every locale. */
std::string NumberText(double value);

/*! \brief A C literal of the number rounded to `type`, which is float32 or float64. */
std::string LiteralText(double value, ElementType type);

/*! \brief "float" or "double", the C type of float32 or float64. */
const char* CTypeOf(ElementType type);

/*!
 * \brief C statements that turn g (gradient), p (parameter) and the states s0, s1 into new ones.
 *
 * They read and assign variables g, p, s0, s1 and read scalars k[0], k[1], k[2], all of the C type
 * of `type`, and follow, operation by operation, the formulas of
 * python/disco_fuse/frontend/optimizer. Each line starts with `indent`.
 */
std::string UpdateStatements(const UpdateRule& rule, ElementType type, const std::string& indent);

/*! \brief Entries of a source with their arguments in order; launch shapes are left to the caller.
 */
GeneratedEntry PackEntry(const BucketSpec& spec, GeneratedEntry::Passing passing);
GeneratedEntry UnpackEntry(const BucketSpec& spec, GeneratedEntry::Passing passing);

/*! \brief Replaces every "@key@" of `text`, for pairs of key and value. */
std::string Substitute(std::string text,
                       const std::vector<std::pair<std::string, std::string>>& values);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_KERNELS_BUCKET_TEXT_H_
