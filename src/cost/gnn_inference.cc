#include "cost/gnn_inference.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace disco_fuse {
namespace {

constexpr float kNegativeSlope = 0.2F; /*!< of LeakyReLU, section 2.1 of the paper */
constexpr float kSumScale = 0.1F; /*!< keeps sums over big groups in the range of the maximum */

int32_t NumNodeFeatures() { return static_cast<int32_t>(NodeFeatureNames().size()); }
int32_t NumGlobalFeatures() { return static_cast<int32_t>(GlobalFeatureNames().size()); }

size_t NumWeights(const GnnShape& shape) {
  size_t hidden = static_cast<size_t>(shape.hidden), dense = static_cast<size_t>(shape.dense);
  size_t nodes = NodeFeatureNames().size(), globals = GlobalFeatureNames().size();
  size_t input = hidden * (nodes + 1);
  size_t layers = static_cast<size_t>(shape.num_layers) * hidden * (hidden + 3);
  size_t head = dense * (2 * hidden + globals + 1) + dense * (dense + 1) + dense + 1;
  return 2 * (nodes + globals) + input + layers + head;
}

/*! \brief out = weight * in, weight row-major [num_out, num_in]. */
void Multiply(const float* weight, const float* in, int32_t num_out, int32_t num_in, float* out) {
  for (int32_t o = 0; o < num_out; ++o) {
    const float* row = weight + static_cast<std::ptrdiff_t>(o) * num_in;
    // Eight sums, so that the compiler may add in vectors.
    float sums[8] = {};
    int32_t i = 0;
    for (; i + 8 <= num_in; i += 8) {
      for (int32_t lane = 0; lane < 8; ++lane) sums[lane] += row[i + lane] * in[i + lane];
    }
    float sum = 0;
    for (float part : sums) sum += part;
    for (; i < num_in; ++i) sum += row[i] * in[i];
    out[o] = sum;
  }
}

/*! \brief Reads one dense layer off `weights`; returns where the next one begins. */
const float* Dense(const float* weights, const std::vector<float>& in, int32_t num_out, bool relu,
                   std::vector<float>* out) {
  int32_t num_in = static_cast<int32_t>(in.size());
  out->resize(num_out);
  Multiply(weights, in.data(), num_out, num_in, out->data());
  const float* bias = weights + static_cast<std::ptrdiff_t>(num_out) * num_in;
  for (int32_t o = 0; o < num_out; ++o) {
    (*out)[o] += bias[o];
    if (relu) (*out)[o] = std::max((*out)[o], 0.0F);
  }
  return bias + num_out;
}

std::vector<float> Standardize(const float* mean_and_scale, const float* in, int32_t size) {
  std::vector<float> out(size);
  for (int32_t i = 0; i < size; ++i)
    out[i] = (in[i] - mean_and_scale[i]) / mean_and_scale[size + i];
  return out;
}

DeviceSpec WithoutLaunch(DeviceSpec device) {
  device.launch_us = 0;
  return device;
}

}  // namespace

struct GnnNetwork::Scratch {
  std::vector<std::vector<int32_t>> senders; /*!< per node: itself and its neighbours */
  std::vector<float> nodes, projected, next; /*!< [nodes, hidden] */
  std::vector<float> sent, received;         /*!< [nodes, heads]: halves of the attention score */
  std::vector<float> shares;                 /*!< of one node and head, per sender */
};

GnnNetwork::GnnNetwork(GnnShape shape, std::vector<float> weights)
    : shape_(shape), weights_(std::move(weights)) {
  bool ok = shape.num_layers >= 1 && shape.hidden >= 1 && shape.num_heads >= 1 &&
            shape.dense >= 1 && shape.hidden % shape.num_heads == 0;
  if (!ok) {
    throw std::invalid_argument(
        "a GNN has layers, heads and widths from 1, and a width that the heads divide");
  }
  if (weights_.empty() || weights_.size() % NumWeights(shape) != 0) {
    throw std::invalid_argument("a GNN of this shape has " + std::to_string(NumWeights(shape)) +
                                " weights, or a multiple of that, got " +
                                std::to_string(weights_.size()));
  }
}

/*! \brief One attention layer on scratch->nodes; returns where the weights of the next begin. */
const float* GnnNetwork::Attention(const float* weights, Scratch* scratch) const {
  const int32_t hidden = shape_.hidden, heads = shape_.num_heads, width = hidden / heads;
  const std::ptrdiff_t stride = hidden;
  const int32_t size = static_cast<int32_t>(scratch->senders.size());
  const float* sender = weights + stride * hidden;
  const float* receiver = sender + hidden;
  const float* bias = receiver + hidden;
  for (int32_t node = 0; node < size; ++node) {
    float* row = scratch->projected.data() + node * stride;
    Multiply(weights, scratch->nodes.data() + node * stride, hidden, hidden, row);
    for (int32_t head = 0; head < heads; ++head) {
      float sent = 0, received = 0;
      for (int32_t i = head * width; i < (head + 1) * width; ++i) {
        sent += row[i] * sender[i];
        received += row[i] * receiver[i];
      }
      scratch->sent[node * heads + head] = sent;
      scratch->received[node * heads + head] = received;
    }
  }
  for (int32_t node = 0; node < size; ++node) {
    const std::vector<int32_t>& from = scratch->senders[node];
    float* out = scratch->next.data() + node * stride;
    const float* before = scratch->nodes.data() + node * stride;
    for (int32_t i = 0; i < hidden; ++i) out[i] = before[i] + bias[i];
    for (int32_t head = 0; head < heads; ++head) {
      std::vector<float>& shares = scratch->shares;
      shares.clear();
      for (int32_t other : from) {
        float score = scratch->sent[other * heads + head] + scratch->received[node * heads + head];
        shares.push_back(score > 0 ? score : kNegativeSlope * score);
      }
      float highest = *std::max_element(shares.begin(), shares.end()), total = 0;
      for (float& share : shares) total += share = std::exp(share - highest);
      for (size_t k = 0; k < from.size(); ++k) {
        const float* row = scratch->projected.data() + from[k] * stride;
        float share = shares[k] / total;
        for (int32_t i = head * width; i < (head + 1) * width; ++i) out[i] += share * row[i];
      }
    }
    for (int32_t i = 0; i < hidden; ++i) out[i] = std::max(out[i], 0.0F);
  }
  std::swap(scratch->nodes, scratch->next);
  return bias + hidden;
}

double GnnNetwork::Run(const GroupFeatures& features) const {
  const int32_t size = static_cast<int32_t>(features.nodes.size()) / NumNodeFeatures();
  const std::ptrdiff_t hidden = shape_.hidden;
  Scratch scratch;
  scratch.senders.resize(size);
  for (int32_t node = 0; node < size; ++node) scratch.senders[node].push_back(node);
  for (size_t edge = 0; edge < features.producer.size(); ++edge) {
    scratch.senders[features.consumer[edge]].push_back(features.producer[edge]);
    scratch.senders[features.producer[edge]].push_back(features.consumer[edge]);
  }
  for (auto* values : {&scratch.nodes, &scratch.projected, &scratch.next}) {
    values->resize(static_cast<size_t>(size) * static_cast<size_t>(hidden));
  }
  for (auto* values : {&scratch.sent, &scratch.received}) {
    values->resize(static_cast<size_t>(size) * static_cast<size_t>(shape_.num_heads));
  }
  const size_t stride = NumWeights(shape_), num_networks = weights_.size() / stride;
  double sum = 0;
  for (size_t network = 0; network < num_networks; ++network) {
    sum += RunOne(weights_.data() + network * stride, features, &scratch);
  }
  return sum / static_cast<double>(num_networks);
}

/*! \brief The output of the network whose weights begin at `scales`. */
double GnnNetwork::RunOne(const float* scales, const GroupFeatures& features,
                          Scratch* scratch) const {
  const int32_t num_features = NumNodeFeatures(), num_globals = NumGlobalFeatures();
  const int32_t size = static_cast<int32_t>(scratch->senders.size());
  const std::ptrdiff_t hidden = shape_.hidden;
  const float* global_scales = scales + 2 * num_features;
  const float* input = global_scales + 2 * num_globals;
  const float* next = input;
  std::vector<float> row;
  for (int32_t node = 0; node < size; ++node) {
    const float* raw = features.nodes.data() + static_cast<std::ptrdiff_t>(node) * num_features;
    next = Dense(input, Standardize(scales, raw, num_features), shape_.hidden, true, &row);
    std::copy(row.begin(), row.end(), scratch->nodes.begin() + node * hidden);
  }
  for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    next = Attention(next, scratch);
  }
  std::vector<float> readout(2 * static_cast<size_t>(hidden), 0.0F), first, second, output;
  for (int32_t node = 0; node < size; ++node) {
    for (std::ptrdiff_t i = 0; i < hidden; ++i) {
      float value = scratch->nodes[node * hidden + i];
      readout[i] += kSumScale * value;
      readout[hidden + i] = std::max(readout[hidden + i], value);  // values are never negative
    }
  }
  std::vector<float> globals = Standardize(global_scales, features.globals.data(), num_globals);
  readout.insert(readout.end(), globals.begin(), globals.end());
  next = Dense(next, readout, shape_.dense, true, &first);
  next = Dense(next, first, shape_.dense, true, &second);
  Dense(next, second, 1, false, &output);
  return output[0];
}

std::vector<double> OpTimesUs(const OpGraph& graph, const RooflineCostModel& roofline) {
  std::vector<Group> singles;
  for (int32_t op = 0; op < graph.num_ops(); ++op) {
    if (!graph.IsAllReduce(op)) singles.push_back({{op}, {op}});
  }
  std::vector<Nanoseconds> times = roofline.Predict(graph, singles);
  std::vector<double> times_us(graph.num_ops(), 0.0);
  for (size_t i = 0; i < singles.size(); ++i) {
    times_us[singles[i].ops[0]] = static_cast<double>(times[i].count()) / 1e3;
  }
  return times_us;
}

GnnCostModel::GnnCostModel(const OpGraph& graph, DeviceSpec device,
                           const std::vector<double>& op_times_us, GnnNetwork network, double least,
                           double most)
    : launch_us_(device.launch_us),
      roofline_(graph, WithoutLaunch(std::move(device)), op_times_us),
      op_times_us_(OpTimesUs(graph, roofline_)),
      network_(std::move(network)),
      least_(least),
      most_(most) {}

std::vector<Nanoseconds> GnnCostModel::Predict(const OpGraph& graph,
                                               const std::vector<Group>& groups) const {
  std::vector<Nanoseconds> kernels = roofline_.Predict(graph, groups);
  FeatureReader reader;
  GroupFeatures features;
  std::vector<Nanoseconds> times;
  for (size_t i = 0; i < groups.size(); ++i) {
    double kernel_us = static_cast<double>(kernels[i].count()) / 1e3;
    double us = kernel_us;
    if (groups[i].ops.size() > 1) {
      reader.Read(graph, groups[i], op_times_us_, kernel_us, &features);
      us *= std::exp(std::clamp(network_.Run(features), least_, most_));
    }
    times.push_back(ToNanoseconds(launch_us_ + us, name_, graph, groups[i]));
  }
  return times;
}

}  // namespace disco_fuse
