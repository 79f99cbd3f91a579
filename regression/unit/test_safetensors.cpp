// Safetensors files: what is read is what was written, and every broken file is refused with its reason.
// labels: smoke asan
// seconds: 60
#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "checkpoint/float_formats.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/safetensors_writer.hpp"
#include "model_file_helpers.hpp"

using namespace orthant;
using namespace orthant::testing_files;

namespace {

class Safetensors : public ::testing::Test {
 protected:
  TempFolder folder_;
  std::string file_ = folder_.path("model.safetensors");

  void refused(const std::string& content, std::vector<std::string> parts) {
    write_text(file_, content);
    parts.push_back("model.safetensors");
    expect_error<DataError>([&] { SafetensorsFile f(file_); }, parts);
  }
  SafetensorsFile opened(const std::string& content) {
    write_text(file_, content);
    return SafetensorsFile(file_);
  }
};

std::string two(const std::string& a, const std::string& b) {
  return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + a +
         R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + b + "}}";
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

std::vector<float> read_all(const SafetensorsFile& f, const std::string& name) {
  const TensorEntry* e = f.find(name);
  std::vector<float> out(static_cast<size_t>(e->elements()));
  f.read_region(*e, 0, e->rows(), 0, e->cols(), false, out.data());
  return out;
}

}  // namespace

// case O094
TEST_F(Safetensors, HeaderLengthThatCannotBeTrue) {
  const std::string good = raw_safetensors(one("F32", "[1]", "[0,4]"), std::string(4, 'x'));
  EXPECT_EQ(opened(good).entries().size(), 1u);
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const uint64_t size = good.size();
  for (uint64_t length : {uint64_t{0}, uint64_t{1}, size - 7, size, uint64_t{1} << 31, uint64_t{1} << 63,
                          ~uint64_t{0} - 4, ~uint64_t{0} - 7, ~uint64_t{0}}) {
    refused(raw_safetensors(length, good.substr(8), ""), {"header length", std::to_string(length)});
  }
  refused("", {"0 bytes"});
  refused(good.substr(0, 7), {"7 bytes"});
  refused(raw_safetensors("hello, world", ""), {"not a JSON object"});
  refused(raw_safetensors("[1, 2]", ""), {"not a JSON object"});
  refused(raw_safetensors("{\"a\":", ""), {"not valid JSON"});
  refused(raw_safetensors("{} trailing", ""), {"not valid JSON"});
  refused(raw_safetensors(std::string("{}\0{}", 5), ""), {"zero byte"});
  refused(raw_safetensors("{\"\xff\xfe\":{}}", ""), {"not valid JSON"});
  refused(raw_safetensors("{\"a\":" + std::string(100000, '['), ""), {"tensor \"a\""});
  std::string deep = "{";
  for (int i = 0; i < 100000; ++i) deep += "\"a\":{";
  refused(raw_safetensors(deep, ""), {"tensor \"a\""});
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 100 * 1024) << "KiB taken while refusing small files";
  expect_error<DataError>([&] { SafetensorsFile f(folder_.path("absent")); }, {"absent", "cannot open"});
  expect_error<DataError>([&] { SafetensorsFile f(folder_.path()); }, {"not a regular file"});
}

TEST_F(Safetensors, HeaderBeyondTheLimit) {  // case O094: a true length, but more than any model needs
  write_text(file_, raw_safetensors(uint64_t{100'000'001}, "{}", ""));
  std::filesystem::resize_file(file_, 100'000'100);
  expect_error<DataError>([&] { SafetensorsFile f(file_); }, {"100000001", "100000000", "model.safetensors"});
}

// case O095
TEST_F(Safetensors, RangesMustTileTheData) {
  const std::string data(16, 'x');
  refused(raw_safetensors(two("[0,8]", "[0,8]"), data.substr(8)), {"\"a\"", "\"b\"", "overlaps"});
  refused(raw_safetensors(two("[0,8]", "[4,12]"), data.substr(4)), {"\"b\" [4, 12]", "overlaps"});
  refused(raw_safetensors(two("[0,8]", "[12,20]"), data + "xxxx"), {"\"b\" [12, 20]", "belong to no tensor"});
  refused(raw_safetensors(two("[4,12]", "[12,20]"), data + "xxxx"), {"\"a\" [4, 12]", "belong to no tensor"});
  refused(raw_safetensors(two("[0,8]", "[8,16]"), data + "xxxx"), {"4 bytes after", "\"b\""});
  refused(raw_safetensors(two("[0,8]", "[16,8]"), data), {"\"b\"", "end before they begin"});
  refused(raw_safetensors(two("[0,8]", "[8,16]"), data.substr(1)), {"\"b\" [8, 16]", "beyond the file"});
  refused(raw_safetensors(two("[0,8]", "[-8,0]"), data), {"\"b\"", "-8"});
  refused(raw_safetensors("{}", "x"), {"1 bytes after"});
  const auto f = opened(raw_safetensors(two("[8,16]", "[0,8]"), bytes_of<float>({1, 2, 3, 4})));
  EXPECT_EQ(read_all(f, "a"), (std::vector<float>{3, 4}));
  EXPECT_EQ(read_all(f, "b"), (std::vector<float>{1, 2}));
  EXPECT_EQ(f.entries()[0].name, "b");
  EXPECT_EQ(f.find("c"), nullptr);
}

// case O096 (one file; two files: test_hf_folder)
TEST_F(Safetensors, SameNameTwice) {
  std::string header = two("[0,8]", "[8,16]");
  header[header.find("\"b\"") + 1] = 'a';
  refused(raw_safetensors(header, std::string(16, 'x')), {"\"a\"", "twice"});
  refused(raw_safetensors(R"({"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", "xxxx"),
          {"\"a\"", "dtype twice"});
  refused(raw_safetensors(R"({"__metadata__":{"k":"1","k":"2"}})", ""), {"__metadata__", "\"k\" twice"});
}

// case O097
TEST_F(Safetensors, DtypesAreExact) {
  const std::string bf16("\x80\x3f\x00\xc0\x00\x3f\xc0\x7f", 8);
  {
    const auto f = opened(raw_safetensors(one("BF16", "[4]", "[0,8]"), bf16));
    const auto x = read_all(f, "a");
    EXPECT_EQ(x[0], 1.0f);
    EXPECT_EQ(x[1], -2.0f);
    EXPECT_EQ(x[2], 0.5f);
    EXPECT_TRUE(std::isnan(x[3]));
    SafetensorsWriter w(folder_.path("copy"), {{"a", "BF16", {4}}});
    w.write("a", x.data(), 4);
    w.finish();
    const std::string copy = read_text(folder_.path("copy"));
    EXPECT_EQ(copy.substr(copy.size() - 8), bf16);
  }
  EXPECT_EQ(read_all(opened(raw_safetensors(one("F16", "[1]", "[0,2]"), std::string("\x00\x3c", 2))), "a")[0], 1.0f);
  EXPECT_EQ(read_all(opened(raw_safetensors(one("F64", "[2]", "[0,16]"), bytes_of<double>({0.1, -3}))), "a"),
            (std::vector<float>{0.1f, -3.0f}));
  for (const auto& [dtype, bytes] : {std::pair{"I64", 8}, {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}}) {
    const auto f =
        opened(raw_safetensors(one(dtype, "[1]", "[0," + std::to_string(bytes) + "]"), std::string(bytes, 'x')));
    expect_error<DataError>([&] { read_all(f, "a"); }, {"\"a\"", dtype, "BF16"});
  }
  refused(raw_safetensors(one("FLOAT", "[1]", "[0,4]"), "xxxx"), {"\"a\"", "\"FLOAT\"", "F32"});
  refused(raw_safetensors(one("f32", "[1]", "[0,4]"), "xxxx"), {"\"f32\""});
  expect_error<UsageError>([] { file_dtype("int8"); }, {"int8", "bf16"});
  EXPECT_EQ(file_dtype("bf16"), "BF16");
}

// case O098
TEST_F(Safetensors, TensorsWithoutElements) {
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"e":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},)"
      R"("g":{"dtype":"F32","shape":[0,5],"data_offsets":[4,4]},"b":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})";
  const auto f = opened(raw_safetensors(header, bytes_of<float>({7, 8})));
  EXPECT_EQ(f.find("e")->elements(), 0);
  EXPECT_TRUE(read_all(f, "g").empty());
  EXPECT_EQ(read_all(f, "b"), (std::vector<float>{8}));
  EXPECT_EQ(f.find("b")->shape_text(), "[]");
  refused(raw_safetensors(one("F32", "[1]", "[0,0]"), ""), {"\"a\"", "needs 4 bytes"});
}

TEST_F(Safetensors, ShapesAndFieldsThatCannotBe) {
  refused(raw_safetensors(one("F32", "[3]", "[0,8]"), std::string(8, 'x')), {"\"a\"", "needs 12 bytes"});
  refused(raw_safetensors(one("F32", "[-2]", "[0,8]"), std::string(8, 'x')), {"\"a\"", "shape", "-2"});
  refused(raw_safetensors(one("F32", "[2.0]", "[0,8]"), std::string(8, 'x')), {"\"a\"", "2.0"});
  // 2^32 x 2^32 elements wrap to 0 bytes in 64 bits
  refused(raw_safetensors(one("F32", "[4294967296,4294967296]", "[0,0]"), ""), {"\"a\"", "more bytes than"});
  refused(raw_safetensors(one("F32", "[4611686018427387904]", "[0,0]"), ""), {"\"a\"", "more bytes than"});
  refused(raw_safetensors(one("F32", "[18446744073709551615]", "[0,0]"), ""), {"\"a\"", "18446744073709551615"});
  refused(raw_safetensors(one("F32", "[99999999999999999999999]", "[0,0]"), ""), {"\"a\""});
  refused(raw_safetensors(one("F4", "[3]", "[0,2]"), "xx"), {"\"a\"", "whole bytes"});
  refused(raw_safetensors(one("F32", "[2]", "[0,8,16]"), std::string(8, 'x')), {"\"a\"", "more than two"});
  refused(raw_safetensors(one("F32", "[2]", "[0]"), std::string(8, 'x')), {"\"a\"", "fewer than two"});
  refused(raw_safetensors(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", "xxxx"), {"\"a\"", "no dtype"});
  refused(raw_safetensors(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", "xxxx"), {"\"a\"", "no shape"});
  refused(raw_safetensors(R"({"a":{"dtype":"F32","shape":[1]}})", "xxxx"), {"\"a\"", "no data_offsets"});
  refused(raw_safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", "xxxx"),
          {"\"a\"", "\"x\""});
  refused(raw_safetensors(R"({"a":{"dtype":null,"shape":[1],"data_offsets":[0,4]}})", "xxxx"), {"\"a\"", "null"});
  refused(raw_safetensors(R"({"a":7})", ""), {"\"a\"", "7"});
  refused(raw_safetensors(R"({"__metadata__":{"k":1}})", ""), {"__metadata__", "\"k\"", "strings"});
  const auto f = opened(raw_safetensors(R"({"__metadata__":{"format":"pt","k":"v"}}   )", ""));
  EXPECT_EQ(f.metadata().at("k"), "v");
}

// case O018: a value that tells its place, square and not square, whole and in pieces
TEST_F(Safetensors, RegionsAndTransposes) {
  for (auto [rows, cols] : {std::pair<int64_t, int64_t>{70, 70}, {37, 90}, {90, 37}}) {
    std::vector<float> all(static_cast<size_t>(rows * cols));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) all[i * cols + j] = static_cast<float>(1000 * i + j);
    }
    SafetensorsWriter w(file_, {{"m", "F32", {rows, cols}}});
    w.write("m", all.data(), 10);  // in pieces that end anywhere
    w.write("m", all.data() + 10, rows * cols - 10);
    w.finish();
    SafetensorsFile f(file_);
    const TensorEntry& e = *f.find("m");
    std::vector<float> piece(30 * 20);
    f.read_region(e, 5, 30, 7, 20, false, piece.data());
    for (int i = 0; i < 30; ++i) {
      for (int j = 0; j < 20; ++j) ASSERT_EQ(piece[i * 20 + j], 1000 * (5 + i) + 7 + j);
    }
    f.read_region(e, 5, 30, 7, 20, true, piece.data());  // rows 5.. of the transpose are columns 5.. of the file
    for (int i = 0; i < 30; ++i) {
      for (int j = 0; j < 20; ++j) ASSERT_EQ(piece[i * 20 + j], 1000 * (7 + j) + 5 + i);
    }
    std::vector<double> wide(static_cast<size_t>(rows * cols));
    f.read_region(e, 0, cols, 0, rows, true, wide.data());
    EXPECT_EQ(wide[1], 1000.0);
    EXPECT_THROW(f.read_region(e, 0, rows + 1, 0, 1, false, piece.data()), LogicError);
    EXPECT_THROW(f.read_region(e, rows, 1, 0, 1, false, piece.data()), LogicError);
    EXPECT_THROW(f.read_region(e, -1, 1, 0, 1, false, piece.data()), LogicError);
  }
  const auto f = opened(raw_safetensors(one("F32", "[1,1,2]", "[0,8]"), std::string(8, 'x')));
  expect_error<DataError>(
      [&] {
        std::vector<float> x(2);
        f.read_region(*f.find("a"), 0, 1, 0, 1, false, x.data());
      },
      {"\"a\"", "two dims"});
}

// An odd header length puts every number at an odd address.
TEST_F(Safetensors, UnalignedData) {
  std::string header = one("F32", "[2]", "[0,8]");
  if (header.size() % 2 == 0) header += ' ';
  EXPECT_EQ(read_all(opened(raw_safetensors(header, bytes_of<float>({1.5f, -2.5f}))), "a"),
            (std::vector<float>{1.5f, -2.5f}));
}

TEST_F(Safetensors, WriterIsAtomicAndComplete) {
  const std::vector<float> x = {1, 2, 3};
  write_text(file_, "old");
  {
    SafetensorsWriter w(file_, {{"b", "F32", {3}}, {"a", "F32", {}}});
    w.write("b", x.data(), 2);
    EXPECT_EQ(read_text(file_), "old");
    EXPECT_THROW(w.write("b", x.data(), 2), LogicError);
    EXPECT_THROW(w.write("c", x.data(), 1), LogicError);
    EXPECT_THROW(w.finish(), LogicError);
  }
  EXPECT_EQ(read_text(file_), "old");
  int files = 0;
  for (const auto& item : std::filesystem::directory_iterator(folder_.path())) files += item.is_regular_file();
  EXPECT_EQ(files, 1) << "the unfinished file stayed";
  SafetensorsWriter w(file_, {{"b", "F32", {3}}, {"a", "F16", {}}, {"c", "F64", {1}}, {"e", "F32", {0, 4}}});
  w.write("a", x.data(), 1);
  w.write("b", x.data(), 3);
  w.write("c", x.data() + 2, 1);
  w.finish();
  SafetensorsFile f(file_);
  EXPECT_EQ(f.metadata().at("format"), "pt");
  EXPECT_EQ(read_all(f, "b"), x);
  EXPECT_EQ(read_all(f, "c"), (std::vector<float>{3}));
  EXPECT_EQ(read_all(f, "a"), (std::vector<float>{1}));
  EXPECT_EQ(f.entries()[0].name, "c");  // wide types first
  EXPECT_THROW(SafetensorsWriter(folder_.path("x"), {{"a", "F32", {1}}, {"a", "F32", {1}}}), LogicError);
  expect_error<UsageError>([&] { SafetensorsWriter y(folder_.path("x"), {{"a", "I32", {1}}}); }, {"\"a\"", "I32"});
  expect_error<DataError>([&] { SafetensorsWriter y(folder_.path("no/such/x"), {{"a", "F32", {1}}}); }, {"no/such"});
}

TEST(FloatFormats, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t h = 0; h < 65536; ++h) {
    ASSERT_EQ(f16_from_float(float_from_f16(static_cast<uint16_t>(h))), h);
    ASSERT_EQ(bf16_from_float(float_from_bf16(static_cast<uint16_t>(h))), h);
  }
  EXPECT_EQ(float_from_f16(0x3555), 0.333251953125f);
  EXPECT_EQ(float_from_f16(0x0001), 0x1p-24f);
  EXPECT_EQ(float_from_f16(0x7bff), 65504.0f);
}

TEST(FloatFormats, RoundsToNearestEven) {
  // between two neighbours the middle goes to the even one, anything off the middle to the nearer one
  for (uint32_t h = 0; h < 0x7bff; ++h) {
    const float a = float_from_f16(static_cast<uint16_t>(h)), b = float_from_f16(static_cast<uint16_t>(h + 1));
    const float middle = a + (b - a) / 2;
    ASSERT_EQ(f16_from_float(middle), (h & 1) ? h + 1 : h) << h;
    ASSERT_EQ(f16_from_float(std::nextafter(middle, 0.0f)), h) << h;
    ASSERT_EQ(f16_from_float(std::nextafter(middle, 1e9f)), h + 1) << h;
    ASSERT_EQ(f16_from_float(-std::nextafter(middle, 1e9f)), (h + 1) | 0x8000u) << h;
  }
  EXPECT_EQ(f16_from_float(65519.99f), 0x7bff);
  EXPECT_EQ(f16_from_float(65520.0f), 0x7c00);
  EXPECT_EQ(f16_from_float(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // middle, even below
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // middle, even above
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(float_from_f16(f16_from_float(std::bit_cast<float>(0xff800001u)))));
}
