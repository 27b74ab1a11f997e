#!/bin/bash
# debian/tests as autopkgtest runs them, in a copy of a minimal system.   autopkgtest.sh CHROOT DEBS
set -u
here=$(realpath "${BASH_SOURCE[0]%/*}") chroot=$(realpath "$1") debs=$(realpath "$2")
tmp=$(mktemp -d)
trap 'rm -rf --one-file-system "$tmp"' EXIT
cp -a --reflink=auto "$chroot" "$tmp/root" && cp -L /etc/resolv.conf "$tmp/root/etc" || exit 1
mkdir "$tmp/source" && cp -r "$here/../../debian" "$tmp/source" || exit 1
"$here/in-chroot" "$tmp/root" apt-get -q update || exit 1
"$here/in-chroot" "$tmp/root" apt-get -q -y install --no-install-recommends dpkg-dev || exit 1
# Its mounts, and whatever is left running, end with these namespaces.
unshare --mount --pid --fork --kill-child bash -c '
	mount -t proc proc /proc && mount -t proc proc "$1/root/proc" && mount -t tmpfs -o mode=1777 tmpfs "$1/root/dev/shm" || exit 125
	cd "$1" && autopkgtest --no-built-binaries "$2"/*.deb source/ -- chroot "$1/root"
' autopkgtest "$tmp" "$debs"
