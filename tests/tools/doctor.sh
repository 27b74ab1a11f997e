#!/bin/bash
# verbena doctor: each limit that can be brought about is found, with its cost and the exit status.   doctor.sh BUILD HELPERS
set -u
build=$(realpath "$1") helpers=$(realpath "$2") here=$(realpath "${BASH_SOURCE[0]%/*}")
. "${BASH_SOURCE[0]%/*}/check.bash"
verbena=$build/verbena
tmp=$(mktemp -d)
trap 'kill ${pids:-} 2>/dev/null; rm -rf --one-file-system "$tmp"' EXIT
unset LD_LIBRARY_PATH LD_PRELOAD ${!VERBENA_*}

# As tests/alone has it, lo is up.  What this machine itself limits is no fault of the others': the healthy case tells.
base=$("$verbena" doctor 2>&1)
base_rc=$?
echo "this machine: exit status $base_rc"
grep -v '^ok' <<<"$base"

json() { # WHAT PYTHON-EXPRESSION-OF-o COMMAND...: r is {check: its worst result}
	local what=$1 expression=$2 out
	shift 2
	checks=$((checks + 1))
	out=$("$@" 2>&1 </dev/null)
	if ! PYTHONIOENCODING=utf-8:strict /usr/bin/python3 -c "
import json, sys
o = json.load(sys.stdin)
grades = ['ok', 'note', 'limit', 'fails']
r = {}
for c in o['checks']:
    r[c['check']] = max(r.get(c['check'], 'ok'), c['result'], key=grades.index)
sys.exit(not ($expression))" <<<"$out"; then
		echo "FAIL: $what: not $expression in: $out"
		bad=$((bad + 1))
	fi
}

((base_rc < 2)) || { echo "FAIL: Verbena cannot work on this machine"; exit 1; }
notes=$(grep -c '^note ' <<<"$base")
if ((base_rc + notes == 0)); then
	check "nothing is limited" 0 "Verbena works here. Nothing limits it." "$verbena" doctor
fi
json "healthy" "o['works'] and o['libraries'] == '$build/lib' and r['device'] == r['rdma_cm'] == r['libraries'] == 'ok'
	and o['limits'] == sum(c['result'] == 'limit' for c in o['checks']) and o['foreign_devices'] == []
	and all(c['text'] and (c['result'] != 'fails' or c['cost']) for c in o['checks'])" "$verbena" doctor --json
[[ $base == *"ok     device: verbena0 can be opened"* ]] || { echo "FAIL: $base"; bad=$((bad + 1)); }
check "an ordinary place" $base_rc "ok     libraries: Verbena's libraries are in $build/lib" "$verbena" doctor
check "two programs" 125 "takes one program, without arguments, but a second word follows: \"-c\"" "$verbena" doctor sh -- -c
check "an option that it lacks" 125 "has no option --log" "$verbena" doctor --log=x
check "a program that is not there" 125 "no-such cannot be executed: No such file" "$verbena" doctor no-such
check "help" 0 "Exit status: 0 if nothing limits Verbena" "$verbena" help doctor
check "to a full disk" 125 "the output could not be written" sh -c "'$verbena' doctor >/dev/full"

# resources
check "address space for one peer" 1 "has room for at most 1 peer" prlimit --as=3000000000 "$verbena" doctor
check "what that costs" 1 "a process that meets more peers cannot connect to them" prlimit --as=3000000000 "$verbena" doctor
check "how it is loosened" 1 "to loosen it: ulimit -v unlimited" prlimit --as=3000000000 "$verbena" doctor
check "no address space for a peer" 2 "cost: no process can reach another" prlimit --as=2000000000 "$verbena" doctor
check "no address space for the device" 2 "RLIMIT_AS (ulimit -v) limits the process to 953 MiB" prlimit --as=1000000000 "$verbena" doctor
json "and in JSON" "not o['works'] and r['device'] == r['address space'] == 'fails'" prlimit --as=1000000000 "$verbena" doctor --json
check "few descriptors" 1 "RLIMIT_NOFILE (ulimit -n) is 64: a process that opens no other files has room for about 22 peers" prlimit --nofile=64 "$verbena" doctor
check "too few descriptors" 2 "device: ibv_open_device: verbena0 cannot be opened: Too many open files" prlimit --nofile=12 "$verbena" doctor
check "descriptors for a peer or two" 1 "room for about 0 peers
       cost: a process reaches one or two others at most" prlimit --nofile=18 "$verbena" doctor
# Room for the device and not for the stack: how much that is depends on the size of the libraries.
for ((space = 1436000; space < 1460000; space += 2000)); do
	prlimit --as=$((space * 1024)) "$verbena" doctor | grep -q "cannot be opened: Cannot allocate memory" || break
done
check "no room for a stack" 2 "its engine thread cannot be started: Resource temporarily unavailable; its stack needs address space, and the device " \
	prlimit --as=$((space * 1024)) "$verbena" doctor
check "small files" 2 "fails  file size: RLIMIT_FSIZE (ulimit -f) is 0 KiB" prlimit --fsize=1000 "$verbena" doctor
json "which is no matter of a sandbox" "r['calls'] == 'ok' and r['file size'] == 'fails'" prlimit --fsize=1000 "$verbena" doctor --json
check "locked memory does not count" $base_rc "which counts with --profile=strict only" prlimit --memlock=65536:65536 "$verbena" doctor
check "one CPU" 1 "limit  CPUs: this process may run on one CPU only" taskset -c "$(taskset -cp $$ | grep -o '[0-9]*' | tail -1)" "$verbena" doctor
check "direct placement is off" 1 "limit  memory: VERBENA_DIRECT=off" env VERBENA_DIRECT=off "$verbena" doctor
check "a wrong setting" 2 "fails  settings: VERBENA_DEVICES=99 is not a number from 1 to 16" env VERBENA_DEVICES=99 "$verbena" doctor
check "a wrong profile" 2 "fails  settings: VERBENA_PROFILE=x is not valid" env VERBENA_PROFILE=x "$verbena" doctor
check "a wrong setting of verbena run" 2 "fails  settings: VERBENA_FAIL_ON=x is not valid. Valid values: warn, error" env VERBENA_FAIL_ON=x "$verbena" doctor
check "a wrong setting of the capture" 2 "fails  settings: VERBENA_PCAP_SNAP=x is not a number of bytes" env VERBENA_PCAP=x VERBENA_PCAP_SNAP=x "$verbena" doctor
check "a log that cannot be written" 2 "fails  settings: VERBENA_LOG=$tmp/none/log: the file cannot be written: No such file or directory" \
	env VERBENA_LOG="$tmp/none/log" "$verbena" doctor
check "a capture that cannot be written" 2 "VERBENA_PCAP=/proc/version/x: the file cannot be written: Not a directory" env VERBENA_PCAP=/proc/version/x "$verbena" doctor
check "files that can be written" $base_rc "ok     device: " env VERBENA_LOG="$tmp/new" VERBENA_PCAP="$tmp/new2" "$verbena" doctor
[[ ! -e $tmp/new && ! -e $tmp/new2 ]] || { echo "FAIL: verbena doctor creates the log or the capture"; bad=$((bad + 1)); }
check "a log that is none" $base_rc "ok     device: " env VERBENA_LOG=off "$verbena" doctor
check "the library of the system is preloaded" $base_rc "note   device: LD_PRELOAD loads " env LD_PRELOAD=libibverbs.so.1 "$verbena" doctor

mkdir "$tmp/part"
cp -r "$verbena" "$build/lib" "$tmp/part"
rm "$tmp"/part/lib/librdmacm*
check "no librdmacm" 1 "limit  rdma_cm: $tmp/part/lib/librdmacm.so.1: cannot open shared object file" "$tmp/part/verbena" doctor
echo text >"$tmp/part/lib/libibverbs.so.1"
check "no library of ours" 2 "fails  device: $tmp/part/lib/libibverbs.so.1: file too short" "$tmp/part/verbena" doctor
rm "$tmp/part/lib/libibverbs.so.1"
check "no library at all" 2 "fails  libraries: there is no libibverbs.so.1 in $tmp/part/lib" "$tmp/part/verbena" doctor

# sandboxes
deny=$helpers/tools-deny
if "$deny" tgkill 1 true; then
	for how in "1 Operation not permitted" "38 Function not implemented" "kill is ended by SIGSYS"; do
		check "process_vm_readv denied: $how" 1 "another one's memory by process_vm_readv and process_vm_writev: " "$deny" process_vm_readv "${how%% *}" "$verbena" doctor
		check "and how" 1 "${how#* }" "$deny" process_vm_readv "${how%% *}" "$verbena" doctor
		check "pidfd_open denied: $how" 1 "limit  calls: the kernel or a sandbox refuses pidfd_open: " "$deny" pidfd_open "${how%% *}" "$verbena" doctor
		check "epoll_ctl denied: $how" 2 "refuses one of epoll_create1, eventfd2 and epoll_ctl: " "$deny" epoll_ctl "${how%% *}" "$verbena" doctor
		check "connect denied: $how" 2 "refuses one of connect, accept4" "$deny" connect "${how%% *}" "$verbena" doctor
	done
	check "its cost" 1 "cost: packets carry all data between processes" "$deny" process_vm_writev 1 "$verbena" doctor
	check "and remedy" 1 "--cap-add=SYS_PTRACE" "$deny" process_vm_writev 1 "$verbena" doctor
	check "the library's own sentence" 2 "(does a sandbox deny one?)" "$deny" epoll_ctl 1 "$verbena" doctor
	check "a device that ends the process" 2 "fails  device: a process that makes the call is ended by SIGSYS" "$deny" memfd_create kill "$verbena" doctor
	check "no seals" 2 "refuses one of memfd_create, ftruncate" "$deny" memfd_create 13 "$verbena" doctor
	for call in memfd_create listen; do
		json "only what failed first: $call" "r['device'] == 'fails' and sum(c['check'] == 'calls' for c in o['checks']) == 1" \
			"$deny" "$call" 13 "$verbena" doctor --json
	done
	check "no names" 2 "socket, bind and listen on abstract names" "$deny" listen 1 "$verbena" doctor
	check "an old kernel" 1 "MADV_POPULATE_READ) is not known to this kernel" "$deny" madvise 22 "$verbena" doctor
	check "registration denied" 2 "MADV_POPULATE_READ) is refused: Operation not permitted" "$deny" madvise 1 "$verbena" doctor
	check "no socket" 2 "getifaddrs (a netlink socket): a process that makes the call is ended by SIGSYS" "$deny" socket kill "$verbena" doctor
	check "statx" 1 "shared memory of two programs is not mapped directly" "$deny" statx 1 "$verbena" doctor
	check "tgkill" 1 "refuses tgkill" "$deny" tgkill 1 "$verbena" doctor
	json "a filter in JSON" "o['works'] and r['memory'] == 'limit' and r['device'] == 'ok'" "$deny" process_vm_readv 1 "$verbena" doctor --json
fi

# namespaces
if unshare -Ur true 2>/dev/null; then
	check "no name for the user" 2 "fails  user: your user is not mapped in this user namespace" unshare -U "$verbena" doctor
	check "no namespace for tests" 2 "note   namespaces: unshare -Urn makes no network namespace: " unshare -U "$verbena" doctor
	check "namespaces for each user" $base_rc "ok     namespaces: unshare -Urn makes a network namespace" "$verbena" doctor
	mkdir "$tmp/chroot"
	chroot=(unshare -Urm sh -c "mount --rbind / '$tmp/chroot' && exec chroot '$tmp/chroot' \"\$@\"" sh)
	check "namespaces for root" $base_rc "unshare -n makes a network namespace, which isolates tests. unshare -Urn, for ordinary users, does not: " \
		"${chroot[@]}" "$verbena" doctor
	check "and for nobody" $base_rc "note   namespaces: unshare -Urn makes no network namespace: Operation not permitted" \
		"${chroot[@]}" setpriv --bounding-set=-all "$verbena" doctor
	((base_rc)) || check "a note is counted" 0 "Verbena works here. $((notes + 1)) note" "${chroot[@]}" setpriv --bounding-set=-all "$verbena" doctor
	check "no /proc in a chroot" 2 "/proc/self/exe cannot be read" unshare -Urm sh -c "
		mkdir '$tmp/root' && mount --rbind / '$tmp/root' && mount -t tmpfs none '$tmp/root/proc' &&
		exec chroot '$tmp/root' '$verbena' doctor"
	check "lo is down" 1 "limit  network: the loopback interface is down" unshare -Urn "$verbena" doctor
	check "lo is up" $base_rc "ok     network: the loopback interface is up" unshare -Urn sh -c "ip link set lo up && exec '$verbena' doctor"
	check "no way to other hosts" $base_rc "no interface but loopback is up and has an address" \
		unshare -Urn sh -c "ip link set lo up && exec '$verbena' doctor"
	host="ip link set lo up; unshare -n sleep 600 & sleep 0.1; ip link add eth0 mtu 1400 type veth peer name eth0 netns \$!
		ip address add 192.0.2.7/24 dev eth0; ip link set eth0 up; nsenter -n -t \$! ip link set eth0 up; peer=\$!"
	host() { # COMMAND...: on a host whose eth0 leads to another one
		unshare -Urn sh -c "$host
			\"\$@\"; rc=\$?; kill \$peer; exit \$rc" sh "$@"
	}
	if host true 2>/dev/null; then
		check "an interface" $base_rc "eth0 has the address 192.0.2.7, and an MTU of 1400 bytes: path_mtu to other hosts is at most 1024" \
			host "$verbena" doctor
		check "the port" $base_rc "ok     port: UDP port 4791 can be opened on eth0, with a receive buffer of " host "$verbena" doctor
		taken="import socket, subprocess, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.bind(('::', 4791)); sys.exit(subprocess.call(sys.argv[1:]))"
		check "what is not looked at" $base_rc " KiB. Packet filters are not checked: they have to let it in" host "$verbena" doctor
		check "a port that is taken" $base_rc "note   port: process " host /usr/bin/python3 -c "$taken" "$verbena" doctor
		check "by whom" $base_rc "(python3) of this user holds UDP port 4791 on eth0 and does not share it" \
			host /usr/bin/python3 -c "$taken" "$verbena" doctor
		check "it is needed" 1 "limit  port: process " host env VERBENA_NETDEV=eth0 /usr/bin/python3 -c "$taken" "$verbena" doctor
		check "few descriptors for it" 1 "RoCEv2 on eth0 takes 67 descriptors, and this process may open only 200" \
			host env VERBENA_NETDEV=eth0 prlimit --nofile=200 "$verbena" doctor
		check "and for peers" 1 "(ulimit -n) is 200: a process that opens no other files has room for about 57 peers" \
			host env VERBENA_NETDEV=eth0 prlimit --nofile=200 "$verbena" doctor
		check "an interface that is down" 1 "limit  network: the interface eth0 is down, or has no carrier or no address" \
			host sh -c "ip link set eth0 down; VERBENA_NETDEV=eth0 exec '$verbena' doctor"
		check "loopback leads nowhere" $base_rc "note   network: VERBENA_NETDEV names lo, which leads to this host only" \
			host env VERBENA_NETDEV=lo "$verbena" doctor
	fi
	check "no /proc" 2 "/proc/self/exe cannot be read" unshare -Urm sh -c "mount -t tmpfs none /proc && exec '$verbena' doctor"
	check "its remedy" 2 "to loosen it: mount -t proc proc /proc" unshare -Urm sh -c "mount -t tmpfs none /proc && exec '$verbena' doctor"
	check "a part of /proc is hidden" 1 "limit  files: /proc/tty/ldisc cannot be read" unshare -Urm sh -c "mount -t tmpfs none /proc/tty && exec '$verbena' doctor"
	check "Yama" 1 "limit  memory: kernel.yama.ptrace_scope is 2: no process may" unshare -Urm sh -c "
		mount -t tmpfs none /proc/sys/kernel && mkdir /proc/sys/kernel/yama && echo 2 >/proc/sys/kernel/yama/ptrace_scope &&
		exec '$deny' process_vm_readv 1 '$verbena' doctor"
else
	echo "no user namespace can be made here"
fi
if out=$(FOREIGN_HOST='' "$here/foreign_host.sh" true 2>&1); then
	check "foreign devices are named" $base_rc "note   devices: this machine has RDMA devices of its own: " "$here/foreign_host.sh" "$verbena" doctor
	json "in JSON" "sorted(o['foreign_devices']) == ['mana_0', 'mlx5_0'] and r['devices'] == 'note'" "$here/foreign_host.sh" "$verbena" doctor --json
	check "one of them has our name" $base_rc "One has the name of Verbena's device" env VERBENA_DEVICE=mlx5_0 "$here/foreign_host.sh" "$verbena" doctor
else
	echo "no foreign devices can be made here: $out"
fi

# other processes
holder() { # FILE COMMAND...: starts it, and waits for a line of it
	mkfifo "$tmp/$1"
	"${@:2}" >"$tmp/$1" &
	pids="${pids:-} $!"
	read -r _ <"$tmp/$1"
}
holder version /usr/bin/python3 -c "
import fcntl, os, struct, time
fd = os.memfd_create('verbena', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(fd, 8192)
os.pwrite(fd, struct.pack('<QIIQQII', 0x3142524556, 7, 5, 7, 8192, os.getpid(), 1), 0)
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
print('ready', flush=True)
time.sleep(600)"
check "another version" 1 "limit  processes: process of yours uses another version of Verbena: ${pids# } (version 7)" "$verbena" doctor
kill $pids
wait $pids 2>/dev/null
pids=
name="import socket, time; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind('\0verbena/1/77'); print('ready', flush=True); time.sleep(600)"
if [[ $(id -u) == 0 ]] && setpriv --reuid=65534 --clear-groups true 2>/dev/null; then
	holder user setpriv --reuid=65534 --clear-groups /usr/bin/python3 -c "$name"
	check "another user" $base_rc "note   processes: other users hold 1 of the 4095 adapter numbers" "$verbena" doctor
	cp -r "$verbena" "$build/lib" "$tmp"
	chmod 755 "$tmp"
	check "an ordinary user" $base_rc "ok     user: user 65534" setpriv --reuid=65534 --clear-groups "$tmp/verbena" doctor
	check "no process can be started" 2 "fails  processes: a process cannot be started" prlimit --nproc=1 setpriv --reuid=65534 --clear-groups "$tmp/verbena" doctor
	check "room for a program, and not for its check" 1 "limit  processes: this command can start a thread, and a child of it cannot" \
		prlimit --nproc=2 setpriv --reuid=54321 --clear-groups "$tmp/verbena" doctor # a user without processes
	check "locked memory counts" 1 "RLIMIT_MEMLOCK (ulimit -l) is 64 KiB, and the profile strict counts memory regions" \
		env VERBENA_PROFILE=strict prlimit --memlock=65536:65536 setpriv --reuid=65534 --clear-groups "$tmp/verbena" doctor
fi

# programs
if [[ $(id -u) == 0 ]] && cp "$helpers/tools-view-check" "$tmp/raised" && chown 65534 "$tmp/raised" && chmod u+s "$tmp/raised"; then
	check "rights that the user lacks" 2 "fails  program: $tmp/raised is a set-user-ID program" "$verbena" doctor "$tmp/raised"
fi
check "a program that is linked" $base_rc "ok     program: $helpers/tools-view-check loads Verbena's libraries" "$verbena" doctor "$helpers/tools-view-check"
check "one that is not" $base_rc "note   program: /bin/true is not linked with libibverbs.so.1" "$verbena" doctor -- /bin/true
check "a bundled library" $base_rc "Verbena's libibverbs.so.1 is preloaded instead" "$verbena" doctor "$helpers/tools-bundled"
check "a driver of another release" 2 "fails  program: $helpers/libtools-driver.so needs the symbol version IBVERBS_PRIVATE_99" "$verbena" doctor "$helpers/tools-lacks"
check "a libibverbs that is linked in" 2 "is linked with a static libibverbs" "$verbena" doctor "$helpers/tools-linked-in"
[[ ! -e $helpers/tools-static ]] || check "a static program" 2 "is statically linked and cannot load" "$verbena" doctor "$helpers/tools-static"
json "a program in JSON" "r['program'] == 'fails' and r['device'] == 'ok'" "$verbena" doctor --json "$helpers/tools-linked-in"
check "the system's library of another release" 1 "has the private node 99, and Verbena's library has " env LD_LIBRARY_PATH="$helpers/newer" "$verbena" doctor
check "no node for the first library" $base_rc "LD_LIBRARY_PATH names Verbena's libraries already" env LD_LIBRARY_PATH="$build/lib" "$verbena" doctor
check "SIGCHLD ignored" $base_rc "ok     libraries: " bash -c 'trap "" CHLD; exec "$@"' bash "$verbena" doctor
check "a directory" 2 "fails  program: $tmp/ cannot be executed: it is not a regular file" "$verbena" doctor "$tmp/"
cp "$helpers/tools-view-check" "$tmp/"$'name\xff'
json "a name that is no UTF-8" "r['program'] == 'ok'" "$verbena" doctor --json "$tmp/"$'name\xff'
echo "$checks checks, $bad failed"
((bad == 0))
