#!/bin/bash
# Devices that the kernel has stay hidden under `verbena run`.   foreign.sh BUILD HELPERS
set -u
build=$(realpath "$1") helpers=$(realpath "$2") here=$(realpath "${BASH_SOURCE[0]%/*}") bad=0 checks=0
[[ ${FOREIGN_HOST:-} ]] || exec "$here/foreign_host.sh" "$0" "$@"
unset LD_LIBRARY_PATH LD_PRELOAD VERBENA_DEVICE VERBENA_DEVICES VERBENA_LINK
verbena=$build/verbena

check() { # WHAT STATUS WORDS COMMAND...: has these words, and none of the foreign devices
	local what=$1 status=$2 words=$3 out rc
	shift 3
	out=$("$verbena" run -- "$@" 2>&1 </dev/null)
	rc=$?
	checks=$((checks + 1))
	if [[ $rc != "$status" || $out != *"$words"* || $out == *mana_0* || $out == *uverbs1* ]]; then
		echo "FAIL: $what: exit status $rc (wanted $status), output (wanted \"$words\"): $out"
		bad=$((bad + 1))
	fi
}

[[ $(echo /sys/class/infiniband/*) == *mana_0*mlx5_0 && -e /dev/infiniband/uverbs1 ]] || { echo "FAIL: there are no foreign devices"; exit 1; }
check "every call" 0 "0 failures" "$helpers/tools-foreign"
check "ls" 0 verbena0 ls /sys/class/infiniband
check "ls -lR" 0 ports/1: ls -lR /sys/class/infiniband/ /sys/class/infiniband_verbs /dev/infiniband
check "ls of a foreign one" 2 "No such file" ls -d /sys/class/infiniband/mlx5_0
check "cat of a foreign one" 1 "No such file" cat /sys/class/infiniband/mlx5_0/node_type
for sh in sh bash; do
	check "$sh: patterns" 0 "/sys/class/infiniband/verbena0 /dev/infiniband/uverbs0" $sh -c "echo /sys/class/infiniband/* /dev/infiniband/u*"
	check "$sh: tests" 0 "none" $sh -c "[ -e /sys/class/infiniband/mlx5_0 ] || [ -c /dev/infiniband/uverbs1 ] || [ -d /sys/class/infiniband_mad ] || echo none"
	check "$sh: a working directory" 0 "verbena0" $sh -c "cd /sys/class/infiniband && echo *"
done
check "ls of a relative path" 0 verbena0 sh -c "cd /sys/class && ls infiniband"
check "find" 1 "not supported" find /sys/class/infiniband
check "python" 0 "['verbena0'] ['verbena0'] ['/sys/class/infiniband/verbena0'] False" /usr/bin/python3 -c "
import glob, os
print(os.listdir('/sys/class/infiniband'), [e.name for e in os.scandir('/sys/class/infiniband')],
      glob.glob('/sys/class/infiniband/*'), os.path.exists('/sys/class/infiniband/mlx5_0'))
assert list(os.walk('/sys/class/infiniband'))[0][1] == ['verbena0']
assert not glob.glob('/sys/class/infiniband_mad/*') and not glob.glob('/dev/infiniband/umad*')"
programs() { # those that are installed
	command -v "$1" >/dev/null || { echo "not installed: $1"; return; }
	check "$*" "${status:-0}" "$words" "$@"
}
words=verbena0
programs ibv_devices
programs ibv_devinfo -l
programs ibstat -l
programs ibstat
programs ibstatus
words="IB device 'mlx5_0' wasn't found" status=255 programs ibv_devinfo -d mlx5_0
words="IB device mlx5_0 not found" status=1 programs ib_write_bw -d mlx5_0
# A device of ours may have the name of one of theirs.
VERBENA_DEVICE=mlx5_0 check "ours of that name" 0 Verbena cat /sys/class/infiniband/mlx5_0/hca_type
VERBENA_DEVICE=mlx5_0 check "and no other" 0 mlx5_0 ls /sys/class/infiniband
echo "$checks checks, $bad failed"
((bad == 0))
