#include "search/edit_effects.h"

#include "search/neighbourhood.h"

namespace disco_fuse {

EditEffects EffectsOf(const OpGraph& graph, const FusionLimits& limits, const CostModel& model,
                      const Cluster& cluster, const Strategy& strategy,
                      const std::vector<Edit>& edits) {
  Grouping base(graph);
  base.Load(strategy);
  Neighbourhood near(graph, model, cluster);
  EditEffects result;
  result.makespan = near.Settle(base);
  Grouping changed = base;
  for (const Edit& edit : edits) {
    EditEffect effect;
    effect.decision = ApplyEdit(limits, edit, &changed);
    if (effect.decision.allowed()) {
      near.Price({&changed});
      effect.makespan = near.Schedule(0);
      changed = base;
    }
    result.effects.push_back(effect);
  }
  return result;
}

}  // namespace disco_fuse
