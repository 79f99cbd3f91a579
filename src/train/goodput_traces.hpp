// What a life that was killed left behind: status.json, the last rows of metrics.jsonl, and the job script's
// logs/lives.tsv.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/goodput_ledger.hpp"

namespace orthant {

/// status.json; the numbers are those that the run itself wrote there last.
struct StatusTrace {
  std::string state, reason;
  int64_t step = 0, life = 0;
  int code = 0;
  double heartbeat = 0, saving = -1;  ///< saving: over all lives, or -1 where it is not told
};
std::optional<StatusTrace> read_status(const std::string& folder);

/// How the job script saw a life end.
struct ScriptTrace {
  bool there = false;  ///< the life ran under a job script
  bool ended = false;  ///< which saw its end
  double end = 0;      ///< seconds since the epoch, whole seconds
  int code = -1;       ///< of the launcher
};
/// Of the life that began at `begin` and was over at `before`.
ScriptTrace read_script(const std::string& folder, double begin, double before);

/// Seconds since the epoch of YYYY-MM-DDTHH:MM:SSZ; nothing for other text.
std::optional<double> utc_seconds(const std::string& text);

/// Sum of `seconds` of the training rows after `step` among the last rows of metrics.jsonl (a megabyte of them).
struct LateRows {
  double seconds = 0;
  int64_t step = 0;  ///< of the last one; 0 without any
};
LateRows rows_after(const std::string& folder, int64_t step);

/// Class of a life that was killed: `state` stayed "running".
StopKind kind_of_kill(const ScriptTrace& script);

/// The last sign of an open life: heartbeat and rows, not after `limit`.
struct LastSign {
  double t = 0, waited = 0;
  int64_t step = 0;
};
LastSign last_sign(const GoodputLedger& ledger, const std::optional<StatusTrace>& status, const std::string& folder, double limit);

/// The event that closes the open life of the ledger; the next one begins at `next`.
GoodputEvent closing_event(const GoodputLedger& ledger, const std::string& folder, double next);

}  // namespace orthant
