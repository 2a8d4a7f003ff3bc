#!/bin/sh
# build.sh SOURCE PROGRAM: what a program without a build system would do. PKG_CONFIG_PATH, CXX and CXXFLAGS come from the environment.
set -eu
flags=$(pkg-config --cflags --libs polyhead)
version=$(pkg-config --modversion polyhead)
# pkg-config escapes spaces in paths, which eval reads.
# shellcheck disable=SC2086  # CXXFLAGS is a list of options
eval "set -- \"\$1\" \"\$2\" $flags"
source=$1 program=$2
shift 2
"$CXX" -std=c++20 $CXXFLAGS "-DEXPECTED_VERSION=\"$version\"" "$source" "$@" -o "$program"
exec "$program"
