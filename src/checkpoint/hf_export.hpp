// Writes a model as a Hugging Face folder: parameters are gathered into the file's tensors, in bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/safetensors_writer.hpp"
#include "orthant/param.hpp"

namespace orthant {

/// Fills `out`, dense and row-major, with a piece of a parameter.
using ParamSource = std::function<void(const Param& param, const Piece& piece, float* out)>;

struct HfExportOptions {
  std::string dtype = "F32";                  ///< F32, BF16, F16 or F64, for tensors not in `dtypes`
  std::map<std::string, std::string> dtypes;  ///< dtype by FileTensor::tensor (what HfFolder::dtypes returned)
  int64_t shard_bytes = 5'000'000'000;        ///< a larger model is cut into files of at most this many bytes of data
  bool overwrite = false;                     ///< replace a model that the folder holds already
};

/// Everything in `dtype`, but parameters that are not trained (the selection bias of a router) in nothing narrower than
/// F32: they are used in fp32 at any precision, and small steps of theirs are below the last bit of a narrow number.
HfExportOptions export_options(const std::string& dtype, const std::vector<Param>& params);

/// The tensors a model has in its files, in order of first use by a parameter. LogicError if the parameters do not
/// fill each of them exactly once.
std::vector<TensorSpec> file_tensors(const std::vector<Param>& params, const HfExportOptions& options);

/// Writes config.json (`config_text`, see write_hf_config) and model.safetensors, or shards with
/// model.safetensors.index.json. Each file appears whole under its name or not at all, the one that makes the folder
/// a model (single file or index) last. The folder is made if need be. DataError if it cannot be written, or if it
/// holds a model already and `overwrite` is off.
void write_hf_folder(const std::string& folder, const std::vector<Param>& params, const std::string& config_text,
                     const ParamSource& source, const HfExportOptions& options = {});

}  // namespace orthant
