// What the stops of a run cost by class, and how often it should save.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/goodput_ledger.hpp"

namespace orthant {

/// Means in seconds over the stops that are over; `count` has all.
struct StopMeans {
  int64_t count = 0, over = 0;
  double detection = 0, gap = 0, start = 0, load = 0, lost = 0;
  double recover() const { return detection + gap + start + load + lost; }  ///< mean time to recover
  double down() const { return detection + gap + start + load; }            ///< of these: without lost work
};

struct StopTable {
  std::array<StopMeans, stop_kinds> kinds;  ///< by StopKind
  StopMeans planned, unplanned;             ///< unplanned: all other kinds, refused starts included
  int64_t failures = 0;                     ///< unplanned without refused starts
};
StopTable table_of(const std::vector<Stop>& stops);

/// Optimum of the first order for the seconds between saves: sqrt(2 d M), with d the price of a save and M the mean time
/// between failures, both in seconds. J. W. Young, Comm. ACM 17 (1974) 530.
double young_interval(double save, double mtbf);
/// Of higher order, with failures within a save and a restart: J. T. Daly, Future Generation Computer Systems 22 (2006)
/// 303, whose answer for d >= 2 M is M.
double daly_interval(double save, double mtbf);
/// Share of the wall time that is training that counts, with failures as a Poisson process: interval / (M e^(R/M)
/// (e^((interval + d)/M) - 1)), R the mean time down (Daly's model of the total wall time).
double expected_share(double interval, double save, double mtbf, double down);

struct Advice {
  double save = 0;      ///< d: seconds that training waits for one save
  double mtbf = 0;      ///< M: seconds
  bool measured_mtbf = false, measured_save = false;
  double young = 0, daly = 0;  ///< seconds of training between saves
  double interval = 0;  ///< that of Daly, or the time until a save is complete where that is longer
  int64_t young_steps = 0, daly_steps = 0, interval_steps = 0;  ///< 0: no step was counted yet
  double expected = 0;  ///< share at `interval`
};

/// The fewest stops that count as a measured rate: with n stops its relative error is 1 / sqrt(n).
constexpr int64_t enough_stops = 5;

/// Mean time between failures on as many nodes as the last life had, from the held time of all lives; nothing without a
/// failure. `bins`: as of now.
std::optional<double> measured_mtbf(const GoodputLedger& ledger, const TimeBins& bins, int64_t failures);
/// Failures in a thousand node-hours.
double failures_per_1000_node_hours(const GoodputLedger& ledger, const TimeBins& bins, int64_t failures);

/// `mtbf`, `save`: given by the user, in place of the measured ones. `steps`: behind bins.trained. Nothing where M or d is
/// neither given nor measured.
std::optional<Advice> advise(const GoodputLedger& ledger, const TimeBins& bins, int64_t steps, std::optional<double> mtbf,
                             std::optional<double> save);

}  // namespace orthant
