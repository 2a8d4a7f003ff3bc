#!/bin/sh
# build.sh SOURCE PROGRAM MODULE...: compiles and runs a program as a user without a build system would. PKG_CONFIG_PATH, CXX and CXXFLAGS come from the environment.
set -eu
source=$1 program=$2
shift 2
version=$(pkg-config --modversion "$1")
flags=$(pkg-config --cflags --libs "$@")
# pkg-config escapes spaces in paths; eval removes the escapes.
eval "set -- $flags"
# shellcheck disable=SC2086  # CXXFLAGS is a list of options
"$CXX" -std=c++20 $CXXFLAGS "-DEXPECTED_VERSION=\"$version\"" "$source" "$@" -o "$program"
exec "$program"
