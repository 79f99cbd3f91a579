// orthant plan DECK: what is known of a run without starting it. Memory is counted by playing one step on shapes,
// traffic by closed forms, idle time by playing the schedule's lists.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <optional>

#include "commands/parse.hpp"
#include "data/context_cut.hpp"
#include "mesh/expected_traffic.hpp"
#include "model/stage_cut.hpp"
#include "orthant/command.hpp"
#include "orthant/model.hpp"
#include "support/agree.hpp"
#include "support/schedule_chart.hpp"
#include "train/step_timeline.hpp"
#include "support/terminal_chart.hpp"
#include "train/console.hpp"
#include "train/session.hpp"

namespace orthant {
namespace {

struct Request {
  std::string deck, map, ranks_given;
  std::vector<std::string> overrides;
  int64_t ranks = 0;  ///< 0: as the deck or the launcher says
  std::optional<int64_t> rank;
};

/// More ranks than any machine has, and still few enough to be counted one by one.
constexpr int64_t most_ranks = 1 << 20;

/// Before the line is parsed: some of these stand in the place of the deck.
void refuse_missing(const std::vector<std::string>& args) {
  for (const std::string& a : args)
    for (const char* name :
         {"--machine", "--params", "--weak", "--strong", "--search", "--explain", "--validate", "--output"})
      if (a == name || a.rfind(std::string(name) + "=", 0) == 0)
        throw UsageError(fmt::format("plan {} is not in this build (orthant plan --help shows what is)", name), true);
}

/// A list where a key takes one value asks for a curve.
void refuse_curves(const Request& request) {
  for (const std::string& text : request.overrides) {
    const std::size_t sign = text.find('=');
    if (sign == std::string::npos || text.compare(sign + 1, 1, "[") != 0) continue;
    for (const KeyInfo& key : all_keys())
      if (key.name == text.substr(0, sign) &&
          (std::holds_alternative<bool>(key.value) || std::holds_alternative<int64_t>(key.value) ||
           std::holds_alternative<double>(key.value) || std::holds_alternative<std::string>(key.value)))
        throw UsageError(
            fmt::format(
                "plan {}: a list of values for {}, which takes one, asks for a curve; curves are not in this build",
                text, key.name),
            true);
  }
}

int64_t ranks_of(const std::string& text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (text.find(',') != std::string::npos)
    throw UsageError("plan --ranks " + text + ": a list of ranks is not in this build; give one number", true);
  if (error != std::errc() || end != text.data() + text.size() || n < 1 || n > most_ranks)
    throw UsageError(fmt::format("plan --ranks {}: expects a whole number from 1 to {}", text, most_ranks), true);
  return n;
}

/// Without --ranks and a launcher: as many ranks as the deck's mesh names. Problems of the deck are left to
/// make_plan, which reports all of them at once.
int64_t ranks_of_deck(const Request& request) {
  std::vector<std::string> unused;
  const Deck deck = Deck::parse(Deck::read_text(request.deck), request.deck, request.overrides, {}, unused);
  int64_t ranks = 1;
  for (const int64_t n :
       {deck[keys::mesh::tp], deck[keys::mesh::cp], deck[keys::mesh::pp], std::max<int64_t>(1, deck[keys::mesh::dp])})
    if (n < 1 || __builtin_mul_overflow(ranks, n, &ranks)) return 1;
  if (ranks > most_ranks)
    throw UsageError(fmt::format("{}: the mesh has {} ranks; plan goes up to {}", request.deck, ranks, most_ranks),
                     true);
  return ranks;
}

std::string bytes_of(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }
std::string millions(int64_t n) { return fmt::format("{:.3f} M", static_cast<double>(n) / 1e6); }

/// Aligned columns, two spaces apart: numbers to the right, the columns named in `left` to the left.
std::string table_text(const std::vector<std::vector<std::string>>& rows, const std::vector<std::size_t>& left) {
  std::vector<std::size_t> width(rows[0].size());
  for (const auto& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const bool to_left = std::find(left.begin(), left.end(), c) != left.end();
      line += to_left ? fmt::format("  {:<{}}", row[c], width[c]) : fmt::format("  {:>{}}", row[c], width[c]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

class PlanText {
 public:
  explicit PlanText(const RunPlan& plan)
      : plan_(plan),
        pipeline_(plan.pipeline),
        costs_(schedule_costs(plan.pipeline)),
        report_(check_pipeline(pipeline_)),
        timeline_(play(pipeline_, costs_)) {}

  std::string all() const {
    std::string out = head() + context() + schedule() + step() + stages() + traffic();
    for (const std::string& note : plan_.notes) out += "note      " + note + "\n";
    return out;
  }

  std::string of_rank(int64_t rank) const {
    const Coordinates at = coordinates_of(plan_.mesh, rank);
    const MemoryAccount memory = planned_memory(plan_, at);
    std::string out = fmt::format("rank {}    tp {}, cp {}, pp {}, dp {}", rank, at.tp, at.cp, at.pp, at.dp);
    if (plan_.mesh.experts > 0) out += fmt::format("; ep {}, edp {}", ep_of(plan_.mesh, at), edp_of(plan_.mesh, at));
    out += "\n";
    out += "holds     " + held(at.pp) + "\n";
    out += fmt::format("weights   {} parameters\n", millions(parameters(at)));
    out += fmt::format("stash     at most {:.4g} (micro-batches)\n",
                       report_.peak_stash[static_cast<std::size_t>(at.pp)]);
    out += fmt::format("memory    {} at the peak\n", bytes_of(memory.total_peak()));
    std::vector<std::vector<std::string>> rows = {{"kind", "at that time", "at its own peak"}};
    for (int k = 0; k < memory_kinds; ++k) {
      const auto kind = static_cast<MemoryKind>(k);
      if (memory.peak(kind) > 0)
        rows.push_back({name_of(kind), bytes_of(memory.at_peak(kind)), bytes_of(memory.peak(kind))});
    }
    return out + table_text(rows, {0}) + tensors(at);
  }

  /// Every tensor of a rank: what it is of the whole, and what of it ZeRO leaves here.
  std::string tensors(const Coordinates& at) const {
    const Session session(plan_, at, true);
    std::vector<std::vector<std::string>> rows = {{"tensor", "whole", "piece", "begins at", "state of rows", "gradient summed over"}};
    const auto span = [](int64_t begin, int64_t size) { return size == 0 ? std::string("none") : fmt::format("{}-{}", begin, begin + size - 1); };
    for (const LocalParam& p : session.store->all()) {
      const Param& g = p.param;
      const bool matrix = g.dims.size() > 1;
      std::string whole = fmt::format("{} {}", name_of(g.dims[0].name), g.dims[0].size), sums;
      if (matrix) whole += fmt::format(" x {} {}", name_of(g.dims[1].name), g.dims[1].size);
      for (const AxisName axis : session.layout.sum_axes(g)) {
        const std::string name = traffic_name(axis);
        if (sums.size() < name.size() || sums.substr(sums.size() - name.size()) != name) sums += (sums.empty() ? "" : ", ") + name;
      }
      rows.push_back({g.name, whole, matrix ? fmt::format("{} x {}", p.rows(), p.cols()) : std::to_string(p.rows()),
                      matrix ? fmt::format("{}, {}", p.piece.row, p.piece.col) : std::to_string(p.piece.row),
                      p.copy ? "none (tied copy)" : span(p.own.row, p.own.rows), g.trained ? sums : "not trained"});
    }
    return fmt::format("tensors   {} on this rank; rows count from 0\n", rows.size() - 1) + table_text(rows, {0, 1, 2, 3, 4, 5});
  }

  /// In the times of run.timing = "sleep", with the gathers and sums of ZeRO beside the work.
  void draw(const std::string& path) const {
    ScheduleCosts costs = costs_;
    const double unit = plan_.sleep.forward_s * 1e3;
    costs.forward *= unit, costs.backward *= unit, costs.weight *= unit;
    Timeline in_ms = played().timeline;
    in_ms.length *= 1e3;
    for (auto& stage : in_ms.stages)
      for (Interval& i : stage) i.begin *= 1e3, i.end *= 1e3;
    chart::draw_schedule({pipeline_, costs, report_, in_ms,
                          fmt::format("{}: {} on {} stages, {} micro-batches", plan_.deck.name(), pipeline_.name,
                                      pipeline_.shape.stages, pipeline_.shape.micros)},
                         path);
  }

 private:
  std::string head() const {
    const ModelConfig& m = plan_.model;
    const MeshShape& mesh = plan_.mesh;
    int64_t parameters = 0;
    for (const Param& p : model_params(m)) parameters += p.elements();
    std::string out = fmt::format("deck      {}\n", plan_.deck.path());
    out += fmt::format("mesh      {} ranks: tp {} x cp {} x pp {} x dp {}, order {}{}\n", mesh.ranks(), mesh.tp,
                       mesh.cp, mesh.pp, mesh.dp, mesh.order, plan_.sequence_parallel ? ", sequence parallel" : "");
    if (mesh.experts > 0)
      out += fmt::format("experts   {} a mixture layer: ep {} x etp {} x edp {} on each stage; memory planned for the worst routing, traffic for an even one\n", mesh.experts, mesh.ep, mesh.etp, mesh.expert_data());
    out += fmt::format(
        "model     {}: {} layers x {} hidden, {} heads ({} kv) of {}, ffn {}, vocabulary {}{}; {} parameters\n",
        m.family, m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn, m.vocab,
        m.tie_embeddings ? ", tied head" : "", millions(parameters));
    out += fmt::format("batch     {} sequences of {} tokens a step, micro {}, {} micro-batches a rank\n",
                       plan_.global_batch(), plan_.sequence(), plan_.micro(), plan_.micros());
    const double step =
        flops_per_token(m, plan_.sequence()) * static_cast<double>(plan_.global_batch() * plan_.sequence());
    out += fmt::format("work      {:.4g} TFLOP a step, {:.4g} a rank\n", step / 1e12,
                       step / 1e12 / static_cast<double>(mesh.ranks()));
    return out;
  }

  /// Attention is causal, so a rank's work depends on which places of the sequence it holds.
  std::string context() const {
    const int64_t cp = plan_.mesh.cp;
    if (cp == 1) return {};
    // the sixteen canonical blocks where no chunk cuts one, else a block a chunk
    const int64_t blocks = plan_.sequence() % 16 == 0 && 16 % (2 * cp) == 0 ? 16 : 2 * cp;
    const std::string& method = plan_.deck[keys::context::method];
    const auto of_ranks = [&](ContextCut cut) {
      std::string out;
      for (int64_t r = 0; r < cp; ++r) {
        if (cp > 8 && r >= 4 && r < cp - 1) continue;
        out += (r == 0 ? "" : cp > 8 && r == cp - 1 ? ", ..., " : ", ") +
               std::to_string(attention_work(blocks, cp, r, cut));
      }
      return out;
    };
    return fmt::format(
        "context   {}; attention work of each cp rank in blocks: cut in order {}; balanced (as it is cut) {}; {} blocks "
        "a sequence{}\n",
        method, of_ranks(ContextCut::in_order), of_ranks(ContextCut::balanced), blocks,
        method == "all_to_all" ? "; each rank then takes whole sequences of its heads, equal work on any cut" : "");
  }

  std::string schedule() const {
    const ScheduleShape& s = pipeline_.shape;
    std::string out = fmt::format("schedule  {}: {} stage{} of {} chunk{}, {} micro-batches; {}\n", pipeline_.name,
                                  s.stages, s.stages == 1 ? "" : "s", s.chunks, s.chunks == 1 ? "" : "s", s.micros,
                                  chart::schedule_words({pipeline_, costs_, report_, timeline_, ""}));
    if (s.stages == 1) return out;
    out += fmt::format(
        "          (a stage's forward of a micro-batch taken as 1, its backward as {}, messages as free)\n",
        pipeline_.split ? "1 and the weight gradients as 1" : "2");
    return out + chart::schedule_text(timeline_, s.chunks, chart::terminal_style().columns);
  }

  /// Sessions of all stages play for it, so it is made once, and only where it is wanted.
  const PlayedStep& played() const {
    if (!played_) played_ = played_step(plan_);
    return *played_;
  }

  /// The step in the fixed times of run.timing = "sleep"; without these, seconds would be made up.
  std::string step() const {
    if (!plan_.sleep.on) return {};
    const PlayedStep& step = played();
    const Timeline& units = step.timeline;
    double wire = 0, busiest = 0;
    for (const auto& stage : units.stages) {
      double work = 0;
      for (const Interval& i : stage) (i.action.act == Act::G ? wire : work) += i.action.act == Act::R ? 0 : i.end - i.begin;
      busiest = std::max(busiest, work);
    }
    std::string out = fmt::format("sleep     the schedule takes {:.2f} ms a step, {:.2f} ms of it work on the busiest stage; idle share {:.1f} %\n",
                                  1e3 * units.length, 1e3 * busiest, 100 * units.idle_share);
    if (plan_.zero.gathers_weights())
      out += fmt::format("          gathers of weights: {:.2f} ms on the wires of all stages, {:.2f} ms a step not hidden behind work\n", 1e3 * wire, 1e3 * step.gathers);
    for (const PlayedStep::Axis& a : step.axes)
      out += fmt::format("          {}: {:.2f} ms a step on a rank's wire, {:.2f} ms of waiting in sight{}\n", name_of(a.name), 1e3 * a.wire, 1e3 * a.exposed,
                         a.name == AxisName::pp ? ", the bubble included" : "");
    return out;
  }

  /// What a stage holds, chunk after chunk.
  std::string held(int64_t stage) const {
    std::string out;
    for (int64_t c = 0; c < pipeline_.shape.chunks; ++c)
      out += (c > 0 ? "; " : "") + range_text(plan_.cut[static_cast<std::size_t>(pipeline_.virtual_stage(stage, c))]);
    return out;
  }

  int64_t parameters(const Coordinates& at) const { return Session(plan_, at, true).store->local_elements(); }

  /// Ranks of a stage hold nearly the same: the first one speaks for all.
  std::string stages() const {
    std::vector<int64_t> first(static_cast<std::size_t>(plan_.mesh.pp), -1);
    for (int64_t r = 0; r < plan_.mesh.ranks(); ++r) {
      const Coordinates at = coordinates_of(plan_.mesh, r);
      if (at.tp == 0 && at.cp == 0 && at.dp == 0) first[static_cast<std::size_t>(at.pp)] = r;
    }
    std::vector<MemoryAccount> accounts;
    for (int64_t s = 0; s < plan_.mesh.pp; ++s) accounts.push_back(planned_memory(plan_, {0, 0, s, 0}));
    std::vector<MemoryKind> kinds;
    for (int k = 0; k < memory_kinds; ++k) {
      const auto kind = static_cast<MemoryKind>(k);
      if (std::any_of(accounts.begin(), accounts.end(), [&](const MemoryAccount& a) { return a.at_peak(kind) > 0; }))
        kinds.push_back(kind);
    }
    std::vector<std::vector<std::string>> rows = {{"stage", "rank", "parameters", "idle", "stash"}};
    for (const MemoryKind kind : kinds) rows[0].emplace_back(name_of(kind));
    rows[0].emplace_back("memory");
    rows[0].emplace_back("holds");
    for (int64_t s = 0; s < plan_.mesh.pp; ++s) {
      const auto i = static_cast<std::size_t>(s);
      rows.push_back({std::to_string(s), std::to_string(first[i]), millions(parameters({0, 0, s, 0})),
                      fmt::format("{:.1f} %", 100 * chart::idle_of(timeline_, s)),
                      fmt::format("{:.4g}", report_.peak_stash[i])});
      for (const MemoryKind kind : kinds) rows.back().push_back(bytes_of(accounts[i].at_peak(kind)));
      rows.back().push_back(bytes_of(accounts[i].total_peak()));
      rows.back().push_back(held(s));
    }
    return "stages    the first rank of each; memory at its peak, by kind\n" +
           table_text(rows, {rows[0].size() - 1}) + limit(accounts);
  }

  /// The plan may be for another machine: only a limit that the deck itself states says anything here.
  std::string limit(const std::vector<MemoryAccount>& accounts) const {
    const Deck& deck = plan_.deck;
    if (!deck.has(keys::memory::limit_gb) || deck[keys::memory::limit_gb] <= 0) return {};
    const MemoryLimit limit = memory_limit(deck, 1);
    std::string over;
    for (std::size_t s = 0; s < accounts.size(); ++s)
      if (static_cast<double>(accounts[s].total_peak()) > limit.bytes)
        over += fmt::format("{} {}", over.empty() ? "; exceeded on stage" : ",", s);
    return fmt::format("limit     {} a rank ({}){}\n", bytes_text(limit.bytes), limit.source,
                       over.empty() ? ": kept" : over);
  }

  std::string traffic() const {
    std::vector<std::vector<std::string>> rows = {{"axis", "operation", "all ranks", "a rank"}};
    std::map<std::pair<std::string, std::string>, int64_t> sent;
    for (const auto& [key, bytes] : planned_step_traffic(traffic_plan(plan_)))
      sent[{traffic_name(key.first), key.second}] += bytes;
    for (const auto& [key, bytes] : sent)
      if (bytes > 0) rows.push_back({key.first, key.second, bytes_of(bytes), bytes_of(bytes / plan_.mesh.ranks())});
    if (rows.size() == 1) return "traffic   none\n";
    return "traffic   bytes sent in a step\n" + table_text(rows, {0, 1});
  }

  const RunPlan& plan_;
  const Pipeline& pipeline_;
  ScheduleCosts costs_;
  ScheduleReport report_;
  Timeline timeline_;
  mutable std::optional<PlayedStep> played_;
};

int run(const CommandArgs& args) {
  CLI::App app(
      "What is known of a run without starting it: memory, traffic, what each stage holds, idle time of the "
      "pipeline.",
      "orthant plan");
  Request request;
  app.add_option("deck", request.deck, "TOML file (orthant help deck)")->required();
  app.add_option("overrides", request.overrides, "section.key=value, after the deck");
  app.add_option("--ranks", request.ranks_given,
                 "ranks to plan for (default: those launched when more than one, else tp x cp x pp x dp of the deck, "
                 "dp = 0 counted as 1)");
  app.add_option("--rank", request.rank, "what this rank of the mesh holds");
  app.add_option("--map", request.map, "FILE.svg or FILE.png: a picture of the pipeline's schedule");
  refuse_missing(args.args);
  if (!parse(app, args)) return 0;
  refuse_curves(request);
  if (!request.ranks_given.empty()) request.ranks = ranks_of(request.ranks_given);
  if (request.ranks == 0 && args.ranks == 1) request.ranks = ranks_of_deck(request);
  // every rank sees the same line, so the errors above and here are the same everywhere
  collectively(args.world, [&] {
    if (!request.map.empty()) chart::check_picture_path(request.map);
  });

  const RunPlan plan = make_plan(args.world, request.deck, request.overrides, request.ranks);
  collectively(args.world, [&] {
    if (request.rank && (*request.rank < 0 || *request.rank >= plan.mesh.ranks()))
      throw UsageError(
          fmt::format("plan --rank {}: the mesh has the ranks 0 to {}", *request.rank, plan.mesh.ranks() - 1));
    if (args.rank != 0) return;
    const PlanText text(plan);
    fmt::print("{}", text.all());
    if (request.rank) fmt::print("{}", text.of_rank(*request.rank));
    if (!request.map.empty()) {
      text.draw(request.map);
      fmt::print("wrote {}\n", request.map);
    }
    std::fflush(stdout);
  });
  return 0;
}

const bool added =
    add_command({"plan", "memory, traffic, stages and idle time of a run, without starting it", true, true, run});

}  // namespace
}  // namespace orthant
