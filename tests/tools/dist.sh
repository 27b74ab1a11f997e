#!/bin/bash
# The tarball of scripts/dist works where it is unpacked, and is what docs/install.md promises.   dist.sh BUILD HELPERS
set -u
build=$(realpath "$1") helpers=$(realpath "$2") source=$(realpath "${BASH_SOURCE[0]%/*}/../..")
[[ -w $build ]] || { echo "SKIP: cmake --install writes its list into the build directory"; exit 77; }
[[ -s /usr/share/doc/libjson-c-dev/copyright ]] || { echo "SKIP: no /usr/share/doc here: json-c's licence is missing"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
unset LD_LIBRARY_PATH LD_PRELOAD
fail() { echo "FAIL: $*"; exit 1; }

file=$("$source/scripts/dist" "$build" "$tmp/out") || fail "scripts/dist: $?"
read -r version <"$source/VERSION"
[[ $file == "$tmp/out/verbena-$version-linux-"*.tar.gz ]] || fail "it writes $file"
size=$(stat -c %s "$file")
((size <= 10 << 20)) || fail "the tarball has $size bytes"
mkdir -p "$tmp/some/where" && tar -C "$tmp/some/where" -xf "$file" || fail "tar"
here=$(echo "$tmp"/some/where/*)
[[ -s $here/share/doc/verbena/LICENSE && -s $here/share/doc/verbena/LICENSE.json-c ]] || fail "no licences"
[[ -z $(find "$here" ! -user "$(id -un)" -o -perm /022 ! -type l) ]] || fail "owners and modes: $(ls -lR "$here")"

cd / || fail cd
out=$("$here/bin/verbena" --version) || fail "verbena --version: $?"
[[ $out == "$("$build/verbena" --version)" ]] || fail "verbena --version prints \"$out\""
out=$("$here/bin/verbena" run -- "$helpers/tools-which" 5)
[[ $? == 5 && $out == "$here/lib/verbena/libibverbs.so.1" ]] || fail "the program got \"$out\""
if command -v ibv_devices >/dev/null; then
	"$here/bin/verbena" run -- ibv_devices | grep -q verbena0 || fail "ibv_devices"
fi

# Nothing but the C library, of a release that each supported distribution has.
files=$(find "$here" -type f \( -name verbena -path '*/bin/*' -o -name 'lib*.so*' \))
(($(wc -l <<<"$files") == 5)) || fail "files: $files"
for f in $files; do
	others=$(readelf -d "$f" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc\.so\.6|ld-linux.*|libibverbs\.so\.1)$')
	[[ -z $others ]] || fail "$f needs $others"
	least=$(objdump -T "$f" | grep -o 'GLIBC_2\.[0-9]*' | sort -Vu | tail -n 1)
	newest=$(printf '%s\n' GLIBC_2.34 "$least" | sort -V | tail -n 1)
	# A newer C library's headers bind newer symbols.
	[[ $newest == GLIBC_2.34 ]] || ! dpkg --compare-versions "$(dpkg-query -W -f '${Version}' libc6-dev)" lt 2.37 ||
		fail "$f needs $least"
done
echo "the tarball works: $size bytes"
