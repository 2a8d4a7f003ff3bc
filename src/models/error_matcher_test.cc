// Tests that EXPECT_ERROR, with which other tests expect errors, fails where it should.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <stdexcept>

#include "models/test_error_matcher.h"

namespace polyhead::models {
namespace {

using testing::HasSubstr;

[[noreturn]] void refuse() { throw Error(ErrorCode::format, "the file is short"); }

TEST(ExpectError, PassesForTheCodeAndTheMessageOnly) {
  EXPECT_ERROR(refuse(), format, HasSubstr("is short"));
  EXPECT_NONFATAL_FAILURE(EXPECT_ERROR(refuse(), io, HasSubstr("is short")), "it throws an Error of code");
  EXPECT_NONFATAL_FAILURE(EXPECT_ERROR(refuse(), format, HasSubstr("is long")), "it throws the message \"the file is short\", which should match: has substring \"is long\"");
  EXPECT_NONFATAL_FAILURE(EXPECT_ERROR(static_cast<void>(0), format, HasSubstr("is short")), "it throws nothing");
  EXPECT_NONFATAL_FAILURE(EXPECT_ERROR(throw std::runtime_error("is short"), format, HasSubstr("is short")), "it throws another exception");
  EXPECT_NONFATAL_FAILURE(EXPECT_ERROR(throw 3, format, HasSubstr("is short")), "it throws something that is no exception");
}

}  // namespace
}  // namespace polyhead::models
