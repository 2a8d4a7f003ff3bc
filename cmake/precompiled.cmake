# Precompiled headers: headers that many sources include are compiled once. Each source still includes all headers that it uses, because a project that adds
# polyhead as a subdirectory compiles without precompiled headers. `scripts/check-clang` with full effort does too, and so finds missing includes.
option(POLYHEAD_PRECOMPILE_HEADERS "Compile the headers of other libraries once for many sources" ${PROJECT_IS_TOP_LEVEL})

# Standard headers that at least a tenth of all sources include.
set(POLYHEAD_STANDARD_HEADERS <algorithm> <array> <cmath> <cstdint> <cstring> <filesystem> <functional> <limits> <map> <memory> <numeric> <optional> <span>
                              <string> <string_view> <utility> <vector>)

# polyhead_precompiled(<target> [PIC] [FLAGS <flag>...] [LINK <library>...] HEADERS <header>...) makes a target with precompiled headers, for
# polyhead_precompile(). Only sources that are compiled with the same flags can use them.
function(polyhead_precompiled target)
  cmake_parse_arguments(arg "PIC" "" "FLAGS;LINK;HEADERS" ${ARGN})
  if(POLYHEAD_PRECOMPILE_HEADERS)
    file(CONFIGURE OUTPUT ${target}.cc CONTENT "")
    add_library(${target} OBJECT EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/${target}.cc)
    polyhead_own_code(${target})
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ${arg_PIC})
    target_compile_options(${target} PRIVATE ${arg_FLAGS})
    target_link_libraries(${target} PRIVATE ${arg_LINK})
    target_precompile_headers(${target} PRIVATE ${arg_HEADERS})
  endif()
endfunction()

# polyhead_precompile(<target> <target of polyhead_precompiled>) lets a target use precompiled headers. A target with flags that change how headers compile,
# such as -O2, sets DISABLE_PRECOMPILE_HEADERS.
function(polyhead_precompile target headers)
  if(POLYHEAD_PRECOMPILE_HEADERS)
    target_precompile_headers(${target} REUSE_FROM ${headers})
  endif()
endfunction()

polyhead_precompiled(polyhead_standard_headers PIC HEADERS ${POLYHEAD_STANDARD_HEADERS})
if(TARGET nlohmann_json::nlohmann_json)
  polyhead_precompiled(polyhead_json_headers PIC LINK nlohmann_json::nlohmann_json HEADERS ${POLYHEAD_STANDARD_HEADERS} <nlohmann/json.hpp>)
endif()
