// A schedule from a CSV file, so that an order of one's own needs no code:
//
//   # placement: v             (optional: the V placement, for 2 chunks; "looped" is the default)
//   stage,action,chunk,micro   (optional)
//   0,F,0,0
//   1,F,0,0
//   1,B,0,0
//   0,B,0,0
//
// One row an action; the rows of a stage stand in the order in which it runs them, however the stages are mixed. W
// anywhere says that the weight gradients stand apart from B everywhere. Blank lines and lines that begin with # are
// skipped, blanks around a field too.
#include "schedule/csv.hpp"

#include <charconv>
#include <string_view>

#include "orthant/error.hpp"

namespace orthant {

namespace {

constexpr const char* header = "stage,action,chunk,micro";
constexpr std::string_view placement = "placement:";

std::string_view trimmed(std::string_view s) {
  const auto begin = s.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return s.substr(begin, s.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<std::string_view> fields_of(std::string_view row) {
  std::vector<std::string_view> out;
  for (size_t comma; (comma = row.find(',')) != std::string_view::npos; row.remove_prefix(comma + 1))
    out.push_back(trimmed(row.substr(0, comma)));
  out.push_back(trimmed(row));
  return out;
}

class Reader {
 public:
  explicit Reader(Pipeline& out) : out_(out) {
    out_.split = out_.vee = false;
    out_.lists.assign(static_cast<size_t>(out.shape.stages), {});
  }

  void line(std::string_view text) {
    ++number_;
    text = trimmed(text);
    if (text.empty()) return;
    if (text.front() == '#') return comment(trimmed(text.substr(1)));
    const std::vector<std::string_view> fields = fields_of(text);
    if (!any_row_ && fields == fields_of(header)) return;
    any_row_ = true;
    if (fields.size() != 4)
      wrong("\"" + std::string(text) + "\" has " + std::to_string(fields.size()) + " fields instead of 4, " + header);
    const int64_t stage = number(fields[0], "stage", out_.shape.stages);
    const Act act = action(fields[1]);
    out_.split = out_.split || act == Act::W;
    const int64_t chunk = number(fields[2], "chunk", out_.shape.chunks);
    out_.lists[static_cast<size_t>(stage)].push_back({act, chunk, number(fields[3], "micro", out_.shape.micros)});
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    throw UsageError("pipeline.schedule: " + out_.name + ", line " + std::to_string(number_) + ": " + what, true);
  }

  void comment(std::string_view text) {
    if (text.substr(0, placement.size()) != placement) return;
    const std::string value(trimmed(text.substr(placement.size())));
    if (value != "v" && value != "looped") wrong("placement \"" + value + "\": it is v or looped");
    if (value == "v" && out_.shape.chunks != 2)
      wrong("the V placement needs pipeline.virtual_stages = 2, not " + std::to_string(out_.shape.chunks));
    out_.vee = value == "v";
  }

  Act action(std::string_view field) const {
    if (field == "F") return Act::F;
    if (field == "B") return Act::B;
    if (field == "W") return Act::W;
    wrong("action \"" + std::string(field) + "\": it is F, B or W");
  }

  int64_t number(std::string_view field, const char* column, int64_t count) const {
    int64_t value = -1;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (error != std::errc{} || end != field.data() + field.size() || value < 0 || value >= count)
      wrong(std::string(column) + " \"" + std::string(field) + "\": this run has 0 to " + std::to_string(count - 1));
    return value;
  }

  Pipeline& out_;
  int64_t number_ = 0;
  bool any_row_ = false;
};

}  // namespace

void read_schedule_csv(const std::string& text, Pipeline& out) {
  Reader reader(out);
  std::string_view rest = text;
  for (size_t end; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1))
    reader.line(rest.substr(0, end));
  reader.line(rest);
}

std::string schedule_csv(const Pipeline& pipeline) {
  std::string out = pipeline.vee ? "# placement: v\n" : "";
  out += std::string(header) + '\n';
  for (size_t stage = 0; stage < pipeline.lists.size(); ++stage)
    for (const Action& a : pipeline.lists[stage])
      out += std::to_string(stage) + ',' + static_cast<char>(a.act) + ',' + std::to_string(a.chunk) + ',' +
             std::to_string(a.micro) + '\n';
  return out;
}

}  // namespace orthant
