# polyhead_library(<name> SOURCES ... [PUBLIC ...] [PRIVATE ...]) makes polyhead_<name> and its alias polyhead::<name>. PUBLIC and PRIVATE
# are what it links; the lists are the layering of the project, so a target names exactly the folders that its sources include.
function(polyhead_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(polyhead_${name} ${arg_SOURCES})
  add_library(polyhead::${name} ALIAS polyhead_${name})
  set_target_properties(polyhead_${name} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON VERSION ${PROJECT_VERSION}
                                                    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_include_directories(polyhead_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                     $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
                                                     $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                             PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(polyhead_${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  polyhead_own_code(polyhead_${name})
  set_property(GLOBAL APPEND PROPERTY POLYHEAD_LIBRARIES polyhead_${name})
endfunction()

# Language level and warnings of everything that the project itself compiles.
function(polyhead_own_code target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor -Woverloaded-virtual
                         -Wno-missing-field-initializers
                         # GCC 12 warns of copies of 2^63 bytes inside of std::string at -O3 (its bug 105651).
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<BOOL:${POLYHEAD_WARNINGS_AS_ERRORS}>:-Werror>)
endfunction()
