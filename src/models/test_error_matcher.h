#pragma once

#include <exception>
#include <gmock/gmock.h>
#include <memory>
#include <string>
#include <typeinfo>

#include "polyhead/error.h"

namespace polyhead::test {

// A statement as a pointer to a function and its argument. One function then compares all statements. A matcher of gMock for each statement takes 40 ms to compile.
struct Statement {
  template <class F>
  Statement(const F& statement) : call([](const void* f) { (*static_cast<const F*>(f))(); }), f(std::addressof(statement)) {}
  void (*call)(const void*);
  const void* f;
};

inline testing::AssertionResult throws_error(const Statement& statement, ErrorCode code, const testing::Matcher<const std::string&>& message) {
  try {
    statement.call(statement.f);
  } catch (const Error& error) {
    const std::string said = error.what();
    if (error.code() != code) return testing::AssertionFailure() << "it throws an Error of code " << testing::PrintToString(error.code()) << ", not " << testing::PrintToString(code) << ": " << said;
    testing::StringMatchResultListener listener;
    if (testing::ExplainMatchResult(message, said, &listener)) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "it throws the message \"" << said << "\", which should match: " << testing::DescribeMatcher<const std::string&>(message) << listener.str();
  } catch (const std::exception& other) {
    return testing::AssertionFailure() << "it throws another exception, of type " << typeid(other).name() << ": " << other.what();
  } catch (...) {
    return testing::AssertionFailure() << "it throws something that is no exception";
  }
  return testing::AssertionFailure() << "it throws nothing";
}

}  // namespace polyhead::test

// Expects that the statement throws polyhead::Error with this code and a message that matches.
#define EXPECT_ERROR(statement, expected_code, message_matcher) EXPECT_TRUE(::polyhead::test::throws_error([&] { statement; }, ::polyhead::ErrorCode::expected_code, message_matcher))
