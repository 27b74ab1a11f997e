# Completion of verbena(1) for bash: commands, options, values, PIDs, then the program that is run, and its own
# completion where the package bash-completion is loaded.

# The options of a command; one that ends in "=" has a value.
_verbena_options() {
	case $1 in
	run) echo --log= --log-level= --log-format= --profile= --device= --devices= --link= --netdev= --wire= \
		--udp-checksum= --udp-gso= --direct= --share-buffers --ptrace= --pcap= --pcap-snap= --pcap-ring= --check --fail-on= --summary --wait-warn= --vendor-id= --vendor-part-id= --no-view --help --version ;;
	list) echo --json --metrics --help --version ;;
	explain | mr | qp | doctor) echo --json --help --version ;;
	top) echo --batch --frames= --interval= --help --version ;;
	bundle) echo --keys --output= --help --version ;;
	*) echo --help --version ;;
	esac
}

# The values of an option; "FILE" where file names are among them.
_verbena_values() {
	case $1 in
	--log) echo stderr off FILE ;;
	--log-level) echo error warn info debug ;;
	--log-format) echo text json ;;
	--profile) echo default strict rxe ;;
	--link) echo ethernet infiniband ;;
	--wire) echo auto shm udp ;;
	--netdev) echo all && (cd /sys/class/net 2>/dev/null && echo *) ;;
	--direct | --share-buffers | --ptrace | --udp-checksum | --udp-gso | --summary) echo on off ;;
	--check) echo on guard no-remote off ;;
	--fail-on) echo warn error ;;
	--devices) echo {1..16} ;;
	--pcap | --output) echo FILE ;;
	esac
}

# The index of the program in `verbena run ...`, in `program`; empty: the cursor stands among the options.  bash
# makes three words of --option=value.
_verbena_program() {
	local i=2 word
	program=
	while ((i < COMP_CWORD)); do
		word=${COMP_WORDS[i]}
		if [[ $word == -- ]]; then
			program=$((i + 1))
			return
		elif [[ $word != -* ]]; then
			program=$i
			return
		elif [[ ${COMP_WORDS[i + 1]} == = ]]; then
			((i += 3))
		elif [[ " $(_verbena_options run) " == *" $word= "* ]]; then
			((i += 2))
		else
			((i += 1))
		fi
	done
	((i > COMP_CWORD)) || [[ ${COMP_WORDS[COMP_CWORD]} == [-=]* ]] || program=$COMP_CWORD
}

_verbena_run_program() { # INDEX
	if declare -F _comp_command_offset >/dev/null; then
		_comp_command_offset "$1"
	elif declare -F _command_offset >/dev/null; then
		_command_offset "$1"
	elif ((COMP_CWORD == $1)); then
		mapfile -t COMPREPLY < <(compgen -c -- "$cur"; compgen -f -- "$cur")
	else
		compopt -o filenames 2>/dev/null
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
	fi
}

_verbena_option_value() { # OPTION
	local values
	values=$(_verbena_values "$1")
	if [[ $values == *FILE* ]]; then
		compopt -o filenames 2>/dev/null
		values=${values/FILE/}
		mapfile -t COMPREPLY < <(compgen -W "$values" -- "$cur"; compgen -f -- "$cur")
	else
		mapfile -t COMPREPLY < <(compgen -W "$values" -- "$cur")
	fi
}

_verbena_pids() { # COMMAND
	local pid rest
	"$1" list 2>/dev/null | while read -r pid rest; do
		[[ $pid == PID ]] || echo "$pid"
	done
}

_verbena() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} program
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		mapfile -t COMPREPLY < <(compgen -W "run list top explain qp mr bundle doctor help --help --version" -- "$cur")
		return
	fi
	if [[ $command == run ]]; then
		_verbena_program
		if [[ $program ]]; then
			_verbena_run_program "$program"
			return
		fi
		if [[ $cur == = ]]; then
			cur=
			_verbena_option_value "$prev"
			return
		elif [[ $prev == = ]]; then
			_verbena_option_value "${COMP_WORDS[COMP_CWORD - 2]}"
			return
		elif [[ " $(_verbena_options run) " == *" $prev= "* ]]; then
			_verbena_option_value "$prev"
			return
		fi
	fi
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_verbena_options "$command")" -- "$cur")
		[[ ${#COMPREPLY[@]} != 1 || ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null
	elif [[ $command == explain || $command == mr || $command == qp || $command == bundle ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_verbena_pids "$1")" -- "$cur")
	elif [[ $command == doctor ]]; then
		mapfile -t COMPREPLY < <(compgen -c -- "$cur"; compgen -f -- "$cur")
	elif [[ $command == help ]]; then
		mapfile -t COMPREPLY < <(compgen -W "run list top explain qp mr bundle doctor help" -- "$cur")
	fi
}

complete -F _verbena verbena
