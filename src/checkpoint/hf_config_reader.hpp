// Reading one object of a config.json: every key that is asked for is ticked off, so that the rest can be reported.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "orthant/model_config.hpp"

namespace orthant {

/// A JSON object and the words for its errors: DataError for a value that is missing or of the wrong kind, UsageError
/// for a setting that this build lacks. `where` (a file name) opens every message, `inside` (as in
/// "rope_parameters.") precedes each key.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string where, std::string inside = "")
      : object_(object), where_(std::move(where)), inside_(std::move(inside)) {}

  /// nullptr if the key is absent or null.
  const nlohmann::json* find(const std::string& key);
  /// The key is there, be it null.
  bool contains(const std::string& key) const;

  /// A whole number from `least`, at most 2^40.
  int64_t count(const std::string& key, int64_t least = 1);
  int64_t count_or(const std::string& key, int64_t otherwise, int64_t least = 1);
  double positive(const std::string& key);
  double positive_or(const std::string& key, double otherwise);
  bool flag(const std::string& key);
  bool flag_or(const std::string& key, bool otherwise);
  std::string text(const std::string& key);
  /// Refuses a switch that is set to anything but `allowed`.
  void only(const std::string& key, bool allowed, const std::string& why);
  /// DataError if the key is given and is not `right`; `same_as` says what that number is.
  void agrees(const std::string& key, int64_t right, const std::string& same_as);
  /// UsageError if the key is given and is not `allowed`.
  void only_value(const std::string& key, const nlohmann::json& allowed, const std::string& why);
  /// Ticks a key off and lists it, with a word on why it has no effect, unless its value is `silent`.
  void list(const std::string& key, const nlohmann::json& silent, const std::string& why,
            std::vector<std::string>* ignored);

  /// Appends "key = value" for the keys never asked for, but for those of `passed_over`.
  void report_rest(std::vector<std::string>* out, const std::set<std::string>& passed_over) const;
  [[noreturn]] void missing(const std::string& key, const std::string& right) const;
  [[noreturn]] void bad(const std::string& key, const nlohmann::json& value, const std::string& right) const;
  [[noreturn]] void refuse(const std::string& key, const nlohmann::json& value, const std::string& why) const;
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& require(const std::string& key, const std::string& right);
  int64_t count_of(const nlohmann::json& v, const std::string& key, int64_t least) const;
  double positive_of(const nlohmann::json& v, const std::string& key) const;

  const nlohmann::json& object_;
  std::string where_, inside_;
  std::set<std::string> seen_;
};

/// Dropout of the file: the deck's model.dropout decides, so a value that is not 0 is listed.
void note_dropout(ConfigReader& in, const char* key, std::vector<std::string>* ignored);
/// UsageError if hidden_act is given and is no spelling of silu.
void require_silu(ConfigReader& in);
/// Rotary settings in either style into c.rope_theta and c.rope; c.context must be known. Without any rope_theta the
/// value of `c` stays, or a DataError says so where `theta_required`.
void read_rope(ConfigReader& in, ModelConfig& c, bool theta_required, std::vector<std::string>* ignored);
/// The rope_parameters object of transformers 5. UsageError for a type it does not know.
nlohmann::json rope_block(const ModelConfig& c);

}  // namespace orthant
