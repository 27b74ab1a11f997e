#!/bin/bash
# The view as other programs see it, children included.   view.sh BUILD HELPERS
set -u
build=$(realpath "$1") helpers=$(realpath "$2") bad=0
dev=/sys/class/infiniband/verbena0
unset LD_LIBRARY_PATH LD_PRELOAD

check() { # WHAT WORDS COMMAND...: succeeds and says words
	local what=$1 words=$2 out rc
	shift 2
	out=$("$build/verbena" run -- "$@" 2>&1 </dev/null)
	rc=$?
	if [[ $rc != 0 || $out != *"$words"* ]]; then
		echo "FAIL: $what: exit status $rc, output (wanted \"$words\"): $out"
		bad=$((bad + 1))
	fi
}

check "files and library agree" "1 devices" "$helpers/tools-view-check"
VERBENA_DEVICES=3 check "files and library agree of several devices" "3 devices" "$helpers/tools-view-check"
VERBENA_DEVICES=2 VERBENA_LINK=infiniband check "files and library agree of InfiniBand's" "2 devices" "$helpers/tools-view-check"
VERBENA_DEVICES=2 VERBENA_DEVICE=mlx5_0 check "other names" "uverbs0 uverbs1 mlx5_0 mlx5_1" sh -c "echo \$(ls /sys/class/infiniband /dev/infiniband | grep -v :)"
VERBENA_DEVICES=2 check "the second device's number" "231:193" cat /sys/class/infiniband_verbs/uverbs1/dev
netdev=$("$build/verbena" run ls $dev/device/net/)
[[ -d /sys/class/net/$netdev ]] || { echo "FAIL: device/net names \"$netdev\""; bad=$((bad + 1)); }
check "ls -l" "node_guid" ls -l $dev
check "ls -R" "ports/1/gids:" ls -R /sys/class/infiniband
check "a pkey" "0xffff" cat $dev/ports/1/pkeys/0
check "network device of GID 0" "$netdev" cat $dev/ports/1/gid_attrs/ndevs/0
check "the shell's tests" "character device" sh -c "test -c /dev/infiniband/uverbs0 -a -w /dev/infiniband/uverbs0 && echo character device"
check "the shell's redirection" "1: CA" sh -c "cat <$dev/node_type"
check "the shell's patterns" "$dev/ports/1" sh -c "echo $dev/ports/*"
check "stat" "character special file" stat -c %F /dev/infiniband/uverbs0
check "realpath" "$dev/device" realpath $dev/device
check "python" "True True 0xffff" /usr/bin/python3 -c "
import os, subprocess
print(os.path.exists('$dev/device/net/'), os.access('/dev/infiniband/uverbs0', os.R_OK | os.W_OK),
      subprocess.check_output(['cat', '$dev/ports/1/pkeys/0'], text=True).strip())
assert os.listdir('$dev/device/net') == ['$netdev']
assert [e.name for e in os.scandir('/sys/class/infiniband') if e.is_dir()] == ['verbena0']"
check "a program that may write no files" "status 1." sh -c "(ulimit -f 0; cat $dev/node_type); echo status \$?."
check "handlers installed later stay beneath ours" "its own faults, and no others" "$helpers/tools-handlers"
[[ ! -e $dev ]] || echo "this machine has a verbena0 of its own"
((bad == 0)) && echo "the view is as it should be"
