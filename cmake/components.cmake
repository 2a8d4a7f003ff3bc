# Writes components.json into the build folder: the third-party libraries that this build links or includes, with the versions found. scripts/sbom.py makes
# a bill of materials of this file. Libraries that only tests and benchmarks use are left out, because these programs are not installed.
set(polyhead_components)
macro(polyhead_component condition name version how)
  if(${condition})
    if("${version}" STREQUAL "")
      set(polyhead_version null)
    else()
      set(polyhead_version "\"${version}\"")
    endif()
    list(APPEND polyhead_components "    {\"name\": \"${name}\", \"version\": ${polyhead_version}, \"linked\": \"${how}\"}")
  endif()
endmacro()
# Distinguishes archives (.a), which become part of polyhead's libraries and programs, from shared libraries, which do not.
macro(polyhead_component_of_module prefix)
  if("${${prefix}_LINK_LIBRARIES}" MATCHES "\\.a(;|$)")
    polyhead_component(${prefix}_FOUND ${prefix} "${${prefix}_VERSION}" archive)
  else()
    polyhead_component(${prefix}_FOUND ${prefix} "${${prefix}_VERSION}" shared)
  endif()
endmacro()
polyhead_component(nlohmann_json_FOUND nlohmann_json "${nlohmann_json_VERSION}" headers)
if(POLYHEAD_BUILD_APP)
  polyhead_component(CLI11_FOUND CLI11 "${CLI11_VERSION}" headers)
endif()
foreach(prefix libzip libpng libjpeg utf8proc oniguruma)
  polyhead_component_of_module(${prefix})
endforeach()
get_property(polyhead_nanobind GLOBAL PROPERTY POLYHEAD_NANOBIND_VERSION)
polyhead_component(POLYHEAD_BUILD_PYTHON nanobind "${polyhead_nanobind}" archive)
polyhead_component(MPI_CXX_FOUND MPI "${MPI_CXX_LIBRARY_VERSION}" shared)
if(POLYHEAD_BUILD_ONNXRUNTIME)
  file(STRINGS ${POLYHEAD_ONNXRUNTIME_HEADERS}/onnxruntime_c_api.h polyhead_onnxruntime REGEX "^#define ORT_API_VERSION [0-9]+")
  string(REGEX REPLACE "[^0-9]" "" polyhead_onnxruntime "${polyhead_onnxruntime}")
  polyhead_component(POLYHEAD_BUILD_ONNXRUNTIME onnxruntime "1.${polyhead_onnxruntime}" headers)
endif()
list(JOIN polyhead_components ",\n" polyhead_components)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/components.json @ONLY CONTENT [=[{
  "version": "@PROJECT_VERSION@",
  "compiler": {"name": "@CMAKE_CXX_COMPILER_ID@", "version": "@CMAKE_CXX_COMPILER_VERSION@"},
  "components": [
@polyhead_components@
  ]
}
]=])
