// See nccl_log.hpp.
#include "backends/cuda/nccl_log.hpp"

#include <stdlib.h>

#include <cstdlib>
#include <fstream>
#include <optional>

#include "orthant/error.hpp"

namespace orthant::cuda {
namespace {

constexpr const char* settings[][2] = {{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "INIT,NET"}, {"NCCL_DEBUG_FILE", nullptr}};

/// NCCL looks at its settings once in a process, and so is it asked once.
std::optional<std::string>& known() {
  static std::optional<std::string> text;
  return text;
}

std::string word_behind(const std::string& line, const std::string& mark) {
  const size_t at = line.find(mark);
  if (at == std::string::npos) return "";
  const std::string rest = line.substr(at + mark.size());
  const size_t end = rest.find_last_not_of(" \r\t");
  return end == std::string::npos ? "" : rest.substr(0, end + 1);  // names of plugins have blanks
}

}  // namespace

NcclNetwork parse_nccl_log(std::istream& log) {
  NcclNetwork out;
  struct Said {
    bool yes = false, no = false;
    NcclNetwork::Rdma rdma() const { return yes ? NcclNetwork::Rdma::yes : no ? NcclNetwork::Rdma::no : NcclNetwork::Rdma::unknown; }
  } pair, adapter;
  for (std::string line; std::getline(log, line);) {
    if (const std::string name = word_behind(line, "Using network "); !name.empty()) out.name = name;
    if (line.find("/GDRDMA") != std::string::npos) pair.yes = true;  // a connection that has it
    const std::string more = word_behind(line, "GPU Direct RDMA ");
    const bool enabled = more.starts_with("Enabled for "), disabled = more.starts_with("Disabled for ");
    if (!enabled && !disabled) continue;
    Said& said = more.find("for GPU ") != std::string::npos ? pair : adapter;
    (enabled ? said.yes : said.no) = true;
  }
  // a device has near adapters and far ones, and uses the near ones: one that is enabled is enough
  out.gpu_direct = pair.yes || pair.no ? pair.rdma() : adapter.rdma();
  if (out.gpu_direct == NcclNetwork::Rdma::unknown && out.name == "Socket") out.gpu_direct = NcclNetwork::Rdma::no;  // it cannot
  return out;
}

std::string text_of(const NcclNetwork& n) {
  if (n.name.empty()) return "network unknown: NCCL's log does not name it";
  return "network " + n.name +
         (n.gpu_direct == NcclNetwork::Rdma::yes  ? " with GPUDirect RDMA"
          : n.gpu_direct == NcclNetwork::Rdma::no ? " without GPUDirect RDMA"
                                                  : ", GPUDirect RDMA unknown: NCCL's log does not tell");
}

NcclLog::NcclLog() {
  if (known()) return;
  for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_FILE"})
    if (std::getenv(name)) {
      known() = std::string("network not asked for, as ") + name + " is set: NCCL's own log names it";
      return;
    }
  std::error_code error;
  std::string pattern = (std::filesystem::temp_directory_path(error) / "orthant-nccl-XXXXXX").string();
  if (error || !mkdtemp(pattern.data())) {
    known() = "network not asked for: no folder for NCCL's log could be made in the temporary directory";
    return;
  }
  folder_ = pattern;
  for (const auto& [name, value] : settings) setenv(name, value ? value : (folder_ / "log").c_str(), 1);
}

NcclLog::~NcclLog() {
  if (folder_.empty()) return;
  for (const auto& [name, value] : settings) unsetenv(name);  // not for programs that we start
  std::error_code error;
  std::filesystem::remove_all(folder_, error);  // NCCL goes on writing into what has no name any more
}

std::string NcclLog::network() const {
  if (!known()) {
    std::ifstream log(folder_ / "log");
    known() = text_of(parse_nccl_log(log));
  }
  return *known();
}

}  // namespace orthant::cuda
