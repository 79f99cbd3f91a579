// The mixture of several sources: which source gives sample i, and which of its samples.
//
// Megatron's greedy rule: the source that is furthest behind its share, weight x max(i, 1) - used, takes the sample;
// ties go to the lowest number. The choice depends on i only, so a longer mixture begins like a shorter one.
//
// Weights may change at a sample: from there on the rule counts anew, as if the mixture began, while each source goes
// on with its next sample. So a change repeats no sample and skips none.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace orthant {

/// Keeps only how often each source was used at every few hundred samples and replays from there, so that a
/// mixture of any length costs next to no memory. Safe to use from many threads.
class Blend {
 public:
  struct Segment {
    int64_t first = 0;            ///< sample from which on these weights hold
    std::vector<double> weights;  ///< add up to 1
  };
  /// `weights` add up to 1; `limits[d]` = samples that source d holds.
  Blend(std::vector<double> weights, std::vector<int64_t> limits);
  /// Segments in order; the first begins at 0.
  Blend(std::vector<Segment> segments, std::vector<int64_t> limits);
  /// Whether the first n samples can be drawn without asking a source for more than it holds.
  bool holds(int64_t n) const;
  /// The largest such n.
  int64_t available() const;
  /// {source, sample of that source} of sample i < available().
  std::pair<int64_t, int64_t> at(int64_t i) const;
  /// Samples that each source gives to the first n <= available().
  std::vector<int64_t> drawn(int64_t n) const;
  /// The source that ran out first; meaningful after `holds` said no.
  int64_t exhausted() const;

 private:
  size_t segment_of(int64_t i) const;
  size_t pick(int64_t i, size_t segment, const std::vector<int64_t>& used) const;
  void walk(int64_t n) const;  // the lock is held

  std::vector<Segment> segments_;
  std::vector<int64_t> limits_;
  int64_t interval_;
  mutable std::mutex lock_;
  mutable std::vector<std::vector<int64_t>> bases_;  // [segment, source]: used before it, once walked to; fixed then
  mutable std::vector<int64_t> marks_;               // [walked / interval, source]: samples used before
  mutable std::vector<int64_t> used_;
  mutable int64_t walked_ = 0, exhausted_ = -1;
};

}  // namespace orthant
