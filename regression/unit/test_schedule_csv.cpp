// Schedules from CSV files: what is read, and what is said of rows and orders that cannot be run.
// labels: smoke asan
#include <gtest/gtest.h>

#include "schedule_kit.hpp"

namespace orthant {
namespace {

TEST(ScheduleCsv, ReadsRowsInAnyMixOfStages) {
  const Pipeline made =
      make_pipeline("mine.csv", {2, 1, 1},
                    "\n# by hand\r\nstage , action, chunk,micro\r\n1,F,0,0\n 0,F,0,0\r\n\n1,B,0,0\n0 ,B,0,0");
  EXPECT_EQ(text(made.lists[0]), "F0 B0");
  EXPECT_EQ(text(made.lists[1]), "F0 B0");
  EXPECT_FALSE(made.split);
  EXPECT_FALSE(made.vee);
  EXPECT_EQ(made.name, "mine.csv");
}

TEST(ScheduleCsv, ComesBackAsItWasWritten) {
  for (const std::string& name : schedule_names())
    for (const int64_t chunks : {1, 2}) {
      if (chunks > 1 && name != "interleaved" && name != "zero_bubble") continue;
      const Pipeline made = make_pipeline(name, {3, 5, chunks});
      const Pipeline read = make_pipeline("x.csv", made.shape, schedule_csv(made));
      EXPECT_EQ(read.lists, made.lists) << name;
      EXPECT_EQ(read.split, made.split) << name;
      EXPECT_EQ(read.vee, made.vee) << name;
    }
}

TEST(ScheduleCsv, AWrongRowIsNamedWithItsLine) {
  const auto says = [](const std::string& row, std::vector<std::string> words, int64_t chunks = 1) {
    const std::string message =
        usage_error("mine.csv", {2, 3, chunks}, "stage,action,chunk,micro\n0,F,0,0\n" + row + "\n");
    words.insert(words.end(), {"pipeline.schedule", "mine.csv", "line 3"});
    EXPECT_TRUE(has_words(message, words)) << row << ": " << message;
  };
  says("0,F,0", {"3 fields instead of 4", "stage,action,chunk,micro"});
  says("0,F,0,1,", {"5 fields"});
  says("stage,action,chunk,micro", {"stage \"stage\""});  // only at the top
  says("2,F,0,1", {"stage \"2\"", "0 to 1"});
  says("-1,F,0,1", {"stage \"-1\"", "0 to 1"});
  says("0,X,0,1", {"action \"X\"", "F, B or W"});
  says("0,f,0,1", {"action \"f\"", "F, B or W"});
  says("0,F,1,1", {"chunk \"1\"", "0 to 0"});
  says("0,F,0,3", {"micro \"3\"", "0 to 2"});
  says("0,F,0,1.5", {"micro \"1.5\"", "0 to 2"});
  says("0,F,0,", {"micro \"\"", "0 to 2"});
  says("0,F,0,99999999999999999999", {"micro \"99999999999999999999\"", "0 to 2"});
  says("# placement: w", {"placement \"w\"", "v or looped"}, 2);
  says("# placement: v", {"pipeline.virtual_stages = 2"}, 3);
}

TEST(ScheduleCsv, AnOrderThatCannotRunIsRefused) {
  const std::string twice = usage_error("mine.csv", {1, 1, 1}, "0,F,0,0\n0,F,0,0\n0,B,0,0\n");
  EXPECT_TRUE(has_words(twice, {"pipeline.schedule", "mine.csv", "F0 of chunk 0 stands twice"})) << twice;
  const std::string none = usage_error("mine.csv", {2, 3, 1}, "# nothing\n");
  EXPECT_TRUE(has_words(none, {"pipeline.schedule", "mine.csv", "stage 0: F0 of chunk 0 is missing", "and 9 more"}))
      << none;
  const std::string half = usage_error("mine.csv", {1, 2, 1}, "0,F,0,0\n0,B,0,0\n0,W,0,0\n0,F,0,1\n0,B,0,1\n");
  EXPECT_TRUE(has_words(half, {"W1 of chunk 0 is missing"})) << half;
  const std::string dead =
      usage_error("mine.csv", {2, 2, 1}, "0,F,0,0\n0,B,0,0\n0,F,0,1\n0,B,0,1\n1,F,0,0\n1,F,0,1\n1,B,0,0\n1,B,0,1\n");
  EXPECT_TRUE(has_words(dead, {"deadlock", "stage 0 waits", "stage 1 waits"})) << dead;
  EXPECT_TRUE(has_words(usage_error("empty.csv", {1, 1, 1}), {"pipeline.schedule", "empty.csv", "CSV"}));
}

}  // namespace
}  // namespace orthant
