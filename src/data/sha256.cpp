// SHA-256 (FIPS 180-4, sections 4.1.2, 5.1.1 and 6.2).
#include "data/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace orthant {

// fractional parts of the cube roots of the first 64 primes
static constexpr uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void Sha256::block(const unsigned char* bytes) {
  uint32_t w[64];
  for (int t = 0; t < 16; ++t)
    w[t] = uint32_t{bytes[4 * t]} << 24 | uint32_t{bytes[4 * t + 1]} << 16 | uint32_t{bytes[4 * t + 2]} << 8 |
           bytes[4 * t + 3];
  for (int t = 16; t < 64; ++t) {
    const uint32_t near = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t far = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = far + w[t - 7] + near + w[t - 16];
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int t = 0; t < 64; ++t) {
    const uint32_t choose = (e & f) ^ (~e & g), majority = (a & b) ^ (a & c) ^ (b & c);
    const uint32_t first =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + choose + round_constants[t] + w[t];
    const uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + majority;
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const uint32_t now[8] = {a, b, c, d, e, f, g, h};
  for (size_t k = 0; k < 8; ++k) state_[k] += now[k];
}

void Sha256::add(const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  while (bytes > 0) {
    const size_t used = total_ % 64;
    if (used == 0 && bytes >= 64) {
      block(at);
      at += 64, bytes -= 64, total_ += 64;
      continue;
    }
    const size_t take = std::min(bytes, 64 - used);
    std::memcpy(pending_.data() + used, at, take);
    at += take, bytes -= take, total_ += take;
    if (used + take == 64) block(pending_.data());
  }
}

std::string Sha256::hex() {
  const uint64_t bits = total_ * 8;
  const unsigned char one = 0x80, zero = 0;
  add(&one, 1);
  while (total_ % 64 != 56) add(&zero, 1);
  unsigned char length[8];
  for (int k = 0; k < 8; ++k) length[k] = static_cast<unsigned char>(bits >> (56 - 8 * k));
  add(length, 8);
  std::string out;
  for (const uint32_t word : state_)
    for (int shift = 28; shift >= 0; shift -= 4) out += "0123456789abcdef"[(word >> shift) & 15];
  return out;
}

}  // namespace orthant
