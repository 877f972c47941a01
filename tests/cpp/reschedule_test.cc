#include "simulate/reschedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "search/edit_sampler.h"
#include "search/rng.h"
#include "simulate/schedule.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

using Ids = std::vector<int32_t>;

std::set<int32_t> ToSet(const Ids& ids) { return {ids.begin(), ids.end()}; }

/*! \brief Forward, backward with a gradient a layer, and updates that may wait for all of them. */
OpGraph TrainingGraph(Rng* rng) {
  GraphBuilder builder;
  Ids forward{builder.Elemwise({})}, gradients, averages;
  int32_t num_layers = 1 + rng->Below(6);
  for (int32_t i = 0; i < num_layers; ++i) {
    forward.push_back(builder.Elemwise({builder.Library({forward.back()}), forward.back()}));
  }
  int32_t dy = builder.Reduce({forward.back()});
  for (int32_t i = num_layers - 1; i >= 0; --i) {
    dy = builder.Elemwise({builder.Elemwise({dy, forward[i]}), forward[i + 1]});
    gradients.push_back(rng->Below(2) == 0 ? builder.Library({dy, forward[i]})
                                           : builder.Reduce({dy}));
    averages.push_back(builder.AllReduce(gradients.back()));
  }
  int32_t norm = -1;
  if (rng->Below(3) == 0) norm = builder.Reduce(averages);
  int32_t rate = builder.Elemwise({});
  for (int32_t average : averages) {
    Ids reads{average, rate};
    if (norm >= 0) reads.push_back(norm);
    int32_t update = builder.Elemwise({builder.Elemwise(reads)});
    builder.op(update).is_output = true;
    builder.Before(forward[rng->Below(num_layers)], update);
  }
  return builder.Build();
}

/*! \brief Anything goes: collectives of collectives, donation, library calls, dead ends. */
OpGraph WildGraph(Rng* rng) {
  GraphBuilder builder;
  int32_t num_ops = 4 + rng->Below(40);
  for (int32_t id = 0; id < num_ops; ++id) {
    Ids producers;
    for (int32_t p = std::max(0, id - 12); p < id; ++p) {
      if (rng->Below(std::min(id, 12)) < 2) producers.push_back(p);
    }
    int32_t kind = rng->Below(10);
    if (kind < 2 && !producers.empty()) {
      builder.AllReduce(producers[0]);
    } else if (kind == 2) {
      builder.Library(producers);
    } else if (kind == 3) {
      builder.Reduce(producers);
    } else {
      builder.Elemwise(producers);
    }
    if (id > 0 && rng->Below(5) == 0) builder.Before(rng->Below(id), id);
    builder.op(id).is_output = rng->Below(8) == 0;
  }
  return builder.Build();
}

/*! \brief A strategy, its units from scratch, and its full schedule. */
class Reference {
 public:
  Reference(const Grouping& grouping, int32_t permille, int64_t longest)
      : scheduler_(permille), durations_(grouping.graph().num_ops(), 0) {
    units_.Build(grouping);
    std::vector<Nanoseconds> by_unit;
    for (int32_t unit = 0; unit < units_.num_units(); ++unit) {
      int64_t ns = static_cast<int64_t>(units_.content(unit).hi >> 33) % (longest + 1);
      durations_[units_.representative(unit)] = ns;
      by_unit.push_back(Nanoseconds(ns));
    }
    makespan_ = scheduler_.Run(units_, by_unit);
  }
  const UnitGraph& units() const { return units_; }
  const std::vector<int64_t>& durations() const { return durations_; }
  Nanoseconds makespan() const { return makespan_; }
  Ids Order() const { return scheduler_.RepresentativeOrder(units_); }

 private:
  UnitGraph units_;
  ListScheduler scheduler_;
  std::vector<int64_t> durations_;
  Nanoseconds makespan_{0};
};

void ExpectSameUnits(const LiveUnits& live, const UnitGraph& units) {
  ASSERT_EQ(live.num_units(), units.num_units());
  int32_t num_buckets = 0;
  for (int32_t unit = 0; unit < units.num_units(); ++unit) {
    int32_t name = units.representative(unit);
    num_buckets += units.kind(unit) == UnitKind::kBucket ? 1 : 0;
    ASSERT_TRUE(live.exists(name));
    EXPECT_EQ(live.content(name), units.content(unit));
    EXPECT_EQ(live.IsBucket(name), units.kind(unit) == UnitKind::kBucket);
    EXPECT_EQ(live.bucket_bytes(name), units.bucket_bytes(unit));
    Ids before, after;
    for (int32_t other : units.predecessors(unit)) before.push_back(units.representative(other));
    for (int32_t other : units.successors(unit)) after.push_back(units.representative(other));
    EXPECT_EQ(ToSet(live.predecessors(name)), ToSet(before));
    EXPECT_EQ(live.predecessors(name).size(), before.size());
    EXPECT_EQ(ToSet(live.successors(name)), ToSet(after));
    EXPECT_EQ(live.successors(name).size(), after.size());
  }
  EXPECT_EQ(live.num_buckets(), num_buckets);
}

/*! \brief A walk over strategies of one graph, each judged in both ways. */
class Walk {
 public:
  Walk(const OpGraph& graph, int32_t permille, int64_t longest)
      : permille_(permille), longest_(longest), live_(graph), rescheduler_(graph, permille) {}

  void Visit(const Grouping& grouping) {
    Reference reference(grouping, permille_, longest_);
    durations_ = reference.durations();
    live_.MoveTo(grouping);
    ExpectSameUnits(live_, reference.units());
    EXPECT_EQ(rescheduler_.Run(live_, durations_, /*in_full=*/true), reference.makespan());
    EXPECT_EQ(rescheduler_.order(), reference.Order());
    EXPECT_EQ(rescheduler_.Run(live_, durations_, /*in_full=*/false), reference.makespan());
  }
  void Settle(const Grouping& grouping) {
    Visit(grouping);
    rescheduler_.SetBase(live_, durations_);
  }
  void Return(const Grouping& base) {
    live_.Undo();
    UnitGraph units;
    units.Build(base);
    ExpectSameUnits(live_, units);
  }

 private:
  int32_t permille_;
  int64_t longest_;
  std::vector<int64_t> durations_;
  LiveUnits live_;
  Rescheduler rescheduler_;
};

/*! \brief Children of a base that moves now and then, to a child or back to any earlier strategy.
 */
int64_t RandomWalk(const OpGraph& graph, Rng* rng) {
  FusionLimits limits;
  limits.bucket_neighbours = BucketNeighbours::kProductionOrder;
  EditSampler sampler(graph, limits, 8);
  Walk walk(graph, 1000 + 250 * rng->Below(4), rng->Below(2) == 0 ? 3 : 1000);
  Grouping base(graph);
  walk.Settle(base);
  std::vector<Strategy> seen;
  int64_t num_edits = 0;
  for (int32_t step = 0; step < 12 && !::testing::Test::HasFailure(); ++step) {
    Grouping child = base;
    for (int32_t i = rng->Below(5); i >= 0; --i) {
      Edit edit;
      EditKind kind = static_cast<EditKind>(rng->Below(kNumEditKinds));
      num_edits += sampler.ApplyRandom(kind, rng, &child, &edit) ? 1 : 0;
    }
    walk.Visit(child);
    walk.Return(base);
    seen.push_back(child.ToStrategy(child.Order()));
    if (rng->Below(3) != 0) continue;
    if (rng->Below(2) == 0) {
      base = child;
    } else {
      base.Load(seen[rng->Below(static_cast<int32_t>(seen.size()))]);
    }
    walk.Settle(base);
  }
  return num_edits;
}

TEST(Reschedule, ACollectiveOfACollectiveStartsWhileTheBaseGlides) {
  for (int32_t length = 4; length < 40 && !HasFailure(); ++length) {
    GraphBuilder builder;
    int32_t first = builder.Elemwise({});
    builder.AllReduce(builder.AllReduce(first));
    int32_t last = first;
    for (int32_t i = 0; i < length; ++i) last = builder.Elemwise({last});
    builder.AllReduce(last);
    OpGraph graph = builder.Build();
    Walk walk(graph, 1000, 1000);
    Grouping grouping(graph);
    walk.Settle(grouping);
    walk.Visit(grouping);
  }
}

TEST(Reschedule, ABucketWaitsForAProducerThatItselfWaitsForABucketNow) {
  for (int32_t length = 1; length < 40 && !HasFailure(); ++length) {
    GraphBuilder builder;
    int32_t first = builder.Elemwise({});
    int32_t average = builder.AllReduce(first);
    int32_t early = builder.Elemwise({first});
    int32_t reader = builder.Elemwise({average, early});
    int32_t last = first;
    for (int32_t i = 0; i < length; ++i) last = builder.Elemwise({last});
    int32_t a = builder.AllReduce(early), b = builder.AllReduce(last);
    OpGraph graph = builder.Build();
    FusionLimits limits;
    limits.bucket_neighbours = BucketNeighbours::kProductionOrder;
    Walk walk(graph, 1000, 1000);
    Grouping grouping(graph);
    ASSERT_TRUE(ApplyEdit(limits, {EditKind::kMergeBuckets, a, b}, &grouping).allowed());
    walk.Settle(grouping);
    // The bucket keeps its producers, the early one and the last one, by name.
    ASSERT_TRUE(ApplyEdit(limits, {EditKind::kFuse, early, reader}, &grouping).allowed());
    walk.Visit(grouping);
  }
}

TEST(Reschedule, AProducerFromBehindThePrefixDoesNotReleaseTheBucketOfOneThatGlides) {
  GraphBuilder builder;
  int32_t urgent_update = builder.Elemwise({builder.AllReduce(builder.Elemwise({}))});
  int32_t last = builder.Elemwise({});
  int32_t early = builder.Elemwise({last});
  int32_t early_bucket = builder.AllReduce(early);
  for (int32_t i = 0; i < 8; ++i) last = builder.Elemwise({last});
  int32_t late_bucket = builder.AllReduce(builder.Elemwise({last}));
  for (int32_t i = 0; i < 8; ++i) last = builder.Elemwise({last});
  int32_t gradient = builder.Elemwise({last});
  builder.Elemwise({builder.AllReduce(gradient)});
  OpGraph graph = builder.Build();
  FusionLimits limits;
  limits.bucket_neighbours = BucketNeighbours::kProductionOrder;
  Grouping base(graph);
  Edit merge{EditKind::kMergeBuckets, early_bucket, late_bucket};
  ASSERT_TRUE(ApplyEdit(limits, merge, &base).allowed());
  // The gradients are computed, then there is an update, and then the one that was made to wait.
  base.SetPriority(urgent_update, gradient + 1);
  base.SetPriority(early, gradient + 2);
  Walk walk(graph, 1000, 1000);
  walk.Settle(base);
  Grouping child = base;
  child.SetPriority(early, kNoPriority);
  walk.Visit(child);
}

TEST(Reschedule, EqualsTheFullScheduleOnTrainingGraphs) {
  Rng rng(3);
  int64_t num_edits = 0;
  for (int round = 0; round < 400 && !HasFailure(); ++round) {
    num_edits += RandomWalk(TrainingGraph(&rng), &rng);
  }
  EXPECT_GT(num_edits, 5000);
}

TEST(Reschedule, EqualsTheFullScheduleOnWildGraphs) {
  Rng rng(4);
  int64_t num_edits = 0;
  for (int round = 0; round < 600 && !HasFailure(); ++round) {
    num_edits += RandomWalk(WildGraph(&rng), &rng);
  }
  EXPECT_GT(num_edits, 5000);
}

}  // namespace
}  // namespace disco_fuse
