#!/bin/bash
# Debian's programs start on our library with every symbol bound at once:  starts.sh LIBDIR
set -u
export LD_LIBRARY_PATH=$1 LD_BIND_NOW=1
run=0 bad=0
try() { # STATUS WORDS PROGRAM ARGS...: exit status (- for any) and words of its output
	local status=$1 words=$2 out rc
	shift 2
	command -v "$1" >/dev/null || { echo "not here: $1"; return; }
	out=$(timeout 60 "$@" 2>&1 </dev/null)
	rc=$?
	run=$((run + 1))
	if [[ ($status != - && $rc != "$status") || $rc == 124 || $out != *"$words"* ||
	      $out == *"symbol lookup error"* || $out == *"not found (required by"* ]]; then
		echo "FAIL: $*: exit status $rc, output:"
		echo "$out"
		bad=$((bad + 1))
	fi
}
try 0 verbena0 ibv_devices
try 0 PORT_ACTIVE ibv_devinfo
for t in ib_{send,write,read,atomic}_{bw,lat}; do
	try - Version "$t" --version
done
try 0 "" ucx_info -v
try - "rping -s" rping -h
try 0 "" fi_info --version
try 0 verbena0 /usr/bin/python3 -c 'import pyverbs.device as d; print(d.get_device_list()[0].name.decode())'
((run)) || { echo "SKIP: none of the programs is installed"; exit 77; }
echo "$run programs, $bad failed"
((bad == 0))
