#!/bin/bash
# scripts/deps, with programs in place of dpkg-query and apt-get: nothing of this machine is looked at or changed.
set -u
other=()
source=$(realpath "${BASH_SOURCE[0]%/*}/../..")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; cat "$tmp/err" "$tmp/calls" 2>/dev/null; exit 1; }

cat >"$tmp/dpkg-query" <<'SH'
#!/bin/bash
# everything but two packages of kind demo and one of kinds test and far, until these were installed
[[ -e ${0%/*}/installed || ! $* =~ (perftest|ibverbs-utils|tshark|lintian) ]] && echo installed
SH
cat >"$tmp/apt-get" <<'SH'
#!/bin/bash
d=${0%/*}
echo "$*" >>"$d/calls"
case $* in
*--print-uris*)
	[[ ! -e $d/no-lists ]] || exit 100
	printf '%s\n' "The following NEW packages will be installed:" "  ibverbs-utils" "  perftest" \
		"The following packages will be upgraded:" "  libibverbs1" \
		"1 upgraded, 2 newly installed, 0 to remove and 3 not upgraded." \
		"Need to get 0 B/502 kB of archives." "After this operation, 2315 kB of additional disk space will be used."
	;;
update*) rm -f "$d/no-lists" ;;
install*)
	[[ ! -e $d/no-lists && ! -e $d/broken ]] || { echo "E: something"; exit 100; }
	touch "$d/installed"
	;;
esac
SH
chmod +x "$tmp/dpkg-query" "$tmp/apt-get"

deps() { # EXIT-STATUS ARGUMENTS...
	local want=$1 rc
	shift
	: >"$tmp/calls"
	(PATH=$tmp:$PATH exec timeout 60 "$source/scripts/deps" "$@" >"$tmp/err" 2>&1 </dev/null)
	rc=$?
	((rc == want)) || fail "deps $*: exit status $rc, not $want"
}
said() { grep -qF -- "$1" "$tmp/err" || fail "not printed: $1"; }
called() { grep -q -- "$1" "$tmp/calls"; }
plan() {
	said "to install (2): ibverbs-utils perftest"
	said "to upgrade (1): libibverbs1"
	said "0 B to download, 2315 kB more on disk"
}

deps 0 build
[[ ! -s $tmp/err && ! -s $tmp/calls ]] || fail "nothing is missing for the build, and yet it does something"
deps 1 --check demo
said perftest
deps 1 --check # what only developers of packages need is asked for by name
said tshark
! grep -q lintian "$tmp/err" || fail "lintian is needed without being asked for"
deps 1 --check far
said lintian
deps 0 --show demo
plan
called "^install" && fail "--show installs"

if [[ $(id -u) == 0 && -w /usr/bin ]] && awk '{n += $3} END {exit n < 65535}' /proc/self/uid_map; then
	deps 0 demo
	plan
	[[ $(grep -v uris "$tmp/calls") == "install -y -q --no-install-recommends ibverbs-utils perftest" ]] ||
		fail "not one install of the two packages"
	rm "$tmp/installed"
	touch "$tmp/no-lists" # the lists are fetched, and then what will be done is printed
	deps 0 demo
	plan
	called "^update" || fail "no update"
	rm "$tmp/installed"
	touch "$tmp/broken"
	deps 1 demo
	said "E: something"
	said "still missing: ibverbs-utils perftest"
	deps 0 --try build demo test
	other=(setpriv --reuid 65534 --clear-groups)
	chmod 755 "$tmp"
	"${other[@]}" test -r "$source/scripts/deps" || { echo "scripts/deps: well; other users cannot read it here"; exit 0; }
fi
# A user who may not install reads what root would do.
: >"$tmp/calls"
chmod 666 "$tmp/calls"
PATH=$tmp:$PATH "${other[@]}" bash "$source/scripts/deps" demo >"$tmp/err" 2>&1 </dev/null && fail "a user installs"
plan
said "apt-get install --no-install-recommends ibverbs-utils perftest"
called "^install" && fail "a user installs"
echo "scripts/deps: well"
