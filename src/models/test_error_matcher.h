#pragma once

#include <gmock/gmock.h>

#include "polyhead/error.h"

// Expects that the statement throws polyhead::Error with this code and a message that matches.
#define EXPECT_ERROR(statement, expected_code, message_matcher)                                                                    \
  EXPECT_THAT([&] { statement; }, ::testing::Throws<::polyhead::Error>(::testing::AllOf(                                           \
                                      ::testing::Property("code", &::polyhead::Error::code, ::polyhead::ErrorCode::expected_code), \
                                      ::testing::Property("what", &::polyhead::Error::what, message_matcher))))
