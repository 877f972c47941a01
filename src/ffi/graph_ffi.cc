#include <tvm/ffi/reflection/registry.h>

#include <string>
#include <vector>

#include "ffi/convert.h"

namespace disco_fuse {
namespace {

using Strings = ffi::Array<ffi::String>;

/*! \brief One row of `numbers` per op; the columns are listed in python/disco_fuse/graph.py. */
std::vector<Op> ToOps(const Strings& names, const Strings& signatures, const Strings& collectives,
                      const Strings& merge_classes, const Strings& op_classes,
                      const std::vector<int64_t>& numbers, const std::vector<double>& flops) {
  std::vector<Op> ops(names.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    const int64_t* row = numbers.data() + 8 * i;
    Op& op = ops[i];
    op.name = std::string(names[i]);
    op.signature = std::string(signatures[i]);
    op.collective = std::string(collectives[i]);
    op.merge_class = std::string(merge_classes[i]);
    op.op_class = std::string(op_classes[i]);
    op.kind = static_cast<OpKind>(Narrow(row[0]));
    op.pattern = static_cast<OpPattern>(Narrow(row[1]));
    op.num_elements = row[2];
    op.rows = row[3];
    op.bytes_read = row[4];
    op.bytes_written = row[5];
    op.is_output = row[6] != 0;
    op.is_donated = row[7] != 0;
    op.flops = flops[i];
  }
  return ops;
}

OpGraphRef CreateGraph(Strings names, Strings signatures, Strings collectives,
                       Strings merge_classes, Strings op_classes, ffi::TensorView numbers,
                       ffi::TensorView flops, ffi::TensorView edges, ffi::TensorView reads) {
  std::vector<Op> ops = ToOps(names, signatures, collectives, merge_classes, op_classes,
                              ToVector<int64_t>(numbers), ToVector<double>(flops));
  std::vector<int64_t> edge_rows = ToVector<int64_t>(edges);
  std::vector<Edge> edge_list;
  for (size_t i = 0; i + 4 < edge_rows.size(); i += 5) {
    edge_list.push_back({Narrow(edge_rows[i]), Narrow(edge_rows[i + 1]), edge_rows[i + 2],
                         edge_rows[i + 3] != 0, edge_rows[i + 4] != 0});
  }
  std::vector<int64_t> read_rows = ToVector<int64_t>(reads);
  std::vector<ExternalRead> read_list;
  for (size_t i = 0; i + 2 < read_rows.size(); i += 3) {
    read_list.push_back({Narrow(read_rows[i]), Narrow(read_rows[i + 1]), read_rows[i + 2]});
  }
  return Translate([&] {
    return OpGraphRef(OpGraph::Create(std::move(ops), std::move(edge_list), std::move(read_list)));
  });
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<OpGraphObj>();
  refl::GlobalDef()
      .def("disco_fuse.graph.create", CreateGraph)
      .def("disco_fuse.graph.digest",
           [](OpGraphRef graph) { return ffi::String(ToHex(graph->graph.digest())); });
}

}  // namespace disco_fuse
