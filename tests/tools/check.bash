# For scripts of tests: source it.  $checks counts the checks, $bad those that failed.
bad=0 checks=0

check() { # WHAT STATUS WORDS COMMAND...: exit status, and words of output and errors together
	local what=$1 status=$2 words=$3 out rc
	shift 3
	out=$("$@" 2>&1 </dev/null)
	rc=$?
	checks=$((checks + 1))
	if [[ $rc != "$status" || $out != *"$words"* ]]; then
		echo "FAIL: $what: exit status $rc (wanted $status), output (wanted \"$words\"): $out"
		bad=$((bad + 1))
	fi
}
