# cmake -DOUT=assets.cc -DTEMPLATE=page.html -DSTYLE=page.css -DSCRIPT=a.js,b.js -DLIVE=live.js -P embed.cmake
# Writes template, style and scripts as C++ arrays of characters. A string literal of more than 64 KiB may be too long for a compiler, so arrays are used.
# Every byte is written as '\xNN', so that no character needs quoting. Comments, blank lines and leading blanks are left out, to keep pages small.
string(REPLACE "," ";" SCRIPT "${SCRIPT}")
string(REPLACE "," ";" LIVE "${LIVE}")

# Removes comments: in a style each /* … */ that is alone on its line, in a script each // … that is alone on its line or follows two blanks. A // … after code
# is not removed if a quote follows it, because the // may be part of a string.
function(shorten text)
  string(REGEX REPLACE "\n[ ]*//[^\n]*" "" text "\n${text}")
  string(REGEX REPLACE "[ ][ ]//[ ][^\n\"'`]*\n" "\n" text "${text}")
  string(REGEX REPLACE "\n([ ]*/[*][^*\n]*[*]/[ ]*\n)+" "\n" text "${text}")
  string(REGEX REPLACE "[^`\n]" "" ticks "${text}")
  if(ticks MATCHES "\n(``)*`\n")
    message(FATAL_ERROR "a template literal over several lines would lose its blanks: write it on one line")
  endif()
  string(REGEX REPLACE "\n[ \n]+" "\n" text "${text}")
  string(REGEX REPLACE "^\n" "" text "${text}")
  set(shortened "${text}" PARENT_SCOPE)
endfunction()

set(source "#include \"viewer/assets.h\"\n\nnamespace polyhead::viewer {\n\n")
foreach(part "kTemplate=TEMPLATE" "kStyle=STYLE" "kLiveStyle=LIVE_STYLE" "kScript=SCRIPT" "kLiveScript=LIVE")
  string(REGEX MATCH "^(.*)=(.*)$" _ ${part})
  set(name ${CMAKE_MATCH_1})
  set(bytes "")
  foreach(file IN LISTS ${CMAKE_MATCH_2})
    file(READ ${file} text)
    shorten("${text}")
    string(HEX "${shortened}" hex)
    string(APPEND bytes "${hex}")
  endforeach()
  string(REGEX REPLACE "(................................................)" "\\1\n    " lines "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," lines "${lines}")
  string(APPEND source "static constexpr char ${name}Bytes[] = {\n    ${lines}};\nconst std::string_view ${name}{${name}Bytes, sizeof ${name}Bytes};\n\n")
endforeach()
file(WRITE ${OUT} "${source}}  // namespace polyhead::viewer\n")
