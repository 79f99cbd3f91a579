// `orthant convert SRC DST`: a Hugging Face folder becomes a checkpoint at step 0, a checkpoint a Hugging Face
// folder.
//
// Values go through fp32, which holds every bf16 and fp16 number, and the checkpoint remembers the dtype of each
// file tensor: so there and back gives the same bits. Tensors pass one after the other, in pieces of bounded size.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "checkpoint/folders.hpp"
#include "checkpoint/hdf5.hpp"
#include "checkpoint/hf_companions.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_export.hpp"
#include "checkpoint/hf_folder.hpp"
#include "checkpoint/strict_json.hpp"
#include "checkpoint/write.hpp"
#include "commands/parse.hpp"
#include "orthant/checkpoint.hpp"
#include "orthant/command.hpp"
#include "orthant/error.hpp"
#include "orthant/model.hpp"

namespace orthant {

namespace fs = std::filesystem;

namespace {

using Dtypes = std::map<std::string, std::string>;

constexpr int64_t elements_at_once = int64_t{1} << 24;  // 64 MiB of fp32

// "BF16,lm_head.weight=F32": the dtype of most tensors, then the others.
std::string text_of(const Dtypes& dtypes) {
  std::map<std::string, int> count;
  for (const auto& [tensor, dtype] : dtypes) ++count[dtype];
  const auto most =
      std::max_element(count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::string text = most->first;
  for (const auto& [tensor, dtype] : dtypes) {
    if (dtype != most->first) text += "," + tensor + "=" + dtype;
  }
  return text;
}

void read_dtypes(const std::string& text, HfExportOptions& options) {
  if (text.empty()) return;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const size_t equals = item.rfind('=');
    if (equals == std::string::npos) {
      options.dtype = file_dtype(item);
    } else {
      options.dtypes[item.substr(0, equals)] = file_dtype(item.substr(equals + 1));
    }
    begin = end + 1;
  }
}

void refuse_used_folder(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return;
  if (!fs::is_directory(folder, error)) throw UsageError(folder + ": exists and is not a folder");
  if (!fs::is_empty(folder, error)) {
    throw UsageError(folder + ": exists and is not empty; name a new folder, nothing is written over");
  }
}

void copy_weights(const HfFolder& source, const std::vector<Param>& params, h5::File& file) {
  std::vector<float> buffer;
  for (const Param& p : params) {
    const int64_t rows_at_once = std::max<int64_t>(1, elements_at_once / std::max<int64_t>(1, p.cols()));
    for (int64_t row = 0; row < p.rows(); row += rows_at_once) {
      const Piece piece{row, std::min(rows_at_once, p.rows() - row), 0, p.cols()};
      buffer.resize(static_cast<size_t>(piece.elements()));
      source.read(p, piece, buffer.data());
      file.write_floats(dataset_name("weights", p), piece, buffer.data());
    }
  }
}

void to_checkpoint(const std::string& source, const std::string& target, const std::string& dtype) {
  std::vector<std::string> ignored;
  const ModelConfig config = read_hf_config(source, &ignored);
  const std::vector<Param> params = model_params(config);
  const HfFolder folder(source);
  folder.check(params);
  for (const std::string& key : ignored) std::printf("config.json: not used: %s\n", key.c_str());
  for (const std::string& name : folder.unused(params)) std::printf("tensor not used: %s\n", name.c_str());

  CheckpointExtras extras;
  extras.config_json = read_small_file(source + "/config.json");
  extras.source_dtype = dtype.empty() ? text_of(folder.dtypes(params)) : dtype;
  extras.tokenizer_files = read_companions(source);
  if (extras.source_dtype.find("F64") != std::string::npos) {
    std::printf("note: F64 weights are rounded to fp32; converting back does not restore their last bits\n");
  }

  std::vector<StateTensor> tensors;
  int64_t parameters = 0;
  for (const Param& p : params) {
    tensors.push_back({dataset_name("weights", p), dataset_dims(p)});
    parameters += p.elements();
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });

  const fs::path place = fs::absolute(target).lexically_normal();
  const fs::path plain = place.has_filename() ? place : place.parent_path();  // "out/" means out
  const std::string temporary = plain.parent_path().string() + "/.writing-" + plain.filename().string();
  make_folder(plain.parent_path().string());
  remove_folder(temporary);
  make_folder(temporary);
  int64_t bytes = 0;
  try {
    create_state_file(temporary, tensors, TrainState{}, extras);
    h5::File file = h5::File::open_write(temporary + "/" + state_file);
    copy_weights(folder, params, file);
    file.close();
    sync_path(temporary + "/" + state_file);
    Manifest manifest;
    manifest.sequence = 1;
    manifest.mesh = "converted from a Hugging Face folder";
    manifest.optimizer = false;
    bytes = seal_folder(temporary, plain.string(), std::move(manifest));
  } catch (...) {
    std::error_code ignored_error;
    fs::remove_all(temporary, ignored_error);
    throw;
  }
  std::printf("%s: checkpoint of %lld parameters (%s, source %s), %.3f GB\n", target.c_str(),
              static_cast<long long>(parameters), config.family.c_str(), extras.source_dtype.c_str(),
              static_cast<double>(bytes) / 1e9);
}

void to_hf_folder(MPI_Comm comm, const std::string& source, const std::string& target, const std::string& dtype) {
  const CheckpointContents contents = read_checkpoint_contents(source);
  const CheckpointExtras& extras = contents.extras;
  if (extras.config_json.empty()) throw DataError(source + ": holds no model config (/config is empty)");
  std::vector<std::string> ignored;
  const ModelConfig config = parse_hf_config(extras.config_json, source + " /config", &ignored);
  const std::vector<Param> params = model_params(config);
  // Empty pieces read nothing, but every tensor is compared with the model, and the files with their checksums.
  std::vector<StatePiece> nothing;
  for (const Param& p : params) nothing.push_back({&p, "weights", Piece{0, 0, 0, 0}, nullptr, true});
  load_checkpoint(comm, source, nothing, nullptr, Trust::checksums);

  HfExportOptions options;
  if (dtype.empty()) {
    read_dtypes(extras.source_dtype, options);
  } else {
    options = export_options(dtype, params);
  }
  const h5::File file = h5::File::open_read(source + "/" + state_file);
  make_folder(target);
  write_companions(target, extras.tokenizer_files);
  write_hf_folder(
      target, params, write_hf_config(config, options.dtype, extras.config_json),
      [&](const Param& p, const Piece& piece, float* out) {
        file.read_floats(dataset_name("weights", p), piece, out);
      },
      options);
  std::printf("%s: Hugging Face folder of step %lld, %lld parameters (%s) in %s\n", target.c_str(),
              static_cast<long long>(contents.state.step), static_cast<long long>(contents.parameters),
              config.family.c_str(), options.dtype.c_str());
}

int convert(const CommandArgs& given) {
  CLI::App app{"A Hugging Face folder becomes a checkpoint, a checkpoint becomes a Hugging Face folder",
               "orthant convert"};
  std::string source, target, dtype;
  app.add_option("SRC", source, "a checkpoint (has manifest.json) or a Hugging Face folder (has config.json)")
      ->required();
  app.add_option("DST", target, "the folder to write; must be new or empty")->required();
  app.add_option(
      "--dtype", dtype,
      "dtype of the Hugging Face files: fp32, bf16, fp16, fp64 (default: that of the source). A checkpoint "
      "always holds fp32 and remembers it");
  if (!parse(app, given)) return static_cast<int>(Exit::done);
  if (!dtype.empty()) dtype = file_dtype(dtype);
  std::error_code error;
  const bool checkpoint = is_checkpoint(source), hf = fs::exists(source + "/config.json", error);
  if (!checkpoint && !hf) {
    throw DataError(source +
                    ": neither a checkpoint (no manifest.json) nor a Hugging Face folder (no config.json); " +
                    "the checkpoints of a run are in its folder checkpoints/step-…");
  }
  refuse_used_folder(target);
  if (checkpoint) {
    to_hf_folder(given.world, source, target, dtype);
  } else {
    to_checkpoint(source, target, dtype);
  }
  return static_cast<int>(Exit::done);
}

const bool added =
    add_command({.name = "convert",
                 .summary = "a Hugging Face folder to a checkpoint, or a checkpoint to a Hugging Face folder",
                 .needs_mpi = true,
                 .many_ranks = false,
                 .run = convert});

}  // namespace

}  // namespace orthant
