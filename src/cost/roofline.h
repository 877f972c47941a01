#ifndef DISCO_FUSE_COST_ROOFLINE_H_
#define DISCO_FUSE_COST_ROOFLINE_H_

#include <map>
#include <string>
#include <vector>

#include "cost/cost_model.h"
#include "cost/loop_nests.h"

namespace disco_fuse {

/*! \brief Shares in (0, 1] of a device's rates that ops of one class reach. */
struct Efficiency {
  double flops = 1;     /*!< of peak_gflops */
  double bandwidth = 1; /*!< of bandwidth_gbps */
};

/*! \brief What the roofline needs to know of a device. */
struct DeviceSpec {
  std::string name;
  double peak_gflops = 0;    /*!< 1e9 operations a second */
  double bandwidth_gbps = 0; /*!< 1e9 bytes a second */
  double launch_us = 0;      /*!< fixed time of every kernel or library call */
  double nest_us = 0;        /*!< fixed time of every further loop nest of a kernel */
  std::map<std::string, Efficiency> efficiency{}; /*!< by Op::op_class; others reach all of it */
};

/*!
 * \brief Bytes and operations against bandwidth and peak, less the traffic that fusion removes.
 *
 *        time of op o                 inside a group: bytes s of its reads and writes vanish
 *     t |        ________ bytes/u    +-- mul' --+ s = its write (inlined: never written)
 *       |_______/                    |          v
 *       |  flops/peak                a -------> sum   s = the read of mul, and the 2nd read of a
 *
 * With peak_c and u_c = 1 / bandwidth_c, the rates that ops of the class c of o reach (the device's
 * times the shares of its efficiency), and t_o = measured time of o, or max(flops_o / peak_c,
 * bytes_o u_c):
 *
 *     t'_o  = max(flops_o / peak_c, t_o - min(s_o u_c, t_o s_o / bytes_o))
 *     group = launch_us + (num_nests - 1) nest_us + sum of t'_o over all members
 *
 * A member inlined in k roots counts k times. s_o holds the write of an inlined member; the write
 * of a root that is no output and is read in its own nest only; reads of inlined members and of
 * roots of the same nest; and every read but the first, within one nest, of any other value.
 */
class RooflineCostModel : public CostModel {
 public:
  /*!
   * \param op_times_us Measured time of each op without launch, or empty.
   * \throws std::invalid_argument naming the field or op that is no positive (op: >= 0) number.
   */
  RooflineCostModel(const OpGraph& graph, DeviceSpec device, std::vector<double> op_times_us);
  const std::string& name() const override { return name_; }
  bool thread_safe() const override { return true; }
  std::vector<Nanoseconds> Predict(const OpGraph& graph,
                                   const std::vector<Group>& groups) const override;
  /*!
   * \brief What remains of an op if all traffic is removed that some strategy removes.
   *
   * A read stays if no other op could have read the value in the same kernel: what the op reads is
   * external, or made by an op that is always a unit of its own, and no other op that can be fused
   * reads it.
   */
  Nanoseconds Floor(const OpGraph& graph, int32_t op) const override;
  /*! \brief Here the write stays too, if the step returns the value or a unit of its own reads it.
   */
  Nanoseconds HomeFloor(const OpGraph& graph, int32_t op) const override;
  Nanoseconds LaunchFloor() const override;
  Nanoseconds NestFloor() const override;
  /*!
   * \brief The bytes at the rate r of the op, less what they may hide behind its operations.
   *
   * With r = min(u, t / bytes), each computation of an op takes at least f = max(its operations,
   * t - r R), where all R removable bytes are gone, and t - r (R - k) if k of them stay. So values
   * of k1 + k2 + ... = k bytes add at least r k - (f - (t - r R)), and if any single one of them is
   * larger than this slack, no less than the sum of max(0, r ki - slack). A further computation
   * (a copy, or one inlined in another root), which no floor counts, takes at least r k less r
   * times what reads and write exceed `bytes` by.
   */
  Nanoseconds TrafficFloor(const OpGraph& graph, int32_t op, int64_t bytes) const override;

 private:
  struct Scratch;
  double GroupUs(const OpGraph& graph, const Group& group, Scratch* scratch) const;
  double MemberUs(const OpGraph& graph, const Group& group, int32_t member, int32_t nest,
                  Scratch* scratch) const;
  double LessTraffic(const OpGraph& graph, int32_t op, int64_t saved_bytes) const;
  int64_t RemovableReads(const OpGraph& graph, int32_t op) const;
  double RateOf(const OpGraph& graph, int32_t op) const;

  std::string name_ = "roofline";
  DeviceSpec device_;
  Hash128 graph_digest_;
  std::vector<double> time_us_;        /*!< per op: t_o */
  std::vector<double> compute_us_;     /*!< per op: flops / peak of its class */
  std::vector<double> us_per_byte_;    /*!< per op: 1 / bandwidth of its class */
  std::vector<int32_t> num_readers_;   /*!< per external value: ops that can be fused */
  std::vector<int32_t> num_consumers_; /*!< per op: the same */
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_COST_ROOFLINE_H_
