// What a Hugging Face folder holds beside config and weights, carried from folder to checkpoint to folder.
#pragma once

#include <map>
#include <string>

namespace orthant {

/// File name -> content, byte for byte.
using CompanionFiles = std::map<std::string, std::string>;

/// The files of `folder` that belong to its tokenizer, and its settings for generation; those that are not there are
/// left out. DataError if one cannot be read.
CompanionFiles read_companions(const std::string& folder);

/// Writes them into `folder`, which exists; each is on disk on return. DataError if that fails.
void write_companions(const std::string& folder, const CompanionFiles& files);

}  // namespace orthant
