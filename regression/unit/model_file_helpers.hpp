// Shared by the tests of model files: a folder that goes away, safetensors files made by hand, and errors by content.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "orthant/error.hpp"

namespace orthant::testing_files {

/// A fresh folder under the working folder, removed at the end of the test.
class TempFolder {
 public:
  TempFolder() {
    static int count = 0;
    path_ = std::filesystem::current_path() /
            ("model_files-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  std::string path(const std::string& name = "") const {
    return name.empty() ? path_.string() : (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
}

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Length prefix, header, data, exactly as given.
inline std::string raw_safetensors(uint64_t length, const std::string& header, const std::string& data) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + header + data;
}
inline std::string raw_safetensors(const std::string& header, const std::string& data) {
  return raw_safetensors(header.size(), header, data);
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string text(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(text.data(), values.data(), text.size());
  return text;
}

/// The action must throw E (or a class derived from it) with every one of `parts` in its message.
template <class E, class Action>
void expect_error(Action action, const std::vector<std::string>& parts) {
  try {
    action();
    ADD_FAILURE() << "no error; expected one with: " << (parts.empty() ? "" : parts[0]);
  } catch (const E& e) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << "\"" << part << "\" not in: " << e.what();
    }
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another kind of error: " << e.what();
  }
}

}  // namespace orthant::testing_files
