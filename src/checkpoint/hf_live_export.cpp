// See hf_live_export.hpp.
#include "checkpoint/hf_live_export.hpp"

#include <chrono>

#include "checkpoint/folders.hpp"
#include "checkpoint/gather_pieces.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_export.hpp"
#include "orthant/error.hpp"
#include "orthant/model.hpp"
#include "support/agree.hpp"

namespace orthant {

HfLiveExport::HfLiveExport(const ModelConfig& model, std::string folder, const std::string& dtype)
    : model_(model),
      folder_(std::move(folder)),
      dtype_(file_dtype(dtype)),
      config_text_(write_hf_config(model, dtype_)) {}

void HfLiveExport::carry(const CheckpointExtras& extras) {
  companions_ = extras.tokenizer_files;
  if (extras.config_json.empty()) return;
  // from the text alone, as convert does it, so that the two cannot differ
  config_text_ = write_hf_config(parse_hf_config(extras.config_json, "/config", nullptr), dtype_, extras.config_json);
}

LiveExportReport HfLiveExport::write(MPI_Comm comm, int64_t step, const std::vector<StatePiece>& pieces) const {
  const auto start = std::chrono::steady_clock::now();
  LiveExportReport report;
  const std::string name = step_folder_name(step), temporary = folder_ + "/.writing-" + name;
  report.folder = folder_ + "/" + name;
  // Not kept between exports: the records of a model with many experts take memory on every rank.
  const std::vector<Param> params = model_params(model_);
  const HfExportOptions options = export_options(dtype_, params);
  with_gathered_pieces(comm, params, "weights", pieces, [&](const ParamSource& source) {
    try {
      make_folder(folder_);
      remove_leftovers(folder_);  // of a life that was killed while it exported
      make_folder(temporary);
      write_companions(temporary, companions_);
      write_hf_folder(temporary, params, config_text_, source, options);
      publish_folder(temporary, report.folder);
    } catch (...) {
      try {
        remove_folder(temporary);
      } catch (const DataError&) {  // the first error is the one to report; the next export tries again
      }
      throw;
    }
    for (const TensorSpec& t : file_tensors(params, options)) report.bytes += t.bytes();
  });
  ORTHANT_MPI(MPI_Bcast(&report.bytes, 1, MPI_INT64_T, 0, comm));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace orthant
