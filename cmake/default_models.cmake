# The folders of models/default become read-only data of src/models/default_models.cc: polyhead_default_files() writes default_files.inc into the build
# folder of its caller, and declares that default_models.cc depends on these files.
function(polyhead_default_files)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/models/default ${PROJECT_SOURCE_DIR}/models/default/*/*)
  set(list "")
  foreach(name IN LISTS files)
    string(MAKE_C_IDENTIFIER ${name} label)
    string(APPEND list "POLYHEAD_FILE(polyhead_default_${label}, \"${name}\", \"${PROJECT_SOURCE_DIR}/models/default/${name}\")\n")
  endforeach()
  file(CONFIGURE OUTPUT default_files.inc CONTENT "${list}")
  list(TRANSFORM files PREPEND ${PROJECT_SOURCE_DIR}/models/default/)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/models/default_models.cc PROPERTIES OBJECT_DEPENDS "${files};${CMAKE_CURRENT_BINARY_DIR}/default_files.inc")
endfunction()
