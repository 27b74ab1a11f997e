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
# A working directory in the view: as ibstatus of infiniband-diags goes about it, and as python does.
walk='cd /sys/class/infiniband && for d in *; do (cd $d/ports && for p in *; do echo $d/$p $(pwd); done); done'
for sh in sh bash; do
	check "$sh: cd and patterns" "verbena0/1 $dev/ports" $sh -c "$walk"
	check "$sh: cd by relative paths" "0x0 node_guid /sys/class /" $sh -c "cd $dev/ports/1 && read lid <lid && cd ../.. && n=\$(echo node_g*) && cd ../.. && echo \$lid \$n \$(pwd -P) \$(cd / && pwd -P)"
	check "$sh: nothing is mistaken after cd" "no such thing" $sh -c "cd $dev && (cat node_type 2>/dev/null || echo no such thing)"
done
check "cd to what is no directory" "2 2" sh -c "cd $dev/node_type 2>/dev/null; echo -n \$? ''; cd $dev/nothing 2>/dev/null; echo \$?"
check "python's working directory" "as it should be" /usr/bin/python3 -c "
import glob, os, subprocess
os.chdir('/tmp')
subprocess.run(['true'], cwd='$dev')
assert os.getcwd() == '/tmp' and not os.path.exists('node_type'), os.getcwd()
os.chdir('/sys/class/infiniband')
assert os.getcwd() == '/sys/class/infiniband' and os.listdir() == glob.glob('*') == ['verbena0'], os.listdir()
assert open('verbena0/node_type').read() == '1: CA\n' and os.path.isdir('verbena0/ports')
subprocess.run(['true'], cwd='/tmp')
assert os.listdir('.') == ['verbena0']
os.chdir('verbena0/ports/1')
assert os.getcwd() == '$dev/ports/1' and os.stat('../..').st_ino == os.stat('$dev').st_ino
fd = os.open('/tmp', os.O_RDONLY)
try:
    os.open('lid', os.O_RDONLY, dir_fd=fd) # which is not the view's
    raise SystemExit('found')
except FileNotFoundError:
    pass
os.fchdir(fd)
assert os.getcwd() == '/tmp' and not os.path.exists('lid')
print('as it should be')"
check "what ibstat shows" "Verbena 0 verbena" sh -c "echo \$(cat $dev/hca_type $dev/hw_rev $dev/board_id)"
check "a program that may write no files" "status 1." sh -c "(ulimit -f 0; cat $dev/node_type); echo status \$?."
check "handlers installed later stay beneath ours" "its own faults, and no others" "$helpers/tools-handlers"
[[ ! -e $dev ]] || echo "this machine has a verbena0 of its own"
((bad == 0)) && echo "the view is as it should be"
