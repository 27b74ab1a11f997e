#!/bin/bash
# verbena explain and verbena mr: what they show of a running process, stopped or not, and what they say when they
# cannot.   explain.sh BUILD HELPERS
set -u
build=$(realpath "$1") helpers=$(realpath "$2")
. "${BASH_SOURCE[0]%/*}/check.bash"
verbena=$build/verbena
tmp=$(mktemp -d)
pids=()
trap 'for p in "${pids[@]}"; do kill -9 "$p" 2>/dev/null; done; rm -rf "$tmp"' EXIT
unset LD_LIBRARY_PATH LD_PRELOAD VERBENA_LOG VERBENA_LOG_LEVEL

json() { # WHAT PYTHON-EXPRESSION-OF-o COMMAND...
	local what=$1 expression=$2
	shift 2
	checks=$((checks + 1))
	if ! "$@" | PYTHONIOENCODING=utf-8:strict /usr/bin/python3 -c "import json,sys; o = json.load(sys.stdin); sys.exit(not ($expression))"; then
		echo "FAIL: $what: not $expression in: $("$@")"
		bad=$((bad + 1))
	fi
}

start() { # NAME COMMAND...: $1.in keeps it running; sets pid and line
	local name=$1
	shift
	mkfifo "$tmp/$name.in" "$tmp/$name.out"
	"$@" <"$tmp/$name.in" >"$tmp/$name.out" 2>"$tmp/$name.err" &
	pid=$!
	pids+=("$pid")
	exec {keep}>"$tmp/$name.in"
	read -r line <"$tmp/$name.out"
}

# The log is off: the history does without it.
start shares "$verbena" run --share-buffers -- "$helpers/tools-trouble" once
check "shared buffers can be mapped" 0 "; not in use now; peers can map it" "$verbena" mr "$pid"
check "protected ones too, to be read" 1 "" sh -c "'$verbena' mr $pid | grep cannot"
start one env VERBENA_LOG=off "$verbena" run -- "$helpers/tools-trouble"
one=$pid
read -r p q alkey arkey blkey brkey pd <<<"$line"
[[ -n ${pd:-} ]] || { echo "FAIL: the program did not start: $(cat "$tmp/one.err")"; exit 1; }
[[ ! -s $tmp/one.err ]] || { echo "FAIL: $(cat "$tmp/one.err")"; exit 1; }

look() {
	check "the refusal is there" 0 "ibv_reg_mr: " "$verbena" explain "$one"
	check "with its errno" 0 "(EFAULT) [3 times since " "$verbena" explain "$one"
	check "and the address" 0 "$q" "$verbena" explain "$one"
	check "the other one too" 0 "0x40000000 (EINVAL)" "$verbena" explain "$one"
	check "which program it is" 0 "process $one (tools-trouble): 4 log messages since it opened the device, 2 different ones" \
		"$verbena" explain "$one"
	json "explain --json" "o['pid'] == $one and o['said'] == 4 and len(o['lines']) == 2 and
		o['lines'][0]['call'] == 'ibv_reg_mr' and o['lines'][0]['errno'] == 'EFAULT' and
		o['lines'][0]['count'] == 3 and o['lines'][1]['errno'] == 'EINVAL'" "$verbena" explain --json "$one"
	check "regions, their number and sum" 0 "2 memory regions of at most 1048576, 8192 bytes" "$verbena" mr "$one"
	check "the first" 0 "$p +4096  L_Key $alkey R_Key $arkey  memory  PD $pd  LOCAL_WRITE|REMOTE_WRITE; iova 0x10000" \
		"$verbena" mr "$one"
	check "the second" 0 "$q +4096  L_Key $blkey R_Key $brkey  memory  PD $pd  REMOTE_READ; not in use now" \
		"$verbena" mr "$one"
	check "its private memory is not mapped" 0 "; peers cannot map it: its memory is private (verbena run --share-buffers" \
		"$verbena" mr "$one"
	json "why not, in JSON" "[r['peers_can_map'] for r in o['regions']] == [False, False] and
		'private' in o['regions'][0]['why_not']" "$verbena" mr --json "$one"
	json "mr --json" "[r['address'] for r in o['regions']] == ['$p', '$q'] and
		o['regions'][0]['lkey'] == '$alkey' and o['regions'][0]['iova'] == '0x10000' and
		o['regions'][0]['size'] == 4096 and o['regions'][1]['rkey'] == '$brkey' and
		o['regions'][1]['access'] == 'REMOTE_READ' and o['regions'][0]['kind'] == 'memory' and
		o['regions'][0]['windows'] == 0 and o['regions'][0]['used_by'] == [] and
		not o['regions'][0]['peers_may_map'] and
		o['totals'] == {'regions': 2, 'limit': 1048576, 'bytes': 8192, 'windows': 0}" "$verbena" mr --json "$one"
}

look
kill -STOP "$one"
look # of a process that is stopped
kill -CONT "$one"

check "no such process" 125 "there is no process 4194304. \"verbena list\"" "$verbena" explain 4194304
check "no number" 125 "\"x1\" is not a process ID. \"verbena list\"" "$verbena" mr x1
start none sh -c 'echo; cat' # `one` has a device, but this process did not start it
check "no device" 125 "process $pid has no device of Verbena open, and no process that it started has one. \"verbena list\"" \
	"$verbena" explain "$pid"
check "two processes" 125 "takes one process ID, but a second one follows: \"2\"" "$verbena" explain 1 2
check "help" 0 "refused calls" "$verbena" explain --help
(exec sleep 0) &
zombie=$!
for _ in {1..500}; do [[ $(cut -d' ' -f3 "/proc/$zombie/stat" 2>/dev/null) == Z ]] && break; sleep 0.01; done
[[ ! -e /proc/$zombie ]] || check "a process that has ended" 125 "process $zombie has ended" "$verbena" mr "$zombie"

# Without a PID: the only one.  While another test has a device open it says so, and is asked again.
for _ in {1..100}; do
	said=$("$verbena" mr 2>&1 </dev/null)
	rc=$?
	[[ $said == *"processes have a device of Verbena open"* ]] || break
	sleep 0.05
done
if [[ $said != *"processes have a device of Verbena open"* ]]; then
	check "no PID" 0 "process $one (" sh -c 'echo "$1"; exit "$2"' sh "$said" "$rc"
fi
start once "$verbena" run -- "$helpers/tools-trouble" once
check "a single sentence" 0 "(tools-trouble): 1 log message since it opened the device
" "$verbena" explain "$pid"
kill "$pid"
start again "$verbena" run -- "$helpers/tools-trouble" again
check "one that comes again" 0 "(tools-trouble): 3 log messages since it opened the device, all the same
" "$verbena" explain "$pid"
kill "$pid"
start both "$verbena" run --devices=2 -- "$helpers/tools-trouble" both
both=$pid
check "list" 0 "    PID  PROGRAM " "$verbena" list
check "list has the process" 0 " $both  tools-trouble " "$verbena" list
check "and its devices" 0 "  verbena0,verbena1 " "$verbena" list
json "list --json" "[p for p in o if p['pid'] == $both][0]['program'] == 'tools-trouble' and
	[(d['name'], d['queue_pairs']) for p in o if p['pid'] == $both for d in p['devices']] ==
	[('verbena0', 0), ('verbena1', 0)] and [p['pid'] for p in o] == sorted(p['pid'] for p in o)" "$verbena" list --json
check "regions of both devices" 0 "2 memory regions of at most 1048576, 8192 bytes" "$verbena" mr "$both"
check "the second's too" 0 "1 memory region of at most 1048576, 64 bytes of memory, 0 memory windows" "$verbena" mr "$both"
json "both in JSON" "len(o['regions']) == 2 and len(o['further_devices']) == 1 and
	len(o['further_devices'][0]['regions']) == 1 and o['further_devices'][0]['adapter'] != o['adapter']" \
	"$verbena" mr --json "$both"
check "sentences of a process with two" 0 "(tools-trouble): 3 log messages since it opened the device" "$verbena" explain "$both"
kill "$both"
start second "$verbena" run --devices=2 -- "$helpers/tools-trouble" second
check "sentences outlive the first device" 0 "(tools-trouble): 3 log messages since it opened the device, all the same
" "$verbena" explain "$pid"
check "with their count" 0 "(EFAULT) [3 times since " "$verbena" explain "$pid"
json "one is left" "len(o['regions']) == 1 and o['further_devices'] == []" "$verbena" mr --json "$pid"
kill "$pid"
start drops "$verbena" run -- "$helpers/tools-trouble" drops
# They have left; that they have arrived takes the engine at most a few milliseconds more.
for _ in {1..500}; do [[ $("$verbena" explain "$pid") == *" 3  drop-no-receive"* ]] && break; sleep 0.01; done
check "what was dropped" 0 "
discarded without an error completion, as unreliable queue pairs do:
           3  drop-no-receive: messages to queue pairs where no receive request was posted" "$verbena" explain "$pid"
json "drops in JSON" "[(d['reason'], d['count'], 'no receive request' in d['text']) for d in o['drops']] ==
	[('drop-no-receive', 3, True)]" "$verbena" explain --json "$pid"
json "queue pairs that exist" "[p['queue_pairs'] for p in o if p['pid'] == $pid] == [2]" "$verbena" list --json
checks=$((checks + 1))
"$verbena" list | grep -Eq "^ *$pid  tools-trouble +verbena0 +2 [A-Z]+ " || { echo "FAIL: no two queue pairs of $pid in: $("$verbena" list)"; bad=$((bad + 1)); }
kill "$pid"
json "no drops" "o['drops'] == []" "$verbena" explain --json "$one"
start two "$verbena" run -- "$helpers/tools-trouble" more
for kind in memory relaxed on-demand device-memory null; do
	check "a region of the kind $kind" 0 "  $kind  PD " "$verbena" mr "$pid"
done
json "kinds in JSON" "sorted(r['kind'] for r in o['regions']) ==
	['device-memory', 'memory', 'memory', 'null', 'on-demand', 'relaxed'] and o['totals']['regions'] == 6" \
	"$verbena" mr --json "$pid"
check "several" 125 "processes have a device of Verbena open. Name one of them: verbena explain PID" "$verbena" explain
check "several are listed" 125 " $one  tools-trouble " "$verbena" explain
check "several, of mr" 125 "Name one of them: verbena mr PID" "$verbena" mr
start below "$verbena" run --summary -- timeout 600 "$helpers/tools-trouble" once
check "a process that another one started" 0 " (tools-trouble): 1 log message since it opened the device" "$verbena" explain "$pid"
check "also for mr" 0 " (tools-trouble)" "$verbena" mr "$pid"
json "it is that one" "o['pid'] != $pid and open('/proc/%d/comm' % o['pid']).read() == 'tools-trouble\n'" "$verbena" explain --json "$pid"
kill "$pid"
check "several that one started" 125 "processes have a device of Verbena open. Name one of them: verbena explain PID" "$verbena" explain $$
check "they are listed" 125 " $one  tools-trouble " "$verbena" explain $$
check "list takes no argument" 125 "\"$one\" is given. To look into a process: verbena explain PID" "$verbena" list "$one"
alone=(unshare -r -p --fork --mount-proc) # sees no other process
if "${alone[@]}" true 2>/dev/null; then
	check "none" 125 "no process of yours has a device of Verbena open. To start a program: verbena run" "${alone[@]}" "$verbena" mr
	check "a list of none" 0 "no process of yours has a device of Verbena open" "${alone[@]}" "$verbena" list
	json "a list of none in JSON" "o == []" "${alone[@]}" "$verbena" list --json
	check "the only one" 0 "(tools-trouble): 1 log message since" "${alone[@]}" sh -c "
		mkfifo '$tmp/only.out'; '$verbena' run --log=off -- '$helpers/tools-trouble' once </dev/zero >'$tmp/only.out' &
		read -r line <'$tmp/only.out'; '$verbena' explain"
	# Besides that one a process in another network namespace: it is listed, and explain does not ask which one is meant.
	for words in list explain; do
		[[ $words == list ]] && want="  in another network namespace" || want="(tools-trouble): 1 log message since"
		check "one of another network namespace, for $words" 0 "$want" "${alone[@]}" sh -c "
			mkfifo '$tmp/$words.1' '$tmp/$words.2'
			'$verbena' run --log=off -- '$helpers/tools-trouble' once </dev/zero >'$tmp/$words.1' &
			unshare -n '$verbena' run --log=off -- '$helpers/tools-trouble' once </dev/zero >'$tmp/$words.2' &
			read -r line <'$tmp/$words.1'; read -r line <'$tmp/$words.2'; '$verbena' $words"
	done
else
	echo "no PID namespace can be made here"
fi

# What lasts too short a time to be met: uses, an entry that changes, windows, equal keys, a domain of another process.
start fake "$helpers/tools-segment" 99
fake=$pid
# Its memory is not grown by being looked at.
blocks() { stat -Lc %b "$(find "/proc/$fake/fd" -lname '/memfd:verbena*' | head -1)"; }
before=$(blocks)
"$verbena" mr "$fake" >/dev/null
"$verbena" explain "$fake" >/dev/null
after=$(blocks)
checks=$((checks + 1))
[[ $before == "$after" ]] || { echo "FAIL: the segment had $before blocks, has $after"; bad=$((bad + 1)); }
start user "$helpers/tools-segment" 98 99
user=$pid
check "keys of this profile, a mapping, a user elsewhere" 0 "0x000000009000 +4096  L_Key 0x40000107 R_Key 0x40000107  memory  PD 5  LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ; 1 window bound; in use by process $user; peers may map it" \
	"$verbena" mr "$fake"
check "a window" 0 "0x000000009010 +16  R_Key 0x40000201  window  PD 5  REMOTE_WRITE; iova 0x0; bound to the region of L_Key 0x40000107; for QP 0x000123; in use by itself" \
	"$verbena" mr "$fake"
check "an implicit region of a domain of another process" 0 "on-demand  PD 6 of adapter 77" "$verbena" mr "$fake"
check "sums" 0 "adapter 99: 2 memory regions of at most " "$verbena" mr "$fake"
json "users in JSON" "[r['used_by'] for r in o['regions']] == [[], [$user], [$fake]] and
	[r['peers_may_map'] for r in o['regions']] == [False, True, False] and o['regions'][2]['qp'] == '0x000123' and
	'lkey' not in o['regions'][2] and o['regions'][0]['size'] == 2**64 - 1 and o['totals']['bytes'] == 4096 and
	o['totals']['windows'] == 1" "$verbena" mr --json "$fake"

# A segment of another version, and one that is rubbish: both in a process that only holds a memfd of that name.
cat >"$tmp/fake.py" <<'PY'
import ctypes, fcntl, os, struct, sys
if "COMM" in os.environ:
    with open("/proc/self/comm", "wb") as f:
        f.write(os.environb[b"COMM"])
fd = os.memfd_create("verbena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(fd, int(sys.argv[1]))
os.pwrite(fd, struct.pack("<QIIQQII", 0x3142524556, int(sys.argv[2]), 5, 7, int(sys.argv[1]), os.getpid(), 1), 0)
if len(sys.argv) > 3:
    size = int(sys.argv[1])
    os.pwrite(fd, b"\xff" * 8192, 4096)
    os.pwrite(fd, os.urandom(1 << 20), 8192 + 4096 * 64)
    # the history, and the ids of rdma_cm, with sequence numbers that are even
    os.pwrite(fd, os.urandom(80 * 1024), size - 80 * 1024)
    ids = b"".join(struct.pack("<Q", 2) + os.urandom(120) for _ in range(1024))
    os.pwrite(fd, ids, int(sys.argv[4]))
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
print("ready", flush=True)
sys.stdin.read()
PY
size=$(stat -Lc %s "$(find "/proc/$one/fd" -lname '/memfd:verbena*' | head -1)")
version=$(od -An -tu4 -j8 -N4 "$(find "/proc/$one/fd" -lname '/memfd:verbena*' | head -1)" | tr -d ' ')
start old /usr/bin/python3 "$tmp/fake.py" "$size" $((version - 1))
check "another version" 125 "another version of Verbena: its segment has version $((version - 1)), and this command reads version $version" \
	"$verbena" explain "$pid"
start rubbish /usr/bin/python3 "$tmp/fake.py" "$size" "$version" rubbish "$("$helpers/tools-segment" ids)"
check "rubbish does no harm" 0 "process $pid (python3)" "$verbena" explain "$pid"
check "ids of rubbish" 0 " more ids: the table is full" "$verbena" explain "$pid"
check "nor to mr" 0 "process $pid (python3)" "$verbena" mr "$pid"
json "nor in JSON" "o['pid'] == $pid" "$verbena" explain --json "$pid"
# What it calls itself goes to a terminal.
start hostile env COMM=$'a\e[2J\x7f\xc2\x9bm\xc3\x9b' /usr/bin/python3 "$tmp/fake.py" "$size" "$version"
check "a program's name has no control characters" 0 "process $pid (a?[2J???m"$'\xc3\x9b'")" "$verbena" explain "$pid"
check "nor has it in mr" 0 "process $pid (a?[2J???m"$'\xc3\x9b'")" "$verbena" mr "$pid"
start short /usr/bin/python3 "$tmp/fake.py" 8192 "$version"
check "a short one" 125 "process $pid " "$verbena" mr "$pid"

if [[ $(id -u) == 0 ]] && setpriv --reuid=65534 --clear-groups true 2>/dev/null; then
	cp "$verbena" "$tmp/verbena"
	chmod 755 "$tmp" "$tmp/verbena"
	check "another user's" 125 "process $one belongs to user root, and you are user $(id -un 65534 2>/dev/null || echo 65534). Type as that user or as root: verbena explain $one" \
		setpriv --reuid=65534 --clear-groups "$tmp/verbena" explain "$one"
fi

if unshare -Ur true 2>/dev/null; then
	check "root elsewhere" 125 "process $one does not permit root to read its memory: it is in another user namespace, or this command lacks CAP_SYS_PTRACE" \
		unshare -Ur "$verbena" explain "$one"
fi

for words in list "list --json" "list --metrics" "qp $one" help "help run" "explain $one" "explain --json $one" "mr $one" "mr --json $one" --help --version; do
	check "$words to a full disk" 125 "the output could not be written: " sh -c "'$verbena' $words >/dev/full"
	check "$words to nowhere" 125 "the output could not be written: " sh -c "'$verbena' $words >&-"
done
# A reader that has had enough is no failure to talk of, also where SIGPIPE is ignored.
checks=$((checks + 1))
/usr/bin/python3 - "$verbena" "$one" <<'PY' || bad=$((bad + 1))
import os, signal, subprocess, sys
verbena, pid = sys.argv[1:]
for words in ["list"], ["list", "--json"], ["list", "--metrics"], ["qp", pid], ["help"], ["help", "run"], ["run", "-h"], ["explain", pid], ["mr", "--json", pid]:
    for ignored in False, True:
        r, w = os.pipe()
        os.close(r)
        done = subprocess.run([verbena] + words, stdout=w, stderr=subprocess.PIPE, text=True, restore_signals=False,
                              preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN if ignored else signal.SIG_DFL))
        os.close(w)
        if done.returncode != -signal.SIGPIPE or done.stderr:
            sys.exit(f"FAIL: verbena {words} to a closed pipe, ignored {ignored}: {done.returncode}, {done.stderr!r}")
PY

echo "$checks checks, $bad failed"
((bad == 0))
