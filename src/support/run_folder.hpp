// The folder of a run: deck, metrics, status, lock. Written by rank 0 alone.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace orthant {

/// One row of metrics.jsonl: names and numbers in order (integers stay integers; other numbers have 17 digits).
class MetricsRow {
 public:
  void add(const std::string& name, int64_t value);
  void add(const std::string& name, double value);
  void add(const std::string& name, const std::vector<std::pair<std::string, double>>& values);
  void add(const std::string& name, const std::vector<int64_t>& values);
  std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
  void key(const std::string& name);
};

struct RunStatus {
  std::string state;  ///< running, finished, stopped, failed
  int64_t step = 0;
  std::string reason;
  int code = 0;
};

class RunFolder {
 public:
  /// Makes the folder and takes its lock. DataError when it cannot be written, UsageError when another live job has it.
  explicit RunFolder(const std::string& path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  /// How often this run was started, this time included.
  int64_t lives() const { return lives_; }
  void write(const std::string& name, const std::string& text);  ///< replaced atomically
  /// Opens metrics.jsonl; rows after `step` and a torn last line are cut off first. Again, where a run goes back to `step`.
  void open_metrics(int64_t step);
  /// DataError when the disk has no room: the row is then kept, and written with the next one.
  void append(const MetricsRow& row);
  /// The last row again, with more numbers at its end: written over it in one piece, so that a kill leaves either.
  void extend_last(const MetricsRow& row);
  /// Writes status.json and freshens the lock: what was written last is the heartbeat. Any thread may call it. The first
  /// state but "running" stands: a launcher that ends a hung job may wake its ranks first, and their training threads go on.
  void status(const RunStatus& status);
  /// Numbers that each status.json carries from now on; asked for on the thread that writes it.
  void carry(std::function<std::vector<std::pair<std::string, double>>()> numbers) { numbers_ = std::move(numbers); }

 private:
  void take_lock();
  void flush();
  std::string path_, lock_text_;
  std::function<std::vector<std::pair<std::string, double>>()> numbers_;
  std::mutex status_lock_;
  bool ended_ = false;  // status.json has the life's last word
  int metrics_ = -1;
  int64_t lives_ = 1;
  std::string pending_;        // rows not yet on disk
  size_t last_row_bytes_ = 0;  // of the row appended last
  int64_t written_ = 0;        // bytes of metrics.jsonl
};

/// The job's id: SLURM_JOB_ID, PBS_JOBID, LSB_JOBID, else "local".
std::string job_id();

}  // namespace orthant
