# cmake -DOUT=assets.cc -DTEMPLATE=page.html -DSTYLE=page.css -DLIVE_STYLE=live.css -DSCRIPT=a.js,b.js -DLIVE=c.js,d.js -P embed.cmake
# Writes the page's parts as C++ arrays of characters. They are not string literals, because a literal of more than 64 KiB may be too long for a compiler. Every byte
# becomes '\xNN', so that nothing needs quoting. Comments, blank lines and leading blanks are left out, because every page contains the parts.
string(REPLACE "," ";" SCRIPT "${SCRIPT}")
string(REPLACE "," ";" LIVE "${LIVE}")

# Removes from a style each /* … */ that is alone on its line. Removes from a script each // … that is alone on its line or comes after two blanks. A comment
# with a quote stays, because it may be part of a string.
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
