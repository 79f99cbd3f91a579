// Samples for people: their hash, and a short printed form.
#include <ostream>

#include "data/index_format.hpp"
#include "data/sha256.hpp"
#include "orthant/data.hpp"

namespace orthant {

std::string stream_sha256(const SampleStream& stream, int64_t n) {
  Sha256 hash;
  std::vector<int32_t> row(static_cast<size_t>(stream.sequence() + 1));
  for (int64_t i = 0; i < n; ++i) {
    stream.sample(i, row.data());
    hash.add(row.data(), row.size() * sizeof(int32_t));  // little-endian: index_format.hpp asserts that we are
  }
  return hash.hex();
}

void print_samples(std::ostream& out, const SampleStream& stream, int64_t n) {
  constexpr size_t head = 12, tail = 4;
  std::vector<int32_t> row(static_cast<size_t>(stream.sequence() + 1));
  for (int64_t i = 0; i < n; ++i) {
    stream.sample(i, row.data());
    const auto pieces = stream.pieces(i);
    out << "sample " << i << "  " << stream.sources()[static_cast<size_t>(pieces.front().source)] << "  document";
    if (pieces.size() > 1) out << 's';
    for (size_t k = 0; k < pieces.size(); ++k) {
      if (k == 4 && pieces.size() > 5) {
        out << " … (" << pieces.size() << " runs)";
        break;
      }
      out << (k == 0 ? " " : ", ") << pieces[k].document;
    }
    out << "  tokens";
    for (size_t k = 0; k < row.size(); ++k) {
      if (k == head && row.size() > head + tail) {
        out << " …";
        k = row.size() - tail;
      }
      out << ' ' << row[k];
    }
    out << '\n';
  }
  out << "sha256 " << stream_sha256(stream, n) << "  (" << n << " rows of " << row.size()
      << " little-endian int32)\n";
}

}  // namespace orthant
