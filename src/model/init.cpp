// Initial weights: counter-based normal numbers, the same for any piece of a parameter on any mesh.
#include "model/init.hpp"

#include <xxhash.h>

#include <algorithm>

#include "orthant/error.hpp"
#include "orthant/philox.hpp"

namespace orthant {
namespace {

/// Counters drawn together: small enough for the stack, long enough for vector loops.
constexpr int64_t group = 64;

struct Key {
  uint32_t low, high;
};

/// z[4 i + j] = normal number j of counter first + i, times std, for i in [0, count), count <= group.
void draw(Key key, uint64_t first, int64_t count, double std, float* z) {
  uint32_t words[4][group];
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t counter = first + static_cast<uint64_t>(i);
    const Philox4 w =
        philox(static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0, key.low, key.high);
    words[0][i] = w.x0;
    words[1][i] = w.x1;
    words[2][i] = w.x2;
    words[3][i] = w.x3;
  }
  constexpr double two_pi = 6.283185307179586;
  for (int pair = 0; pair < 2; ++pair) {
    float cosines[group], sines[group];
    for (int64_t i = 0; i < count; ++i) {
      const double radius = sqrt_(-2.0 * log_(unit_interval(words[2 * pair][i])));
      const double angle = two_pi * unit_interval(words[2 * pair + 1][i]);
      cosines[i] = static_cast<float>(std * (radius * cos_(angle)));
      sines[i] = static_cast<float>(std * (radius * sin_(angle)));
    }
    for (int64_t i = 0; i < count; ++i) {
      z[4 * i + 2 * pair] = cosines[i];
      z[4 * i + 2 * pair + 1] = sines[i];
    }
  }
}

/// out[0, count) = elements [begin, begin + count).
void draw_range(Key key, double std, int64_t begin, int64_t count, float* out) {
  float z[4 * group];
  int64_t at = begin;
  const int64_t end = begin + count;
  while (at < end) {
    const int64_t first = at / 4 * 4, stop = std::min(end, first + 4 * group);
    draw(key, static_cast<uint64_t>(first / 4), (stop - first + 3) / 4, std, z);
    std::copy(z + (at - first), z + (stop - first), out + (at - begin));
    at = stop;
  }
}

}  // namespace

void init_param(const Param& param, uint64_t seed, const Piece& piece, float* out) {
  ORTHANT_ENSURE(piece.row >= 0 && piece.rows >= 0 && piece.row + piece.rows <= param.rows() && piece.col >= 0 &&
                     piece.cols >= 0 && piece.col + piece.cols <= param.cols(),
                 "initialisation of a piece outside of parameter " + param.name);
  if (param.init.kind != Init::normal) {
    std::fill(out, out + piece.elements(), param.init.kind == Init::ones ? 1.0f : 0.0f);
    return;
  }
  const uint64_t hash = XXH64(param.name.data(), param.name.size(), seed);
  const Key key{static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32)};
  // whole rows follow each other in the counter: one run of elements, else a run for each row
  const bool whole = piece.cols == param.cols();
  const int64_t runs = whole ? 1 : piece.rows, length = whole ? piece.elements() : piece.cols;
  const int64_t chunk = 16384, chunks = (length + chunk - 1) / chunk;
#pragma omp parallel for schedule(static) if (piece.elements() >= chunk)
  for (int64_t task = 0; task < runs * chunks; ++task) {
    const int64_t run = task / chunks, begin = task % chunks * chunk;
    const int64_t first = (piece.row + run) * param.cols() + piece.col + begin;
    draw_range(key, param.init.std, first, std::min(chunk, length - begin), out + run * length + begin);
  }
}

}  // namespace orthant
