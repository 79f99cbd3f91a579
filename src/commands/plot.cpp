// orthant plot RUN…: curves of runs as SVG and PNG files and in the terminal.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "orthant/command.hpp"
#include "orthant/error.hpp"
#include "support/chart_runs.hpp"
#include "support/png.hpp"
#include "support/svg.hpp"
#include "support/terminal_chart.hpp"

namespace orthant {

namespace {

namespace fs = std::filesystem;

void write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw DataError("cannot write " + path + ": is its folder there and writable, and the disk not full?");
}

/// The files of a plot nobody named: beside the metrics of the first run.
std::vector<std::string> default_outputs(const std::vector<chart::RunMetrics>& runs, const std::string& y) {
  const fs::path folder = fs::path(runs[0].file).parent_path();
  const std::string name = runs.size() == 1 ? y : y + "-" + std::to_string(runs.size()) + "-runs";
  return {(folder / (name + ".svg")).string(), (folder / (name + ".png")).string()};
}

/// Values that a curve cannot show are said, not silently left out.
void print_notes(const std::vector<chart::RunMetrics>& runs, const std::string& y) {
  for (const chart::RunMetrics& run : runs) {
    if (run.torn) fmt::print("{}: the last line is cut off and was left out\n", run.file);
    const auto bad = std::count_if(run.training.begin(), run.training.end(),
                                   [&](const auto& row) { return row.has(y) && !std::isfinite(row.get(y)); });
    if (bad > 0)
      fmt::print("{}: {} of {} rows hold no finite {} (gaps in the curve)\n", run.file, bad, run.training.size(), y);
  }
}

int plot(const CommandArgs& given) {
  CLI::App app{"Curves of runs as SVG and PNG files and in the terminal", "orthant plot"};
  std::vector<std::string> folders, outputs;
  chart::PlotRequest request;
  bool terminal = true;
  app.add_option("RUN", folders, "Run folders (run.output of the deck), or metrics.jsonl files")->required();
  app.add_option("--x", request.x, "What runs to the right: step, tokens or seconds")->capture_default_str();
  app.add_option("--y", request.y, "What is drawn: loss, grad_norm, lr, tokens_per_s or any other number of a row")
      ->capture_default_str();
  app.add_option("--smooth", request.smooth,
                 "Half width of the smoothing window in steps; 0 = off, -1 = from the length of the run")
      ->capture_default_str()
      ->check(CLI::Range(-1, 1000000));
  app.add_option("--output", outputs,
                 "FILE.svg or FILE.png; may be given twice (default: loss.svg and loss.png in the run folder)")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--terminal,!--no-terminal", terminal, "Draw the curve in the terminal too (default: yes)");
  try {
    std::vector<std::string> reversed(given.args.rbegin(), given.args.rend());  // CLI11 takes them from the back
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& e) {
    throw UsageError(std::string("orthant plot: ") + e.what() + " (orthant plot --help)");
  }
  for (const std::string& path : outputs) {
    const std::string kind = fs::path(path).extension().string();
    if (kind != ".svg" && kind != ".png")
      throw UsageError("--output " + path + ": the name of the file has to end in .svg or .png");
  }

  std::vector<chart::RunMetrics> runs;
  for (const std::string& folder : folders) runs.push_back(chart::read_run(folder));
  const chart::Chart picture = chart::chart_of(runs, request);
  if (terminal) fmt::print("{}", chart::to_terminal(picture, chart::terminal_style()));
  print_notes(runs, request.y);
  if (outputs.empty()) outputs = default_outputs(runs, request.y);
  for (const std::string& path : outputs) {
    if (fs::path(path).extension() == ".svg")
      write_text(path, chart::to_svg(picture));
    else
      chart::write_png(chart::paint(picture, 2.0), path);
    fmt::print("wrote {}\n", path);
  }
  std::fflush(stdout);
  return 0;
}

const bool added =
    add_command({"plot", "curves of runs as SVG and PNG files and in the terminal", false, false, plot});

}  // namespace

}  // namespace orthant
