// Help for the data tests: a folder that goes away, datasets written in one line, errors compared by their words.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

#include "orthant/data.hpp"
#include "orthant/error.hpp"

namespace orthant::testing {

/// A fresh folder, removed at the end.
class Scratch {
 public:
  Scratch() {
    static std::atomic<int> count{0};
    folder_ = std::filesystem::temp_directory_path() /
              ("orthant-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(folder_);
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string text(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  /// One sequence a document -> the prefix.
  std::string write(const std::string& name, const std::vector<std::vector<int32_t>>& documents,
                    TokenType type = TokenType::i32) const {
    IndexedWriter writer(path(name), type);
    for (const auto& document : documents) {
      writer.append(document.data(), static_cast<int64_t>(document.size()));
      writer.end_sequence();
      writer.end_document();
    }
    writer.finish();
    return path(name);
  }
  /// Names of the files in the folder.
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  std::filesystem::path folder_;
};

inline std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// All sequences of a dataset.
inline std::vector<std::vector<int32_t>> sequences_of(const std::string& prefix) {
  const IndexedDataset data(prefix);
  std::vector<std::vector<int32_t>> all;
  for (int64_t s = 0; s < data.sequences(); ++s) {
    all.emplace_back(static_cast<size_t>(data.length(s)));
    data.read(s, 0, data.length(s), all.back().data());
  }
  return all;
}

inline void expect_words(const std::string& message, const std::vector<std::string>& words, const char* file,
                         int line) {
  for (const auto& word : words)
    if (message.find(word) == std::string::npos)
      ADD_FAILURE_AT(file, line) << "the message lacks \"" << word << "\":\n  " << message;
}

template <typename Class>
bool same_kind(const std::exception& error) {
  if (dynamic_cast<const Class*>(&error) != nullptr) return true;
  if constexpr (std::is_base_of_v<Error, Class>) {  // other ranks get the code and the text, not the class
    const auto* agreed = dynamic_cast<const Error*>(&error);
    return agreed != nullptr && agreed->code() == Class("").code();
  }
  return false;
}

}  // namespace orthant::testing

/// The statement throws this class, or an agreed error of the same exit code, and its message holds all these texts.
#define EXPECT_ERROR(Class, statement, ...)                                            \
  try {                                                                                \
    statement;                                                                         \
    ADD_FAILURE() << "no " #Class " from " #statement;                                 \
  } catch (const std::exception& error) {                                              \
    if (!::orthant::testing::same_kind<Class>(error)) {                                \
      ADD_FAILURE() << "another error than " #Class ": " << error.what();              \
    }                                                                                  \
    ::orthant::testing::expect_words(error.what(), {__VA_ARGS__}, __FILE__, __LINE__); \
  }
