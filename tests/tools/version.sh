#!/bin/bash
# The version and the commit that `verbena --version` prints.   version.sh BUILD HELPERS
set -u
build=$(realpath "$1") source=$(realpath "${BASH_SOURCE[0]%/*}/../..")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
commit() { # WANTED: what is compiled in if $tmp/tree is built
	cmake -DSOURCE="$tmp/tree" -DOUT="$tmp/commit.h" -P "$source/cmake/commit.cmake" || fail "commit.cmake"
	grep -qxF "#define VB_COMMIT \"$1\"" "$tmp/commit.h" || fail "wanted the commit \"$1\", got: $(cat "$tmp/commit.h")"
}

read -r version <"$source/VERSION"
out=$("$build/verbena" --version) || fail "verbena --version: $?"
[[ $out =~ ^"verbena $version"(" (commit "[0-9a-f]+(-dirty)?")")?$ ]] || fail "VERSION is $version, and the command prints \"$out\""
[[ $(sed -n 's/^Version: //p' "$build/verbena.pc") == "$version" ]] || fail "verbena.pc: $(cat "$build/verbena.pc")"

# A tree without git: an archive's file has the commit, a copied checkout's has git's placeholder.
mkdir -p "$tmp/tree/cmake"
cp "$source/cmake/commit.txt" "$tmp/tree/cmake"
[[ ! -e $source/.git ]] || commit ""
echo 0123456789ab >"$tmp/tree/cmake/commit.txt"
commit 0123456789ab
touch -d @1 "$tmp/commit.h"
commit 0123456789ab
[[ $(stat -c %Y "$tmp/commit.h") == 1 ]] || fail "a header that was right has been written again"

if command -v git >/dev/null; then
	git() { HOME=$tmp GIT_CONFIG_NOSYSTEM=1 command git -C "$tmp/tree" -c user.name=t -c user.email=t@t "$@"; }
	cp "$source/.gitattributes" "$tmp/tree"
	echo '$Format:%h$' >"$tmp/tree/cmake/commit.txt"
	{ git init -q && git add . && git commit -q -m t && git tag v1; } || fail "git"
	commit "$(git rev-parse --short=12 HEAD)"
	[[ $(git archive HEAD | tar -xO cmake/commit.txt) == $(git rev-parse --short HEAD) ]] || fail "git archive writes no commit"
	echo >>"$tmp/tree/.gitattributes"
	commit "$(git rev-parse --short=12 HEAD)-dirty"
fi
echo "the version is told"
