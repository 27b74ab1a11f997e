#!/bin/bash
# The packages in a clean system: installed, used as an ordinary user, upgraded, purged.   install.sh CHROOT DEBS
# CHROOT is a minimal system of Debian, which is copied; DEBS a directory with what scripts/deb wrote.  It needs root.
set -u
here=$(realpath "${BASH_SOURCE[0]%/*}") chroot=$(realpath "$1") debs=$(realpath "$2")
tmp=$(mktemp -d)
root=$tmp/root
trap 'rm -rf --one-file-system "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
in_chroot() { "$here/in-chroot" "$@"; }
run() { in_chroot "$root" "$@" >"$tmp/log" 2>&1 </dev/null || { tail -n 30 "$tmp/log"; fail "$*"; }; }
user() { timeout 300 "$here/in-chroot" --user --alone "$root" "$@" </dev/null; }

# All files, but those in which dpkg, apt and the loader keep what they know and did.  What is in /etc counts, too.
list() {
	in_chroot "$root" find / -xdev -regextype posix-extended -regex \
		'/(proc|sys|dev|tmp|var/(log|lib/(dpkg|apt)|cache/(apt|debconf|ldconfig)))/.*' -prune -o -printf '%y %m %u:%g %p %l\n' | sort
	in_chroot "$root" find /etc -type f -exec sha256sum {} + | sort
}
nothing_left() { # all is as before
	list >"$tmp/now"
	diff "$tmp/before" "$tmp/now" >"$tmp/diff" || { cat "$tmp/diff"; fail "the purge left (>) or took (<) these files"; }
}

cp -a --reflink=auto "$chroot" "$root" || fail "cp"
cp -L /etc/resolv.conf "$root/etc"
mkdir "$root/tmp/new" "$root/tmp/old" && cp "$debs"/*.deb "$root/tmp/new" && cp -r "$here/../../debian/tests" "$root/tmp" || fail "cp"
run apt-get -q update
new=$(dpkg-deb -f "$debs"/verbena_*.deb Version)

# An older version: the same packages with another number, and a file that the new one lacks.
for p in verbena libverbena1; do
	dpkg-deb -R "$debs/${p}_"*.deb "$tmp/$p" || fail "dpkg-deb"
	sed -i "s/^Version: .*/Version: 0.0.1/; s/(= $new)/(= 0.0.1)/" "$tmp/$p/DEBIAN/control"
	touch "$tmp/$p/usr/lib/x86_64-linux-gnu/verbena/old-$p"
	dpkg-deb --root-owner-group -b "$tmp/$p" "$root/tmp/old/${p}_0.0.1_amd64.deb" >/dev/null || fail "dpkg-deb"
done

echo "# one command installs it"
run sh -c 'apt-get -q -y install /tmp/old/verbena_*.deb /tmp/old/libverbena1_*.deb'
user sh -c 'command -v cc gcc' && fail "a compiler is installed"
user verbena run -- ibv_devinfo >"$tmp/out" 2>&1 && grep -q PORT_ACTIVE "$tmp/out" || { cat "$tmp/out"; fail "ibv_devinfo"; }
echo "# it is upgraded"
run sh -c 'apt-get -q -y install /tmp/new/verbena_*.deb /tmp/new/libverbena1_*.deb'
user verbena --version >"$tmp/out" 2>&1 && grep -q "^verbena $new" "$tmp/out" || { cat "$tmp/out"; fail "verbena --version"; }
cat "$tmp/out"
[[ -z $(find "$root/usr/lib" -name 'old-*verbena*') ]] || fail "files of the old version are left"
user verbena run -- ibv_devinfo >"$tmp/out" 2>&1 && grep -q PORT_ACTIVE "$tmp/out" || { cat "$tmp/out"; fail "ibv_devinfo"; }
echo "# nothing of the system's is replaced"
user ibv_devices >"$tmp/out" 2>&1
! grep -q verbena "$tmp/out" || { cat "$tmp/out"; fail "ibv_devices without Verbena"; }
in_chroot "$root" ldconfig -p | grep verbena && fail "the loader's cache has it"
run dpkg --verify libibverbs1
echo "# purging leaves nothing"
run apt-get -q -y purge --autoremove verbena libverbena1
# Packages that came along leave files of their own; those of Verbena have its name.
left=$(find "$root" -xdev -path "$root/tmp" -prune -o -name '*verbena*' -print)
[[ -z $left ]] || fail "left: $left"

echo "# programs, as an ordinary user"
run apt-get -q -y install --no-install-recommends ibverbs-utils perftest rdmacm-utils
list >"$tmp/before"
run sh -c 'apt-get -q -y install --no-install-recommends /tmp/new/verbena_*.deb /tmp/new/libverbena1_*.deb'
user /tmp/tests/programs || fail "debian/tests/programs"
run apt-get -q -y purge verbena libverbena1 libjson-c5
nothing_left

echo "# an example"
run apt-get -q -y install --no-install-recommends gcc libc6-dev libibverbs-dev librdmacm-dev pkgconf libjson-c5
list >"$tmp/before"
run sh -c 'apt-get -q -y install --no-install-recommends /tmp/new/*.deb'
user /tmp/tests/example || fail "debian/tests/example"
run apt-get -q -y purge verbena libverbena1 libverbena-dev
nothing_left
echo "the packages work"
