#!/bin/bash
# The completion for bash completes what `verbena help` lists, PIDs and the program; that for zsh has the same options.
#   completion.sh BUILD HELPERS
set -u
build=$(realpath "$1") helpers=$(realpath "$2") source=$(realpath "${BASH_SOURCE[0]%/*}/../..") bad=0 checks=0
verbena=$build/verbena
tmp=$(mktemp -d)
trap 'kill -9 "${pid:-}" 2>/dev/null; rm -rf "$tmp"' EXIT
unset LD_LIBRARY_PATH LD_PRELOAD VERBENA_LOG
. "$source/tools/completion/verbena.bash" || exit 1
[[ $(complete -p verbena) == "complete -F _verbena verbena" ]] || { echo "FAIL: $(complete -p verbena)"; exit 1; }

words() { # WORD...: what the last of them is completed to, sorted; bash makes three words of --option=value
	COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
	_verbena "$verbena" "${!#}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>/dev/null
	((${#COMPREPLY[@]} == 0)) || printf '%s\n' "${COMPREPLY[@]}" | sort | tr '\n' ' '
}

check() { # WANTED WORD...
	local wanted=$1 got
	shift
	got=$(words "$@")
	checks=$((checks + 1))
	[[ $got == "$wanted" ]] || { echo "FAIL: $*: wanted \"$wanted\", got \"$got\""; bad=$((bad + 1)); }
}

has() { # WANTED WORD...: among others
	local wanted=$1 got
	shift
	got=$(words "$@")
	checks=$((checks + 1))
	[[ " $got" == *" $wanted "* ]] || { echo "FAIL: $*: wanted \"$wanted\" in \"$got\""; bad=$((bad + 1)); }
}

commands=$("$verbena" help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | sort | tr '\n' ' ')
check "--help --version $commands" verbena ""
check "explain " verbena ex
check "$commands" verbena help ""
for command in $commands; do # every option of the help, with "=" where a value follows
	options=$("$verbena" help "$command" | grep -o '^  \(-., \)\?--[a-z-]*=\?' | grep -o -- '--.*' | sort | tr '\n' ' ')
	check "$options" verbena "$command" --
	for option in $options; do # zsh's has it, too
		checks=$((checks + 1))
		grep -q -- "${option%=}" "$source/tools/completion/_verbena" || { echo "FAIL: zsh: no $option"; bad=$((bad + 1)); }
	done
done
# every value that the help lists
"$verbena" help run | grep -o -- '^  --[a-z-]*\[\?=[a-z-]*|[a-z|-]*' | tr -d '[' >"$tmp/values"
checks=$((checks + 1))
(($(wc -l <"$tmp/values") >= 7)) || { echo "FAIL: values: $(cat "$tmp/values")"; bad=$((bad + 1)); }
while IFS='= ' read -r option values; do
	wanted=$(tr '|' '\n' <<<"$values" | sort | tr '\n' ' ')
	check "$wanted" verbena run "$option" =
	check "$wanted" verbena run "$option" = ""
	[[ $option == --summary || $option == --share-buffers || $option == --check ]] || check "$wanted" verbena run --no-view "$option" ""
done <"$tmp/values"
check "warn " verbena run --log off --log-level = w
cd "$tmp" || exit 1
touch capture.pcapng
check "capture.pcapng " verbena run --pcap = cap
check "off " verbena run --log of
check "capture.pcapng " verbena run --log = cap
# the program, behind options with and without values
PATH=$helpers:$PATH
for before in "" "--" "--no-view --" "--log off" "--log = off --summary"; do
	has tools-trouble verbena run $before tools-tr
	check "capture.pcapng " verbena run $before cat capt
	check "capture.pcapng " verbena run $before cat --log capt
done
check "" verbena run --device x
_command_offset() { COMPREPLY=("by the program's own, from $1"); }
check "by the program's own, from 4 " verbena run --no-view -- cat --
unset -f _command_offset

mkfifo in out
"$verbena" run --log=off -- "$helpers/tools-trouble" once <in >out &
pid=$!
disown # its end is not told of
exec {keep}>in
read -r _ <out
has "$pid" verbena explain ""
has "$pid" verbena mr ""
has "$pid" verbena explain --json ""
check "" verbena list ""
has tools-trouble verbena doctor tools-tr
has capture.pcapng verbena doctor capt

if command -v zsh >/dev/null; then
	zsh -n "$source/tools/completion/_verbena" || bad=$((bad + 1))
else
	echo "zsh is not installed: its completion is compared, but not read"
fi
echo "$checks checks, $bad failed"
((bad == 0))
