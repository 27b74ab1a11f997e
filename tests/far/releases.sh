#!/bin/bash
# Verbena, built here, in the system of another release: driver libraries of its rdma-core, then its programs as an
# ordinary user.   releases.sh CHROOT BUILD|DEBS
# CHROOT is a minimal system of a distribution with apt, which is copied.  It needs root.
# DEBS is a directory of packages, which are installed there; the files of a BUILD are copied.
set -u
here=$(realpath "${BASH_SOURCE[0]%/*}") chroot=$(realpath "$1") build=$(realpath "$2")
tests=${here%/*} in_chroot=${here%/*}/packages/in-chroot tmp=$(mktemp -d) bad=0 skipped=0
root=$tmp/root
trap 'rm -rf --one-file-system "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
packages="ibverbs-utils rdmacm-utils ibverbs-providers perftest ucx-utils libfabric-bin python3-pyverbs rdma-core iproute2 python3"

cp -a --reflink=auto "$chroot" "$root" && cp -L /etc/resolv.conf "$root/etc" || fail "cp"
[[ -e $root/etc/hosts ]] || echo "127.0.0.1 localhost" >"$root/etc/hosts" # libfabric looks localhost up
"$in_chroot" "$root" sh -c "dpkg-query -s $packages >/dev/null || { apt-get -q update && apt-get -q -y install --no-install-recommends $packages; }" >"$tmp/log" 2>&1 </dev/null ||
	{ tail -n 30 "$tmp/log"; fail "apt-get install $packages"; }
mkdir -p "$root"/opt/far/{build,docs} || exit 1
cp -r "$tests" "$root/opt/far" &&
	cp "$tests/../docs/conformance.md" "$root/opt/far/docs" && chmod -R a+rX "$root/opt/far" || fail "cp"
if compgen -G "$build/verbena_*.deb" >/dev/null; then
	what=packages
	cp "$build"/{verbena,libverbena1}_*.deb "$root/opt/far" &&
		"$in_chroot" "$root" sh -c '
			apt-get -q -y install --no-install-recommends /opt/far/*.deb &&
			ln -s /usr/bin/verbena /opt/far/build/verbena && ln -s /usr/lib/*/verbena /opt/far/build/lib' >"$tmp/log" 2>&1 </dev/null ||
		{ tail -n 30 "$tmp/log"; fail "apt-get install $build/*.deb"; }
else
	what=build
	cp -r "$build"/{verbena,lib} "$root/opt/far/build" && chmod -R a+rX "$root/opt/far/build" || fail "cp"
fi

# libfabric wants an address that is not loopback's, so there is a pair of interfaces.  UCX wants a terminal (ucx.py).
around='ip link set lo up && ip link add v0 type veth peer name v1 && ip addr add 192.0.2.1/24 dev v0 &&
	ip link set v0 up && ip link set v1 up &&
	mount -t devpts -o newinstance,ptmxmode=0666,mode=0666 devpts "$0/dev/pts" && exec "$@"'
try() { # NAME COMMAND...: as an ordinary user; its last line tells
	local name=$1 began=$SECONDS rc
	shift
	timeout 900 unshare --net --mount sh -c "$around" "$root" "$in_chroot" --user "$root" "$@" >"$tmp/log" 2>&1 </dev/null
	rc=$?
	case $rc in
	0) echo "ok    $name, $((SECONDS - began)) s: $(tail -n 1 "$tmp/log" | cut -c 1-110)" ;;
	77) echo "SKIP  $name: $(grep -o 'SKIP: .*' "$tmp/log" | tail -n 1 | cut -c 7-)"; skipped=$((skipped + 1)) ;;
	*) echo "FAIL  $name: exit status $rc"; grep -A 12 '^FAIL' "$tmp/log" | head -n 60; tail -n 15 "$tmp/log"; bad=$((bad + 1)) ;;
	esac
}
stranger() { # NAME ARGS...
	local name=$1
	shift
	try "$name" python3 -B "/opt/far/tests/strangers/$name.py" --build /opt/far/build "$@"
}

echo "# $(. "$root/etc/os-release" && echo "$PRETTY_NAME"), rdma-core $("$in_chroot" "$root" dpkg-query -W -f '${Version}' libibverbs1), Verbena's $what"
try "driver libraries" env LD_LIBRARY_PATH=/opt/far/build/lib python3 -B /opt/far/tests/abi/private_nodes.py --drivers
try "programs start" /opt/far/tests/abi/starts.sh /opt/far/build/lib
stranger devinfo
stranger pingpong --mode run
stranger perftest "-s 1 -n 2000" "-e -n 1000" "-n 500 -R" "VERBENA_LINK=infiniband ib_send_bw"
stranger rdmacm
if compgen -G "$root/usr/lib/*/ucx/libuct_ib.so.0" >/dev/null; then
	stranger ucx
else
	echo "SKIP  ucx: this release's UCX was built without its module for verbs"
	skipped=$((skipped + 1))
fi
try "rdma-core's Python suite" python3 -B /opt/far/tests/far/suite.py --build /opt/far/build
echo "$bad failed, $skipped skipped"
((bad == 0))
