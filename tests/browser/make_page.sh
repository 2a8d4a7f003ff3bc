#!/bin/sh
# make_page.sh POLYHEAD PAGE ARRAYS
set -eu
: "${POLYHEAD_MINILM_DIR:?must name the folder of all-MiniLM-L6-v2, as scripts/test does}"
exec "$1" view "$POLYHEAD_MINILM_DIR" --text "The quick brown fox jumps over the lazy dog" -o "$2" --arrays "$3"
