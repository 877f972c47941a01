#ifndef DISCO_FUSE_COST_GNN_INFERENCE_H_
#define DISCO_FUSE_COST_GNN_INFERENCE_H_

#include <cstdint>
#include <vector>

#include "cost/cost_model.h"
#include "cost/group_features.h"
#include "cost/roofline.h"

namespace disco_fuse {

/*! \brief Sizes of a graph attention network. */
struct GnnShape {
  int32_t num_layers = 0;
  int32_t hidden = 0; /*!< of a node, over all heads */
  int32_t num_heads = 0;
  int32_t dense = 0; /*!< of the two hidden layers behind the readout */
};

/*!
 * \brief Graph attention (Velickovic et al., "Graph Attention Networks", ICLR 2018) over a group.
 *
 *     node rows --> dense --> [attention + residual] x layers --> sum / 10, max --+
 *     globals ------------------------------------------------------------------- dense x 3 --> y
 *
 * Data edges carry messages in both directions, and every node sends one to itself. All numbers lie
 * in one flat array, in the order in which they are used, matrices as [outputs, inputs]: means and
 * scales of the node features, of the global features, the input layer (weight, bias), for each
 * attention layer weight, attention of the sender, of the receiver, bias, and three dense layers.
 * Several networks of one shape may follow each other in the array: the output is their mean.
 */
class GnnNetwork {
 public:
  /*! \throws std::invalid_argument if the sizes are not positive, or the array does not fit them.
   */
  GnnNetwork(GnnShape shape, std::vector<float> weights);
  /*! \brief The output y for one group. */
  double Run(const GroupFeatures& features) const;

 private:
  struct Scratch;
  double RunOne(const float* scales, const GroupFeatures& features, Scratch* scratch) const;
  const float* Attention(const float* weights, Scratch* scratch) const;

  GnnShape shape_;
  std::vector<float> weights_;
};

/*!
 * \brief Corrects the roofline by what a network has learned.
 *
 * A group of several members costs launch_us plus the roofline's time without launch times exp(y),
 * with y cut off at the least and the greatest value seen in training. A single op costs what the
 * roofline says, which is its measured time.
 */
class GnnCostModel : public CostModel {
 public:
  /*! \param device Of the roofline; its launch_us is what every kernel costs besides.
   *  \param least, most Limits of y. */
  GnnCostModel(const OpGraph& graph, DeviceSpec device, const std::vector<double>& op_times_us,
               GnnNetwork network, double least, double most);
  const std::string& name() const override { return name_; }
  bool thread_safe() const override { return true; }
  std::vector<Nanoseconds> Predict(const OpGraph& graph,
                                   const std::vector<Group>& groups) const override;

 private:
  std::string name_ = "gnn";
  double launch_us_;
  RooflineCostModel roofline_; /*!< without launch */
  std::vector<double> op_times_us_;
  GnnNetwork network_;
  double least_;
  double most_;
};

/*! \brief Times of all ops alone as `roofline`, a model without launch, says; 0 for collectives. */
std::vector<double> OpTimesUs(const OpGraph& graph, const RooflineCostModel& roofline);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_COST_GNN_INFERENCE_H_
