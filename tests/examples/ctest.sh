#!/bin/bash
# examples/ctest works as its first lines say.   ctest.sh BUILD
set -eu
build=$(realpath "$1") source=$(realpath "${BASH_SOURCE[0]%/*}/../..")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cmake -S "$source/examples/ctest" -B "$tmp" -DVERBENA="$build/verbena" >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
cmake --build "$tmp" >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
ctest --test-dir "$tmp" --output-on-failure | tee "$tmp/log"
grep -q "100% tests passed, 0 tests failed out of 2" "$tmp/log"
