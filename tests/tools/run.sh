#!/bin/bash
# verbena run: what it sets, what it refuses and with which status.   run.sh BUILD HELPERS
set -u
build=$(realpath "$1") helpers=$(realpath "$2")
. "${BASH_SOURCE[0]%/*}/check.bash"
verbena=$build/verbena
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
unset LD_LIBRARY_PATH LD_PRELOAD VERBENA_LOG VERBENA_LOG_LEVEL

lib=$build/lib/libibverbs.so.1
check "the program gets our library" 0 "$lib" "$verbena" run -- "$helpers/tools-which"
check "the exit status is the program's" 7 "" "$verbena" run -- "$helpers/tools-which" 7
check "options of the program are its own" 0 "--log x" "$verbena" run /bin/echo --log x
check "a name is looked up in PATH" 0 "$lib" env PATH="$helpers:$PATH" "$verbena" run tools-which
check "log" 0 "VERBENA_LOG=stderr" "$verbena" run env
check "log as the user has it" 0 "VERBENA_LOG=off" env VERBENA_LOG=off "$verbena" run env
check "settings are options" 0 "VERBENA_VENDOR_ID=0x2c9" "$verbena" run --vendor-id 0x2c9 env
check "one word" 0 "VERBENA_LOG_LEVEL=debug" "$verbena" run --log-level=debug -- env
check "profile" 0 "VERBENA_PROFILE=strict" "$verbena" run --profile=strict env
check "device" 0 "VERBENA_DEVICE=mlx5_0" "$verbena" run --device=mlx5_0 env
check "devices" 0 "VERBENA_DEVICES=2" "$verbena" run --devices=2 env
check "link layer" 0 "VERBENA_LINK=infiniband" "$verbena" run --link=infiniband env
check "no name" 125 "verbena: --device=a/b is not a device name" "$verbena" run --device=a/b true
check "no name in the environment" 125 "verbena: VERBENA_DEVICE=a/b is not a device name" env VERBENA_DEVICE=a/b "$verbena" run true
check "the option is named that is wrong" 125 "verbena: VERBENA_DEVICE=a/b is not" env VERBENA_DEVICE=a/b "$verbena" run --devices=2 true
check "no number" 125 "--devices=17 is not valid. Valid values: numbers from 1 to 16" "$verbena" run --devices 17 true
check "no link layer" 125 "VERBENA_LINK=ib is not a link layer" env VERBENA_LINK=ib "$verbena" run true
check "unknown profile" 125 '--profile=mlx9 is not valid. Valid values: default, strict, rxe' "$verbena" run --profile mlx9 true
check "unknown profile in the environment" 125 'VERBENA_PROFILE=x is not valid. Valid values: default, strict, rxe' env VERBENA_PROFILE=x "$verbena" run true
check "direct placement" 0 "VERBENA_DIRECT=off" "$verbena" run --direct=off -- env
check "ptrace" 0 "VERBENA_PTRACE=off" "$verbena" run --ptrace off -- env
check "what is there already stays" 0 "LD_LIBRARY_PATH=$build/lib:/a:/b" \
	env LD_LIBRARY_PATH=/a:/b "$verbena" run env
check "the view" 0 "LD_PRELOAD=$build/lib/libverbena-view.so" "$verbena" run env
check "shared buffers" 0 "LD_PRELOAD=$build/lib/libverbena-view.so:$build/lib/libverbena-share.so" "$verbena" run --share-buffers env
check "shared buffers by the environment" 0 "libverbena-share.so" env VERBENA_SHARE_BUFFERS=on "$verbena" run --no-view env
check "no shared buffers" 0 "LD_PRELOAD=$build/lib/libverbena-view.so" env VERBENA_SHARE_BUFFERS=on "$verbena" run --share-buffers=off env
for allocator in libjemalloc.so.2 libtcmalloc_minimal.so.4 libmimalloc.so.2.0; do
	PATH=$PATH:/sbin ldconfig -p | grep -q "$allocator" || { echo "SKIP: $allocator is not installed"; continue; }
	check "shared buffers beside $allocator" 0 "/$allocator replaces malloc()" \
		env LD_PRELOAD=$allocator VERBENA_LOG=stderr timeout -s KILL 60 "$verbena" run --share-buffers true
done
check "shared buffers, perhaps" 125 "VERBENA_SHARE_BUFFERS=1 is not valid. Valid values: on, off" env VERBENA_SHARE_BUFFERS=1 "$verbena" run true
check "no view" 1 "" "$verbena" run --no-view grep -q LD_PRELOAD /proc/self/environ
check "not found" 127 "verbena: no-such-program cannot be executed: No such file" "$verbena" run no-such-program
check "not found either" 127 "verbena: /no/such cannot be executed: No such file" "$verbena" run -- /no/such
echo text >"$tmp/plain"
mkfifo -m 755 "$tmp/fifo" && mkdir "$tmp/folder"
sed 's#/ld-linux-#/ld-nowhe-#' /bin/true >"$tmp/loaderless" && chmod +x "$tmp/loaderless"
for file in fifo folder; do
	check "a $file" 126 "verbena: $tmp/$file cannot be executed: it is not a regular file" timeout 20 "$verbena" run "$tmp/$file"
done
check "no loader" 127 "ld-nowhe-x86-64.so.2: No such file or directory" "$verbena" run "$tmp/loaderless"
check "not executable" 126 "verbena: $tmp/plain cannot be executed: Permission denied" "$verbena" run "$tmp/plain"
check "usage" 125 "no program is given" "$verbena" run
check "usage of verbena" 125 "there is no command \"walk\". The commands are run, list, top, explain, qp, mr, bundle, doctor, help" "$verbena" walk
check "a command that is nearly one" 125 "there is no command \"explian\". Did you mean explain?" "$verbena" explian
check "a program in place of a command" 125 "type: verbena run -- cat" "$verbena" cat
check "a command whose help is asked for" 125 "there is no command \"mrr\". Did you mean mr?" "$verbena" help mrr
check "unknown option" 125 '"verbena run" has no option --nonsense. "verbena help run" lists' "$verbena" run --nonsense true
check "an option that is nearly one" 125 "has no option --log-levle. Did you mean --log-level?" "$verbena" run --log-levle=warn true
check "an option of another command" 125 '"verbena explain" has no option --log.' "$verbena" explain --log=x
check "an option of none" 125 '"verbena" has no option -x. "verbena help" lists' "$verbena" -x
check "a value that is nearly one" 125 "--log-level=wran is not valid. Did you mean warn? Valid values: error, warn, info, debug" \
	"$verbena" run --log-level=wran true
check "a value too many" 125 '--no-view takes no value, but "1" is given' "$verbena" run --no-view=1 true
check "a value too few" 125 "--log needs a value: --log=DEST" "$verbena" run --log
check "an option that is cut short" 0 "VERBENA_VENDOR_PART_ID=7" "$verbena" run --vendor-p=7 env
check "an option that is cut too short" 125 "has no option --vendor." "$verbena" run --vendor=7 true
for wrong in log-level=foo log-level=war direct=maybe ptrace=1 vendor-id=zz vendor-id=0x1000000 vendor-part-id=-5; do
	check "a wrong value" 125 "--$wrong" "$verbena" run "--$wrong" -- true
done
for option in $("$verbena" help run | grep -oE '^  --[a-z-]+\[?=' | tr -d ' [='); do
	check "an empty value" 125 "$option= is not valid" "$verbena" run "$option=" -- true
	[[ $option == --summary || $option == --share-buffers || $option == --check ]] || check "an empty word as value" 125 "$option= is not valid" "$verbena" run "$option" "" -- true
	variable=VERBENA_${option#--}
	variable=${variable//-/_}
	check "an empty variable" 0 "" env "${variable^^}=" "$verbena" run -- true
done
check "the value's form is shown" 125 "Write --pcap=FILE" "$verbena" run --pcap= -- true
check "options that are not near" 125 "has no option --timeout. \"verbena help run\" lists" "$verbena" run --timeout=5 true
check "help" 0 "--vendor-id" "$verbena" run --help
for words in "" help --help -h "help -x"; do
	"$verbena" $words >"$tmp/help" 2>&1
	rc=$?
	[[ $words == "help -x" ]] && wanted=125 || wanted=0
	check "status of \"verbena $words\"" "$wanted" "" sh -c "exit $rc"
	[[ $wanted == 125 ]] || check "\"verbena $words\" prints the same help" 0 "" cmp "$tmp/help" <("$verbena" help)
done
for command in run list explain mr doctor help; do
	check "verbena help $command" 0 "Usage: verbena $command " "$verbena" help "$command"
	check "verbena $command -h" 0 "" cmp <("$verbena" help "$command") <("$verbena" "$command" -h)
	check "$command has an example" 0 "
Example:
  verbena $command" "$verbena" help "$command"
	check "no line of it is longer than a terminal's" 1 "" grep -E '.{80}' <("$verbena" help "$command")
	check "the help lists $command" 0 "
  $command " "$verbena" help
done
check "version" 0 "verbena $(cat "${BASH_SOURCE[0]%/*}/../../VERSION")" "$verbena" run --version

# scripts and their interpreters
printf '#!%s 3\n' "$helpers/tools-which" >"$tmp/script"
printf '#!/usr/bin/env tools-which\n' >"$tmp/env-script"
printf '#!/no/interpreter\n' >"$tmp/bad-script"
chmod +x "$tmp"/*script
check "a script" 3 "$lib" "$verbena" run "$tmp/script"
check "a script by env" 0 "$lib" env PATH="$helpers:$PATH" "$verbena" run "$tmp/env-script"
check "a script without interpreter" 127 "its interpreter /no/interpreter" "$verbena" run "$tmp/bad-script"

# programs that our libraries cannot reach
if [[ -x $helpers/tools-static ]]; then
	check "a static program is told of" 0 "statically linked" "$verbena" run "$helpers/tools-static"
fi
cp "$helpers/tools-which" "$tmp/foreign"
printf '\363\000' | dd of="$tmp/foreign" bs=1 seek=18 conv=notrunc status=none # EM_RISCV
check "another machine" 126 "for another machine" "$verbena" run "$tmp/foreign"
if [[ $(id -u) == 0 ]]; then
	cp "$helpers/tools-which" "$tmp/setuid"
	chown 65534 "$tmp/setuid" 2>/dev/null && chmod u+xs,go+rx "$tmp/setuid"
	setuid=$tmp/setuid
else
	setuid=$(command -v su)
fi
if [[ -u $setuid && ! -O $setuid ]]; then
	check "set-user-ID" 125 "a set-user-ID program" "$verbena" run "$setuid"
	printf '#!%s\n' "$setuid" >"$tmp/setuid-script"
	chmod +x "$tmp/setuid-script"
	check "set-user-ID interpreter" 125 "a set-user-ID program" "$verbena" run "$tmp/setuid-script"
else
	echo "no set-user-ID program of another user can be had here"
fi

# DT_RPATH comes before LD_LIBRARY_PATH; a bundled library must not win
mkdir "$tmp/app" "$tmp/app/lib"
cp "$helpers/tools-rpath" "$tmp/app/prog"
system=$(find /usr/lib -name 'libibverbs.so.1' 2>/dev/null | head -1)
if [[ -n $system ]] && cp -L "$system" "$tmp/app/lib/libibverbs.so.1"; then
	check "a bundled library alone" 0 "$tmp/app/" env LD_LIBRARY_PATH="$build/lib" "$tmp/app/prog"
	check "DT_RPATH is said" 0 "would load $tmp/app/lib/libibverbs.so.1: its DT_RPATH names that directory. Verbena's" "$verbena" run "$tmp/app/prog"
	check "DT_RPATH is overruled" 0 "$lib" "$verbena" run "$tmp/app/prog"
fi
# what the loader would take, or not find; the loader has the last word
check "a bundled library under another name" 0 "tools-bundled would load $helpers/libibverbs-0123abcd.so.1. Verbena's" \
	"$verbena" run "$helpers/tools-bundled"
check "a bundled library is overruled" 0 "$lib" "$verbena" run "$helpers/tools-bundled"
check "a libibverbs that is linked in" 0 "tools-linked-in is linked with a static libibverbs" "$verbena" run "$helpers/tools-linked-in"
check "no libibverbs that is linked in" 1 "" bash -c "'$verbena' run '$helpers/tools-which' 2>&1 | grep 'static libibverbs'"
needs="libtools-driver.so needs the symbol version IBVERBS_PRIVATE_99 of libibverbs.so.1, from rdma-core 99 or a release soon after"
check "another release's node" 1 "$needs" "$verbena" run "$helpers/tools-lacks"
check "a newer public node" 1 "libtools-driver.so needs the symbol version IBVERBS_1.99 of libibverbs.so.1, which Verbena's library does not have" \
	"$verbena" run "$helpers/tools-lacks"
check "the loader says so too" 1 "version \`IBVERBS_PRIVATE_99' not found" "$verbena" run "$helpers/tools-lacks"
printf '#!%s\n' "$helpers/tools-lacks" >"$tmp/lacks-script"
chmod +x "$tmp/lacks-script"
check "another release's node, of an interpreter" 1 "$needs" "$verbena" run "$tmp/lacks-script"

# the log's file
check "a log that cannot be written" 125 "the log /no/such/file cannot be written: No such file or directory" \
	"$verbena" run --log /no/such/file true
check "a log that is a directory" 125 "the log $tmp cannot be written: Is a directory" env VERBENA_LOG="$tmp" "$verbena" run true
check "a log that can be" 0 "" "$verbena" run --log "$tmp/log" true
check "a log in the working directory" 0 "VERBENA_LOG=here" env -C "$tmp" "$verbena" run --log here env
mkfifo "$tmp/pipe"
check "a log that is read later" 0 "" "$verbena" run --log "$tmp/pipe" true
# the capture's file
check "a capture" 0 "VERBENA_PCAP=$tmp/c.pcapng" "$verbena" run --pcap "$tmp/c.pcapng" env
check "a capture in the working directory" 0 "VERBENA_PCAP=$tmp/here.pcapng" env -C "$tmp" "$verbena" run --pcap here.pcapng env
check "a capture that cannot be written" 125 "the capture /no/such/file cannot be written: No such file or directory" \
	"$verbena" run --pcap /no/such/file true
check "a capture that is a directory" 125 "the capture $tmp cannot be written: Is a directory" env VERBENA_PCAP="$tmp" "$verbena" run true
check "a value left out" 125 '--pcap needs a value, --pcap=FILE, but "--" follows it' "$verbena" run --pcap -- true
check "another option instead of a value" 125 '--log needs a value, --log=DEST, but "--no-view" follows it' "$verbena" run --log --no-view true
check "a value that begins so" 0 "VERBENA_PCAP=$tmp/--x" env -C "$tmp" "$verbena" run --pcap=--x env
check "a capture that is a device" 125 "the capture /dev/null is not a regular file" "$verbena" run --pcap /dev/null true
check "too little of a packet" 125 "verbena: --pcap-snap=63 is not a number of bytes: use 64 or more, or 0 for whole packets" \
	"$verbena" run --pcap "$tmp/c.pcapng" --pcap-snap 63 true
check "bytes of no capture" 125 "verbena: --pcap-snap has no effect without --pcap=FILE" "$verbena" run --pcap-snap=0 true
check "a ring of no capture" 125 "verbena: --pcap-ring has no effect without --pcap=FILE" "$verbena" run --pcap-ring=2:1M true
VERBENA_PCAP_SNAP=0 check "the variable alone" 0 "" "$verbena" run true
check "no number of bytes" 125 "verbena: --pcap-snap=1x is not a number" "$verbena" run --pcap "$tmp/c.pcapng" --pcap-snap=1x true
for ring in 0:64K 3 3: 3:63K :64K 1001:1M 3:1T -1:64K; do
	check "no ring: $ring" 125 "verbena: --pcap-ring=$ring is not FILES:SIZE: use 1 to 1000 files of at least 64K" \
		"$verbena" run --pcap "$tmp/c.pcapng" --pcap-ring="$ring" true
done
check "a ring" 0 "VERBENA_PCAP_RING=1000:65536" "$verbena" run --pcap "$tmp/c.pcapng" --pcap-ring=1000:65536 env
check "no capture" 0 "" env VERBENA_PCAP= VERBENA_PCAP_RING=x "$verbena" run true
check "no log" 0 "" "$verbena" run --log off true

if [[ -x $helpers/tools-asan ]]; then
	check "a program with libasan" 4 "$lib" "$verbena" run "$helpers/tools-asan" 4
fi

# a place that the loader's lists cannot name; and a copied build
mkdir "$tmp/with space" "$tmp/moved"
cp -r "$build/verbena" "$build/lib" "$tmp/with space/"
check "a directory with a space" 125 "The dynamic loader cannot use a directory" "$tmp/with space/verbena" run true
cp -r "$build/verbena" "$build/lib" "$tmp/moved/"
check "a moved build" 0 "$tmp/moved/lib/libibverbs.so.1" "$tmp/moved/verbena" run -- "$helpers/tools-which"
rm -r "$tmp/moved/lib"
check "no libraries" 125 "there is no libibverbs.so.1 in" "$tmp/moved/verbena" run true

echo "$checks checks, $bad failed"
((bad == 0))
