#!/bin/sh
# A right program that gcc builds with ThreadSanitizer is not reported: descriptors that one thread of the library opens, and
# another one looks at, are the library's own.  clang's sanitizer knows fewer calls.
#
#     gcc_thread.sh BUILD
set -eu
root=$(dirname "$0")/../..
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
echo 'int main(void) { return 0; }' >"$dir/empty.c"
gcc -fsanitize=thread "$dir/empty.c" -o "$dir/empty" 2>/dev/null && "$dir/empty" ||
	{ echo "SKIP: gcc has no ThreadSanitizer here"; exit 77; }
gcc -g -O1 -fsanitize=thread -I "$root/include" "$root/examples/09-relaxed-regions.c" -o "$dir/prog" "$1/lib/libibverbs.so.1"
"$1/verbena" run -- "$dir/prog" 200 >"$dir/out" 2>&1 && ! grep -q WARNING "$dir/out" || { cat "$dir/out"; exit 1; }
