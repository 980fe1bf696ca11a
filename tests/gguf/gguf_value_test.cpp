// SPDX-License-Identifier: MIT
#include "kvick/gguf/gguf_value.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "support/gguf_builder.hpp"

namespace kvick {
namespace {

using support::ByteString;
using support::expect_error;

constexpr std::string_view kKey = "some.key";

/// The value with these bytes after its key; they must outlive it.
GgufValue parse(const ByteString& bytes) {
  detail::ByteCursor cursor(bytes.bytes(), {"test", ""});
  GgufValue value = detail::read_gguf_value(kKey, cursor);
  EXPECT_EQ(cursor.num_left(), 0u) << "bytes left over";
  return value;
}

template <class T>
ByteString scalar(GgufType type, T number) {
  return ByteString().u32(static_cast<std::uint32_t>(type)).number(number);
}

ByteString array(GgufType element_type, std::uint64_t count) {
  return ByteString().u32(9).u32(static_cast<std::uint32_t>(element_type)).u64(count);
}

TEST(GgufValue, ReadsEveryIntegerTypeAsEveryWidthThatHoldsIt) {
  const ByteString values[] = {
      scalar<std::uint8_t>(GgufType::kUint8, 77),   scalar<std::int8_t>(GgufType::kInt8, 77),
      scalar<std::uint16_t>(GgufType::kUint16, 77), scalar<std::int16_t>(GgufType::kInt16, 77),
      scalar<std::uint32_t>(GgufType::kUint32, 77), scalar<std::int32_t>(GgufType::kInt32, 77),
      scalar<std::uint64_t>(GgufType::kUint64, 77), scalar<std::int64_t>(GgufType::kInt64, 77),
  };
  for (const ByteString& bytes : values) {
    const GgufValue value = parse(bytes);
    SCOPED_TRACE(name(value.type()));
    EXPECT_EQ(value.get<std::uint8_t>(), 77u);
    EXPECT_EQ(value.get<std::int8_t>(), 77);
    EXPECT_EQ(value.get<std::uint32_t>(), 77u);
    EXPECT_EQ(value.get<int>(), 77);
    EXPECT_EQ(value.get<long>(), 77);
    EXPECT_EQ(value.get<std::uint64_t>(), 77u);
    EXPECT_FALSE(value.is_array());
    EXPECT_EQ(value.num_elements(), 1u);
    EXPECT_EQ(value.key(), kKey);
  }
}

TEST(GgufValue, RefusesANegativeNumberWhereAnUnsignedOneIsWanted) {
  const auto bytes = scalar<std::int64_t>(GgufType::kInt64, -1);
  expect_error(ErrorCode::kFormat, {"'some.key'", "[0, 4294967295]", "got -1"},
               [&] { parse(bytes).get<std::uint32_t>(); });
}

TEST(GgufValue, ChecksBothEndsOfTheRange) {
  const auto most = scalar<std::uint64_t>(GgufType::kUint64, 0x7fffffffu);
  EXPECT_EQ(parse(most).get<std::int32_t>(), 0x7fffffff);
  const auto above = scalar<std::uint64_t>(GgufType::kUint64, 0x80000000u);
  expect_error(ErrorCode::kFormat, {"[-2147483648, 2147483647]", "got 2147483648"},
               [&] { parse(above).get<std::int32_t>(); });
  const auto below = scalar<std::int16_t>(GgufType::kInt16, -129);
  expect_error(ErrorCode::kFormat, {"[-128, 127]", "got -129"},
               [&] { parse(below).get<std::int8_t>(); });
  const auto huge = scalar<std::uint64_t>(GgufType::kUint64, UINT64_MAX);
  EXPECT_EQ(parse(huge).get<std::uint64_t>(), UINT64_MAX);
  expect_error(ErrorCode::kFormat, {"got 18446744073709551615"},
               [&] { parse(huge).get<std::int64_t>(); });
}

TEST(GgufValue, ExchangesFloatAndDouble) {
  const auto single = scalar(GgufType::kFloat32, 0.1f);
  EXPECT_EQ(parse(single).get<float>(), 0.1f);
  EXPECT_EQ(parse(single).get<double>(), static_cast<double>(0.1f));
  const auto twice = scalar(GgufType::kFloat64, 1e-5);
  EXPECT_EQ(parse(twice).get<double>(), 1e-5);
  EXPECT_EQ(parse(twice).get<float>(), 1e-5f);
}

TEST(GgufValue, RefusesADoubleThatWouldBecomeInfinite) {
  const auto bytes = scalar(GgufType::kFloat64, -1e300);
  expect_error(ErrorCode::kFormat, {"'some.key'", "got -1e+300"},
               [&] { parse(bytes).get<float>(); });
  const auto infinite = scalar(GgufType::kFloat64, std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse(infinite).get<float>(), std::numeric_limits<float>::infinity());
  const auto nan = scalar(GgufType::kFloat64, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(parse(nan).get<float>()));
}

TEST(GgufValue, ReadsBools) {
  EXPECT_TRUE(parse(scalar<std::uint8_t>(GgufType::kBool, 1)).get<bool>());
  EXPECT_FALSE(parse(scalar<std::uint8_t>(GgufType::kBool, 0)).get<bool>());
}

TEST(GgufValue, RefusesABoolThatIsNeither0Nor1) {
  expect_error(ErrorCode::kFormat, {"'some.key'", "0 or 1", "got 2"},
               [] { parse(scalar<std::uint8_t>(GgufType::kBool, 2)); });
  expect_error(ErrorCode::kFormat, {"'some.key'", "0 or 1", "got 255"},
               [] { parse(array(GgufType::kBool, 3).u8(0).u8(1).u8(255)); });
}

TEST(GgufValue, ReadsStringsAsViewsOfTheFile) {
  const auto bytes = ByteString().u32(8).string(std::string_view("a\0b\xff", 4));
  const GgufValue value = parse(bytes);
  EXPECT_EQ(value.get<std::string_view>(), std::string_view("a\0b\xff", 4));
  EXPECT_EQ(value.get<std::string>().size(), 4u);
  const void* text = value.get<std::string_view>().data();
  EXPECT_EQ(text, bytes.bytes().data() + 12);
  EXPECT_EQ(parse(ByteString().u32(8).string("")).get<std::string_view>(), "");
}

TEST(GgufValue, ReadsArraysOfNumbersWithTheSameConversions) {
  const auto bytes = array(GgufType::kInt16, 3)
                         .number<std::int16_t>(1)
                         .number<std::int16_t>(2)
                         .number<std::int16_t>(300);
  const GgufValue value = parse(bytes);
  EXPECT_TRUE(value.is_array());
  EXPECT_EQ(value.type(), GgufType::kArray);
  EXPECT_EQ(value.element_type(), GgufType::kInt16);
  EXPECT_EQ(value.num_elements(), 3u);
  EXPECT_EQ(value.get<std::vector<std::uint64_t>>(), (std::vector<std::uint64_t>{1, 2, 300}));
  expect_error(ErrorCode::kFormat, {"'some.key'", "[0, 255]", "got 300"},
               [&] { value.get<std::vector<std::uint8_t>>(); });

  const auto floats = array(GgufType::kFloat64, 2).number(0.5).number(-2.0);
  EXPECT_EQ(parse(floats).get<std::vector<float>>(), (std::vector<float>{0.5f, -2.0f}));
  const auto bools = array(GgufType::kBool, 3).u8(1).u8(0).u8(1);
  EXPECT_EQ(parse(bools).get<std::vector<bool>>(), (std::vector<bool>{true, false, true}));
}

TEST(GgufValue, ReadsArraysOfStrings) {
  const auto bytes = array(GgufType::kString, 3).string("one").string("").string("three");
  const GgufValue value = parse(bytes);
  const auto views = value.get<std::span<const std::string_view>>();
  ASSERT_EQ(views.size(), 3u);
  EXPECT_EQ(views[0], "one");
  EXPECT_EQ(views[1], "");
  EXPECT_EQ(views[2], "three");
  EXPECT_EQ(value.get<std::vector<std::string>>(), (std::vector<std::string>{"one", "", "three"}));
  EXPECT_EQ(value.get<std::vector<std::string_view>>().size(), 3u);
}

TEST(GgufValue, ReadsEmptyArrays) {
  EXPECT_TRUE(parse(array(GgufType::kInt32, 0)).get<std::vector<int>>().empty());
  EXPECT_TRUE(parse(array(GgufType::kString, 0)).get<std::span<const std::string_view>>().empty());
}

TEST(GgufValue, KeepsStringTablesWhenMoved) {
  const auto bytes = array(GgufType::kString, 2).string("one").string("two");
  GgufValue value = parse(bytes);
  const auto views = value.get<std::span<const std::string_view>>();
  const GgufValue moved = std::move(value);
  EXPECT_EQ(views.data(), moved.get<std::span<const std::string_view>>().data());
}

TEST(GgufValue, NamesKeyAndBothTypesWhenTheTypeIsWrong) {
  const auto text = ByteString().u32(8).string("x");
  const auto number = scalar<std::uint32_t>(GgufType::kUint32, 1);
  const auto real = scalar(GgufType::kFloat32, 1.0f);
  const auto flag = scalar<std::uint8_t>(GgufType::kBool, 1);
  const auto list = array(GgufType::kUint32, 1).u32(1);
  const auto code = ErrorCode::kFormat;
  expect_error(code, {"'some.key'", "must be integer", "found string"},
               [&] { parse(text).get<int>(); });
  expect_error(code, {"'some.key'", "must be string", "found u32"},
               [&] { parse(number).get<std::string_view>(); });
  expect_error(code, {"must be float", "found u32"}, [&] { parse(number).get<float>(); });
  expect_error(code, {"must be bool", "found u32"}, [&] { parse(number).get<bool>(); });
  expect_error(code, {"must be integer", "found f32"}, [&] { parse(real).get<int>(); });
  expect_error(code, {"must be integer", "found bool"}, [&] { parse(flag).get<int>(); });
  expect_error(code, {"must be integer", "found an array of u32"}, [&] { parse(list).get<int>(); });
  expect_error(code, {"must be an array of integer", "found u32"},
               [&] { parse(number).get<std::vector<int>>(); });
  expect_error(code, {"must be an array of string", "found an array of u32"},
               [&] { parse(list).get<std::span<const std::string_view>>(); });
}

TEST(GgufValue, RefusesAnInt8ArrayReadAsFloats) {
  // An engine that trusted the type read four times the bytes that were there.
  const auto bytes = array(GgufType::kInt8, 4).u32(0x01020304);
  expect_error(ErrorCode::kFormat, {"'some.key'", "array of float", "array of i8"},
               [&] { parse(bytes).get<std::vector<float>>(); });
}

TEST(GgufValue, RefusesUnknownTypes) {
  expect_error(ErrorCode::kFormat, {"'some.key'", "0 to 12", "got 13"},
               [] { parse(ByteString().u32(13).u64(0)); });
  expect_error(ErrorCode::kFormat, {"'some.key'", "0 to 12", "got 4294967295"},
               [] { parse(ByteString().u32(9).u32(UINT32_MAX).u64(0)); });
}

TEST(GgufValue, RefusesArraysOfArrays) {
  expect_error(ErrorCode::kUnsupported, {"'some.key'", "array of arrays"},
               [] { parse(ByteString().u32(9).u32(9).u64(1).u32(4).u64(0)); });
}

TEST(GgufValue, NamesEveryType) {
  const std::string_view names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                    "bool", "string", "array", "u64", "i64", "f64"};
  for (std::uint32_t id = 0; id < 13; ++id) EXPECT_EQ(name(GgufType{id}), names[id]);
  EXPECT_EQ(name(GgufType{13}), "unknown");
}

}  // namespace
}  // namespace kvick
