# One row per instruction set that kernels are compiled for, the preferred first:
#   name | what the processor must have, as Linux spells it | compiler flags | bytes of a vector | vector registers | base | vendor
# A kernel source is compiled once per row into the namespace polyhead::cpu::<name>, with the size and number of registers as POLYHEAD_VECTOR_BYTES
# and POLYHEAD_VECTOR_REGISTERS, and includes the row's instructions from src/cpu/isa/<name>.h as POLYHEAD_ISA_HEADER. A row with a base adds products
# of bfloat16 pairs to another row: only the sources after BF16 are compiled for it, with POLYHEAD_BASE_ISA, and it has the other
# kernels of its base. A row with a vendor, as cpuid spells it, is chosen automatically only on processors of that vendor; "none": never.
# src/cpu/select.cc reads the rows from the generated cpu/isa_rows.h.
# The last row needs no optional instructions, so every machine of the architecture can run it.
option(POLYHEAD_EMULATE_AMX "Also compile the kernels of amx_bf16 with its tiles in plain code, as the instruction set amx_bf16_emulated, for tests on processors without AMX" OFF)
set(polyhead_instructions)  # instructions that the building machine has
if(EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo lines REGEX "^flags" LIMIT_COUNT 1)
  string(REGEX MATCHALL "[a-z0-9_]+" polyhead_instructions "${lines}")
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  # NEON is part of AArch64. -fno-schedule-insns: if GCC schedules before it allocates registers, it loads all rows of a term first and spills the sums.
  set(POLYHEAD_ISA_ROWS "neon||$<$<CXX_COMPILER_ID:GNU>:-fno-schedule-insns>|16|32")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^wasm(32|64)$")
  # A module with vector instructions loads only in an engine that has them, so no instruction set is chosen at run time.
  # The kernels are compiled for 16 vector registers: engines map local variables to the registers of the machine, and x86-64 has 16.
  set(POLYHEAD_ISA_ROWS "wasm_simd128||-msimd128|16|16")
else()
  set(POLYHEAD_ISA_ROWS "portable|||16|16")  # what the compiler assumes of every machine of this architecture
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  # Vector products of bfloat16 pairs are twice as fast as exact products on AMD's processors, and half as fast on Intel's (docs/decisions/0014-bfloat16-products.md).
  set(emulated)
  if(POLYHEAD_EMULATE_AMX)
    # If the building machine has AVX512-BF16, the emulation uses it and gives the bits of AMX. Otherwise the compiler emulates the vectors without fused products, in this row and in its base.
    set(emulated "amx_bf16_emulated|avx2|-mavx2|64|32|portable|none")
    if("avx512_bf16" IN_LIST polyhead_instructions)
      set(emulated "amx_bf16_emulated|avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_bf16|-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16|64|32|avx512|none")
    endif()
  endif()
  list(PREPEND POLYHEAD_ISA_ROWS
       "amx_bf16|avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_bf16 amx_tile amx_bf16|-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mamx-tile -mamx-bf16|64|32|avx512"
       "avx512_bf16|avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_bf16|-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16|64|32|avx512|AuthenticAMD"
       "avx512|avx2 fma f16c avx512f avx512bw avx512dq avx512vl|-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl|64|32"
       ${emulated}
       "avx2|avx2 fma f16c|-mavx2 -mfma -mf16c|32|16")
endif()

set(POLYHEAD_INSTRUCTION_SETS "all" CACHE STRING "Instruction sets to compile kernels for: all, or some names for a quicker build, which then runs only on processors that have one of them")
if(NOT POLYHEAD_INSTRUCTION_SETS STREQUAL "all")
  set(rows ${POLYHEAD_ISA_ROWS})
  list(TRANSFORM rows REPLACE "[|].*" "" OUTPUT_VARIABLE names)
  foreach(name IN LISTS POLYHEAD_INSTRUCTION_SETS)
    if(NOT name IN_LIST names)
      message(FATAL_ERROR "POLYHEAD_INSTRUCTION_SETS: there is no instruction set '${name}' for this processor; allowed are 'all' and names from: ${names}")
    endif()
  endforeach()
  set(POLYHEAD_ISA_ROWS)
  foreach(name row IN ZIP_LISTS names rows)  # in the order of preference, whatever the order of POLYHEAD_INSTRUCTION_SETS
    if(NOT name IN_LIST POLYHEAD_INSTRUCTION_SETS)
      continue()
    endif()
    list(APPEND POLYHEAD_ISA_ROWS "${row}")
    string(REPLACE "|" ";" cells "${row}|||")
    list(GET cells 5 base)
    if(base AND NOT base IN_LIST POLYHEAD_INSTRUCTION_SETS)
      message(FATAL_ERROR "POLYHEAD_INSTRUCTION_SETS: '${name}' takes some kernels from '${base}'; name both")
    endif()
  endforeach()
endif()

# Flags of kernels. -O3 without sanitizers in every preset: an instrumented kernel takes minutes to compile. -ffp-contract=off: a product and a sum are
# rounded once only where the code calls multiply_add (cpu/vector.h). If the compiler chose, it would fuse in some loops and not in others, depending on its version
# and on the optimisation, and the bits of a row would depend on the loop that computes the row.
# -fno-exceptions: kernels do not throw, and objects with destructors then need no personality routine, a symbol that instruction sets would share.
set(POLYHEAD_ISA_FLAGS -O3 -ffp-contract=off -fno-exceptions -fno-sanitize=all -Wno-psabi)

# Optimisation takes three quarters of the time to compile a kernel. The kernels that are not optimised are compiled with -Og, which still inlines every function
# that instruction sets must not share.
set(POLYHEAD_OPTIMISED_KERNELS "all" CACHE STRING "all: kernels are optimised; here: only the kernels that this machine chooses; only tests run the others; none: in a build that is made for tests alone")
set_property(CACHE POLYHEAD_OPTIMISED_KERNELS PROPERTY STRINGS all here none)

# The instruction set that this machine chooses, and its base.
set(polyhead_chosen_sets)
if(polyhead_instructions)
  file(STRINGS /proc/cpuinfo lines REGEX "^vendor_id" LIMIT_COUNT 1)
  foreach(row IN LISTS POLYHEAD_ISA_ROWS)
    string(REPLACE "|" ";" cells "${row}|||")
    list(GET cells 0 name)
    list(GET cells 1 missing)
    list(GET cells 5 base)
    list(GET cells 6 vendor)
    separate_arguments(missing)
    list(REMOVE_ITEM missing ${polyhead_instructions})
    if(NOT missing AND (vendor STREQUAL "" OR lines MATCHES "${vendor}"))
      set(polyhead_chosen_sets ${name} ${base})
      break()
    endif()
  endforeach()
endif()

# polyhead_isa_sources(<target> <source>... [BF16 <source>...]) adds the sources to the target once per row; rows with a base have those after BF16 only.
function(polyhead_isa_sources target)
  cmake_parse_arguments(PARSE_ARGV 1 given "" "" "BF16")
  set(table)
  foreach(row IN LISTS POLYHEAD_ISA_ROWS)
    string(REPLACE "|" ";" cells "${row}|||")
    list(GET cells 0 name)
    list(GET cells 1 needs)
    list(GET cells 2 flags)
    list(GET cells 3 bytes)
    list(GET cells 4 registers)
    list(GET cells 5 base)
    list(GET cells 6 vendor)
    separate_arguments(flags)
    if(POLYHEAD_OPTIMISED_KERNELS STREQUAL "none" OR (POLYHEAD_OPTIMISED_KERNELS STREQUAL "here" AND polyhead_chosen_sets AND NOT name IN_LIST polyhead_chosen_sets))
      list(APPEND flags -Og)
    endif()
    set(sources ${given_UNPARSED_ARGUMENTS} ${given_BF16})
    if(base)
      set(sources ${given_BF16})
      string(APPEND table "POLYHEAD_ISA_ROW(${name}, ${base}, \"${needs}\", \"${vendor}\")\n")
    else()
      string(APPEND table "POLYHEAD_ISA_ROW(${name}, ${name}, \"${needs}\", \"${vendor}\")\n")
    endif()
    if(NOT sources)
      continue()
    endif()
    add_library(${target}_${name} OBJECT ${sources})
    set_target_properties(${target}_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)  # no unity build: each source takes long to compile
    target_include_directories(${target}_${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_compile_definitions(${target}_${name} PRIVATE POLYHEAD_ISA=${name} POLYHEAD_VECTOR_BYTES=${bytes}
                                                         POLYHEAD_VECTOR_REGISTERS=${registers}
                                                         POLYHEAD_ISA_HEADER="cpu/isa/${name}.h"
                                                         $<$<BOOL:${base}>:POLYHEAD_BASE_ISA=${base}>)
    polyhead_own_code(${target}_${name})
    target_compile_options(${target}_${name} PRIVATE ${POLYHEAD_ISA_FLAGS} ${flags})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${name}>)
    set_property(TARGET ${target} APPEND PROPERTY POLYHEAD_OBJECTS $<TARGET_OBJECTS:${target}_${name}>)
  endforeach()
  set(generated ${PROJECT_BINARY_DIR}/generated/${target})
  file(GENERATE OUTPUT ${generated}/cpu/isa_rows.h CONTENT "${table}")
  target_include_directories(${target} PRIVATE ${generated})
endfunction()
