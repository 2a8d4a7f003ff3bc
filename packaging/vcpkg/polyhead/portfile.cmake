# An overlay port of this checkout: vcpkg install polyhead --overlay-ports=packaging/vcpkg
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../.." ABSOLUTE)

vcpkg_check_features(OUT_FEATURE_OPTIONS FEATURE_OPTIONS FEATURES
  io POLYHEAD_BUILD_IO
  models POLYHEAD_BUILD_MODELS
  viewer POLYHEAD_BUILD_VIEWER
  distributed POLYHEAD_BUILD_DISTRIBUTED
)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    ${FEATURE_OPTIONS}
    -DPOLYHEAD_BUILD_APP=OFF
    -DPOLYHEAD_BUILD_TESTS=OFF
    -DPOLYHEAD_BUILD_EXAMPLES=OFF
    -DPOLYHEAD_NPZ=OFF
    -DPOLYHEAD_IMAGES=OFF
    -DPOLYHEAD_WARNINGS_AS_ERRORS=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/polyhead)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
