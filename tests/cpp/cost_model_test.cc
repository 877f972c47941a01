#include "cost/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "cost/allreduce_model.h"
#include "cost/unit_costs.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

OpGraph Pair() {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  return builder.Build();
}

std::vector<Nanoseconds> PriceUnfused(const OpGraph& graph, const CostModel& model) {
  Grouping grouping(graph);
  UnitGraph units;
  units.Build(grouping);
  UnitCosts costs(graph, model, AllReduceModel{});
  std::vector<Nanoseconds> durations;
  costs.Price({{&units, &durations}});
  return durations;
}

std::string ErrorOf(const std::vector<double>& answer) {
  CallbackCostModel model("liar",
                          [=](const OpGraph&, const std::vector<Group>&) { return answer; });
  try {
    PriceUnfused(Pair(), model);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(CostModel, BadPredictionsNameModelAndGroup) {
  double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(ErrorOf({1, 2}), "no error");
  EXPECT_EQ(ErrorOf({0, 0}), "no error");
  EXPECT_EQ(ErrorOf({1, -2}).substr(0, 71),
            "cost model 'liar' predicts -2 us for the group of op 1 ('op1'); allowed");
  for (double bad : {std::nan(""), inf, -inf, 1e300}) {
    EXPECT_NE(ErrorOf({bad, 1}).find("cost model 'liar' predicts"), std::string::npos) << bad;
  }
}

TEST(CostModel, WrongNumberOfPredictionsIsAnError) {
  EXPECT_EQ(ErrorOf({1}),
            "cost model 'liar' made 1 predictions for 2 groups, beginning with the group of op 0 "
            "('op0')");
  EXPECT_NE(ErrorOf({1, 2, 3}).find("made 3 predictions for 2 groups"), std::string::npos);
}

/*! \brief A native model that returns a negative time. */
class NegativeModel : public CostModel {
 public:
  const std::string& name() const override { return name_; }
  std::vector<Nanoseconds> Predict(const OpGraph&,
                                   const std::vector<Group>& groups) const override {
    return std::vector<Nanoseconds>(groups.size(), Nanoseconds(-1));
  }

 private:
  std::string name_ = "negative";
};

TEST(CostModel, NativeModelsAreCheckedToo) {
  EXPECT_THROW(PriceUnfused(Pair(), NegativeModel()), std::invalid_argument);
}

TEST(UnitCosts, EveryKernelIsPricedOnce) {
  int64_t num_asked = 0, num_calls = 0;
  CallbackCostModel model("count", [&](const OpGraph&, const std::vector<Group>& groups) {
    ++num_calls;
    num_asked += static_cast<int64_t>(groups.size());
    return std::vector<double>(groups.size(), 1.0);
  });
  OpGraph graph = Pair();
  Grouping alone(graph), fused(graph);
  ASSERT_TRUE(fused.Assign({0, 0}, {}));
  UnitGraph alone_units, fused_units;
  alone_units.Build(alone);
  fused_units.Build(fused);
  UnitCosts costs(graph, model, AllReduceModel{});
  std::vector<Nanoseconds> a, b, c;
  costs.Price({{&alone_units, &a}, {&fused_units, &b}, {&alone_units, &c}});
  EXPECT_EQ(num_calls, 1);
  EXPECT_EQ(num_asked, 3);
  EXPECT_EQ(a, c);
  costs.Price({{&fused_units, &b}});
  EXPECT_EQ(num_calls, 1);
  EXPECT_EQ(costs.num_priced(), 3);
}

TEST(AllReduceModel, HasTwoSegments) {
  AllReduceModel model{10, 0.5, 20, 0.25, 100};
  EXPECT_EQ(model.Time(99), Nanoseconds(59500));
  EXPECT_EQ(model.Time(100), Nanoseconds(45000));
}

TEST(AllReduceModel, RejectsWhatIsNoTime) {
  AllReduceModel model{10, 0.5, 20, -0.25, 100};
  try {
    model.Check();
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "AllReduceModel: large_us_per_byte must be finite and >= 0, got -0.25");
  }
}

TEST(AllReduceModel, NoPartitionBeatsTheFloor) {
  for (const AllReduceModel& model :
       {AllReduceModel{10, 0.5, 20, 0.25, 8}, AllReduceModel{1, 0.1, 50, 0.3, 8},
        AllReduceModel{5, 1, 5, 1, 0}, AllReduceModel{5, 1, 1, 0.001, 100}}) {
    // best[n]: the cheapest way to send n bytes, over all partitions.
    std::vector<Nanoseconds> best{Nanoseconds(0)};
    for (int64_t n = 1; n <= 24; ++n) {
      best.push_back(model.Time(n));
      for (int64_t m = 1; m < n; ++m) best[n] = std::min(best[n], best[n - m] + model.Time(m));
      EXPECT_LE(model.PartitionFloor(n), best[n]) << n;
    }
  }
  EXPECT_EQ(AllReduceModel({5, 1, 5, 1, 0}).PartitionFloor(0), Nanoseconds(0));
}

}  // namespace
}  // namespace disco_fuse
