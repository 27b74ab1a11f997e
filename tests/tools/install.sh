#!/bin/bash
# An installed tree works, also after it has been moved.   install.sh BUILD HELPERS
set -u
build=$(realpath "$1") helpers=$(realpath "$2") source=$(realpath "${BASH_SOURCE[0]%/*}/../..")
[[ -w $build ]] || { echo "SKIP: cmake --install writes its list into the build directory"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
unset LD_LIBRARY_PATH LD_PRELOAD
fail() { echo "FAIL: $*"; exit 1; }

cmake --install "$build" --prefix "$tmp/first" >"$tmp/log" 2>&1 || { cat "$tmp/log"; fail "cmake --install"; }
mv "$tmp/first" "$tmp/there" || fail mv
cd "$tmp/there" || fail cd
for f in bin/verbena lib/verbena/libibverbs.so.1 lib/verbena/librdmacm.so.1 lib/verbena/libverbena-view.so lib/verbena/libverbena-share.so \
	lib/pkgconfig/verbena.pc share/man/man3/rdma_connect.3 share/man/man7/rdma_verbena.7 \
	include/verbena/infiniband/verbs.h share/man/man1/verbena.1 share/man/man7/verbena_environment.7 \
	share/doc/verbena/LICENSE share/doc/verbena/examples/01-rc-send.c share/doc/verbena/examples/pytest/test_rdma.py \
	share/bash-completion/completions/verbena share/zsh/site-functions/_verbena; do
	[[ -e $f ]] || fail "$f is not installed"
done
out=$(bin/verbena run -- "$helpers/tools-which" 5)
[[ $? == 5 && $out == "$tmp/there/lib/verbena/libibverbs.so.1" ]] || fail "the program got \"$out\""
if command -v ibv_devices >/dev/null; then
	bin/verbena run -- ibv_devices | grep -q verbena0 || fail "ibv_devices"
fi
if command -v man >/dev/null && command -v groff >/dev/null; then
	for f in "$tmp"/there/share/man/man*/* "$source"/docs/man/*; do # in whatever directory the reader is
		out=$(cd / && man --warnings=w -l "$f" 2>&1 >/dev/null)
		[[ -z $out ]] || fail "$f: $out"
	done
fi
for f in $(grep -oh "share/doc/verbena/[a-z]*\.md" share/man/man?/* | sort -u); do
	[[ -s $f ]] || fail "$f, which a manual page names, is not installed"
done
for f in share/doc/verbena/*.md; do
	for to in $(grep -o '\](\.*[a-zA-Z0-9][^):]*)' "$f" | sed 's/^](//; s/[#)].*//' | sort -u); do
		[[ -e ${f%/*}/$to ]] || fail "$f has a link to $to, which is not installed"
	done
	# Otherwise it is the page of the source.
	words='s|](\.\./examples/|](examples/|g; s|\[\([^]]*\)\](man/[^)]*)|\1|g'
	cmp -s "$f" <(sed "$words" "$source/docs/${f##*/}") || fail "$f is not the source's page"
done
! grep -n "^\.Pa docs/" share/man/man?/* || fail "a manual page names a file of the source"
make -n -C "$source" install BUILD="$build" PREFIX="/x/with space" 2>/dev/null | grep -q -- '--prefix "/x/with space"' ||
	fail "make install PREFIX with a space"
# Every setting that the libraries read is in the manual, and is an option.
for v in $(strings -a lib/verbena/*.so* 2>/dev/null | grep -o '^VERBENA_[A-Z_]*$' | sort -u); do
	grep -q "$v" share/man/man7/verbena_environment.7 || fail "$v is not in verbena_environment(7)"
done
export PKG_CONFIG_PATH=$tmp/there/lib/pkgconfig
cat >"$tmp/p.c" <<'C'
#include <infiniband/verbs.h>
#include <stdio.h>
#ifndef VERBENA_VERBS_H
#error "not our header"
#endif
int main(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	puts(n ? ibv_get_device_name(list[0]) : "none");
	return 0;
}
C
gcc -Wall -Wextra -Werror -std=c11 "$tmp/p.c" -o "$tmp/p" $(pkg-config --cflags --libs verbena) || fail "compiling with pkg-config"
[[ $(bin/verbena run "$tmp/p") == verbena0 ]] || fail "the program compiled with pkg-config"
echo "the installed tree works"
