# polyhead_library(<name> SOURCES ... [PUBLIC ...] [PRIVATE ...]) makes polyhead_<name> and its alias polyhead::<name>. PUBLIC and PRIVATE
# are what it links; the lists are the layering of the project, so a target names exactly the folders that its sources include.
#
# A folder of the core is an archive that its tests link. What users link is libpolyhead, made of all of them, and one
# library per component, which links libpolyhead in place of the core's folders that it names.
function(polyhead_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  if(name IN_LIST POLYHEAD_CORE_FOLDERS)
    add_library(polyhead_${name} STATIC ${arg_SOURCES})
  else()
    list(JOIN POLYHEAD_CORE_FOLDERS "|" core)
    list(TRANSFORM arg_PUBLIC REPLACE "^polyhead::(${core})$" polyhead::polyhead)
    list(REMOVE_DUPLICATES arg_PUBLIC)
    add_library(polyhead_${name} ${arg_SOURCES})
    polyhead_installed(polyhead_${name} ${name})
  endif()
  add_library(polyhead::${name} ALIAS polyhead_${name})
  set_target_properties(polyhead_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(polyhead_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                     $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
                                             PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(polyhead_${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  polyhead_own_code(polyhead_${name})
  if(nlohmann_json::nlohmann_json IN_LIST arg_PRIVATE)
    polyhead_precompile(polyhead_${name} polyhead_json_headers)
  else()
    polyhead_precompile(polyhead_${name} polyhead_standard_headers)
  endif()
  set_property(TARGET polyhead_${name} APPEND PROPERTY POLYHEAD_OBJECTS $<TARGET_OBJECTS:polyhead_${name}>)
endfunction()

# polyhead_unity_groups(<target> <source>...): a unity build compiles these sources of the target as one, and the others as one.
function(polyhead_unity_groups target)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources EXCLUDE REGEX "\\$<")
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  set_source_files_properties(${sources} PROPERTIES UNITY_GROUP others)
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP forward)
endfunction()

# libpolyhead, which most programs link: attention, layers and the description of the machine (device.h), without file formats, models and pages.
function(polyhead_core_library)
  add_library(polyhead)
  add_library(polyhead::polyhead ALIAS polyhead)
  foreach(folder IN LISTS POLYHEAD_CORE_FOLDERS)
    get_target_property(objects polyhead_${folder} POLYHEAD_OBJECTS)
    if(objects)
      target_sources(polyhead PRIVATE ${objects})
      set_property(TARGET polyhead APPEND PROPERTY POLYHEAD_OBJECTS ${objects})
    endif()
  endforeach()
  set_target_properties(polyhead PROPERTIES LINKER_LANGUAGE CXX POSITION_INDEPENDENT_CODE ON)
  target_compile_features(polyhead PUBLIC cxx_std_20)
  target_include_directories(polyhead PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>)
  if(POLYHEAD_THREADS)
    target_link_libraries(polyhead PRIVATE Threads::Threads)
  endif()
  polyhead_installed(polyhead polyhead)
endfunction()

# A module of WebAssembly is linked statically, so it needs no position-independent code, which reads every address from a table.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^wasm")
  set(CMAKE_CXX_COMPILE_OPTIONS_PIC "")
endif()

# polyhead_installed(<target> <name>): the target is installed and exported as polyhead::<name>.
function(polyhead_installed target name)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} VERSION ${PROJECT_VERSION}
                                             SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_include_directories(${target} PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set_property(GLOBAL APPEND PROPERTY POLYHEAD_INSTALLED ${target})
endfunction()

# Language level, visibility and warnings of everything that the project itself compiles. Public headers, and the few private ones
# that components share, make their declarations visible; tests/install/symbols.txt lists the visible symbols.
function(polyhead_own_code target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor -Woverloaded-virtual
                         -Wno-missing-field-initializers
                         # In WebAssembly pointers have 32 bits and extents 64. Extents of tensors in memory fit in 32 bits, so the warning is off.
                         $<$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},wasm32>:-Wno-shorten-64-to-32>
                         # GCC 12 warns of copies of 2^63 bytes inside of std::string at -O3 (its bugs 105329 and 105651).
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
                         # libstdc++ 12 calls a deprecated function and turns the warning off by a pragma; Clang forgets the pragma in a precompiled header.
                         $<$<AND:$<CXX_COMPILER_ID:Clang>,$<BOOL:${POLYHEAD_PRECOMPILE_HEADERS}>>:-Wno-deprecated-declarations>
                         # In a unity build a local name may shadow a name of another source, and GCC treats the included sources as headers.
                         $<$<BOOL:${CMAKE_UNITY_BUILD}>:-Wno-shadow> $<$<AND:$<BOOL:${CMAKE_UNITY_BUILD}>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>
                         # A unity build serves tests, which need no line numbers; leaving them out saves a tenth of the time to compile. Sanitizers report line numbers, so their presets use no unity build.
                         $<$<BOOL:${CMAKE_UNITY_BUILD}>:-g0>
                         $<$<BOOL:${POLYHEAD_WARNINGS_AS_ERRORS}>:-Werror>)
endfunction()
