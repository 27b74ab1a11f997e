#!/usr/bin/python3
"""verbena run --fail-on and --summary: what is counted, of which processes, and that the command behaves as the program
that it runs: signals, terminal, descriptors, exit status.   parent.py BUILD
"""
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios

BUILD = os.path.realpath(sys.argv[1])
VERBENA = os.path.join(BUILD, "verbena")
PYTHON = "/usr/bin/python3"
PATIENCE = 60  # seconds
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("VERBENA_", "LD_"))}
checks = 0

# What the programs share: a protection domain, and registrations of memory that is not there, which are refused.
HEAD = """
import ctypes, os, resource, signal, sys
lib = ctypes.CDLL("libibverbs.so.1")
for f in "ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "ibv_reg_mr":
    getattr(lib, f).restype = ctypes.c_void_p
def domain():
    devices = ctypes.cast(lib.ibv_get_device_list(None), ctypes.POINTER(ctypes.c_void_p))
    pd = lib.ibv_alloc_pd(ctypes.c_void_p(lib.ibv_open_device(ctypes.c_void_p(devices[0]))))
    assert pd
    return ctypes.c_void_p(pd)
def refuse(pd, n):
    for i in range(n):
        assert not lib.ibv_reg_mr(pd, ctypes.c_void_p(4096), ctypes.c_size_t(64), 0)
"""
REFUSED = "  warn   ibv_reg_mr\n"


def check(what, good, shown):
    global checks
    checks += 1
    if not good:
        sys.exit(f"FAIL: {what}: {shown}")


def command(options, program):
    return [VERBENA, "run", *options, "--", *([PYTHON, "-c", HEAD + program] if isinstance(program, str) else program)]


def run(options, program, env=None, **more):
    done = subprocess.run(command(options, program), env=ENV | (env or {}), stdin=subprocess.DEVNULL,
                          stdout=more.pop("stdout", subprocess.PIPE), stderr=more.pop("stderr", subprocess.PIPE), text=True,
                          timeout=PATIENCE, check=False, **more)
    return done.returncode, done.stdout, done.stderr


def start(options, program, **more):
    return subprocess.Popen(command(options, program), env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            **more)


def line(p):
    """The next line, byte by byte: nothing stays in a buffer where select() does not see it."""
    text = b""
    while not text.endswith(b"\n"):
        if not select.select([p.stdout], [], [], PATIENCE)[0]:
            p.kill()
            sys.exit(f"FAIL: the program says nothing more than {text}")
        byte = os.read(p.stdout.fileno(), 1)
        if not byte:
            break
        text += byte
    return text.decode().strip()


def ends(p):
    try:
        return p.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        p.kill()
        sys.exit("FAIL: the command does not end")


# ---- what is counted

def summaries():
    quiet = ["--log=off", "--summary"]
    status, _, err = run(quiet, "domain()")
    check("nothing was said", (status, err) == (0, "verbena: summary: no errors, no warnings\n"), (status, err))
    nothing = "verbena: summary: no process opened a device of Verbena\n"
    for program in "pass", f"os.execve({PYTHON!r}, [{PYTHON!r}, '-c', 'pass'], {{}})":
        status, _, err = run(quiet, program)
        check("nobody opened a device", (status, err) == (0, nothing), (status, err))
        status, _, err = run([*quiet, "--fail-on=warn"], program)
        check("that is said once", (status, err) == (0, nothing), (status, err))
        status, _, err = run(["--fail-on=warn"], program)
        check("also of --fail-on alone", status == 0 and "no process opened a device of Verbena, so --fail-on=warn" in err,
              (status, err))
    status, _, err = run(["--log=off", "--fail-on=warn"], "domain()")
    check("and not of a program that did", (status, err) == (0, ""), (status, err))
    status, _, err = run(quiet, [VERBENA, "run", "--fail-on=warn", "--", PYTHON, "-c", HEAD + "domain()"])
    check("an inner command counts it", (status, err) == (0, "verbena: summary: no errors, no warnings\n"), (status, err))
    status, _, err = run(quiet, "refuse(domain(), 3)")
    check("kinds and counts, though the log is off and refusals of a kind are written once a minute", status == 0 and err ==
          f"verbena: summary: 0 errors, 3 warnings\n     COUNT  LEVEL  CALL OR REASON\n         3{REFUSED}", (status, err))
    status, _, err = run(["--log-level=error"], "refuse(domain(), 3)", {"VERBENA_SUMMARY": "on"})
    check("by the variable", "summary: 0 errors, 3 warnings\n" in err, err)
    status, _, err = run([], "refuse(domain(), 1)", {"VERBENA_SUMMARY": "off", "VERBENA_LOG": "off"})
    check("not asked for", (status, err) == (0, ""), err)
    status, _, err = run(quiet, "pd = domain(); refuse(pd, 3); ctypes.c_int(lib.ibv_dealloc_pd(None)); os._exit(0)")
    rows = [r.split() for r in err.splitlines()[2:]]
    check("the most frequent first", [r[0] for r in rows] == ["3", "1"] and rows[1][2] == "ibv_dealloc_pd", err)


def statuses():
    for options, program, wanted in ((["--fail-on=warn"], "refuse(domain(), 1)", 124),
                                     (["--fail-on=warn"], "domain()", 0),
                                     (["--fail-on=error"], "refuse(domain(), 1)", 0),
                                     (["--fail-on=warn"], "refuse(domain(), 1); os._exit(3)", 3),
                                     (["--fail-on=warn"], "refuse(domain(), 1); os.kill(os.getpid(), 15)", -15)):
        status, _, err = run(["--log=off", *options], program)
        check(f"the exit status by {options} of {program}", status == wanted, (status, err))
        check("a changed status is explained", ("exit status 124" in err and "1 warning " in err) == (wanted == 124), err)
    status, _, err = run([], "refuse(domain(), 1)", {"VERBENA_FAIL_ON": "warn"})
    check("by the variable", status == 124 and "ibv_reg_mr: " in err, (status, err))
    for level in "warn", "error":  # an open device whose descriptors are closed is an error
        status, _, err = run(["--log=off", "--summary", f"--fail-on={level}"],
                             "domain(); os.closerange(3, 4096); domain(); domain(); os._exit(0)")
        check(f"an error, {level}", status == 124 and "summary: 1 error, 0 warnings\n" in err, (status, err))
    for name, value in ("VERBENA_FAIL_ON", "wran"), ("VERBENA_SUMMARY", "yes"):
        status, _, err = run([], "pass", {name: value})
        check(f"{name}={value}", status == 125 and f"{name}={value} is not valid. Valid values: " in err, (status, err))
    for program, wanted in (["no-such-program"], 127), (["/etc/passwd"], 126):
        status, _, err = run(["--summary"], program)
        check(f"{program} is not executed", status == wanted and f"{program[0]} cannot be executed" in err and
              "summary:" not in err, (status, err))


def processes():
    program = f"""
if not os.fork():
    refuse(domain(), 2)
    os._exit(0)
os.wait()
if not os.fork():
    os.execv({PYTHON!r}, [{PYTHON!r}, "-c", {HEAD + "os.closerange(3, 4096); refuse(domain(), 4)"!r}])
os.wait()
os.closerange(3, 4096)
refuse(domain(), 1)
"""
    status, _, err = run(["--log=off", "--summary"], program)
    check("those of a child and of a program that it executes count", status == 0 and f"         7{REFUSED}" in err, (status, err))
    # Neither descriptors nor /proc are there when the device is opened or when something is refused.
    status, _, err = run(["--log=off", "--summary"],
                         "pd = domain(); resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)); refuse(pd, 2)")
    check("without descriptors", f"         2{REFUSED}" in err, (status, err))
    if os.geteuid() == 0:
        with tempfile.TemporaryDirectory() as empty:
            status, _, err = run(["--log=off", "--summary"], f"os.chroot({empty!r}); os.chdir('/'); refuse(domain(), 2)")
        check("in a chroot", f"         2{REFUSED}" in err, (status, err))


def nested():
    inner = [VERBENA, "run", "--summary", "--", PYTHON, "-c", HEAD + "refuse(domain(), 2)"]
    status, _, err = run(["--log=off", "--summary"], inner)
    check("the inner command's count too", err.count(f"         2{REFUSED}") == 2 and status == 0, err)
    plain = [VERBENA, "run", "--", PYTHON, "-c", HEAD + "refuse(domain(), 2); print(sorted(v for v in os.environ if v.startswith('VERBENA_')))"]
    status, out, err = run(["--log=off", "--summary", "--fail-on=warn"], plain)
    check("what was asked for is not asked for again", out == "['VERBENA_LOG', 'VERBENA_TALLY', 'VERBENA_WAIT_WARN']\n", out)
    check("the outer command alone counts", err.count(f"         2{REFUSED}") == 1 and status == 124, (status, err))


def elsewhere():
    apart = ["unshare", "-r", "-p", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        print("no PID namespace can be made here")
        return
    status, _, err = run(["--summary"], [*apart, PYTHON, "-c", HEAD + "refuse(domain(), 2)"])
    check("a process that cannot count says so", "are not counted" in err and "PID namespace" in err and
          "summary: no process opened a device of Verbena" in err and status == 0, (status, err))


# ---- the command is as the program

TELLS = """
import select
told = []
woken, wakes = os.pipe()
os.set_blocking(wakes, False)
signal.set_wakeup_fd(wakes) # has the number of each signal: a read() of stdin would not see one that comes just before it
for s in ("INT", "QUIT", "TERM", "HUP", "USR1", "USR2", "WINCH", "CONT", "ALRM"):
    signal.signal(getattr(signal, "SIG" + s), lambda *_: None)
print("ready", os.getpid(), flush=True)
if len(sys.argv) > 1:
    os.close(1)
while True:
    ready = select.select([0, woken], [], [])[0]
    for s in os.read(woken, 64) if woken in ready else b"":
        told.append(s)
        print(signal.Signals(s).name, told.count(s), flush=True)
    if 0 in ready:
        l = os.read(0, 64)
        if not l:
            break
        os._exit(int(l))
"""


def execs_without():
    p = start([], TELLS)
    check("without the options the program has the command's PID", line(p) == f"ready {p.pid}", p.pid)
    p.communicate("5\n")
    check("its status", p.returncode == 5, p.returncode)


def signals():
    p = start(["--summary"], TELLS, stderr=subprocess.DEVNULL)
    _, pid = line(p).split()
    check("with them it has another one", int(pid) != p.pid, pid)
    for s in ("INT", "QUIT", "TERM", "HUP", "USR1", "USR2", "WINCH", "CONT", "ALRM"):
        p.send_signal(getattr(signal, "SIG" + s))
        said = line(p)
        check(f"SIG{s} goes on to the program", said == f"SIG{s} 1", said)
    p.stdin.write("6\n")
    p.stdin.flush()
    check("the exit status", ends(p) == 6, p.returncode)
    for s in signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR2:
        status, _, _ = run(["--summary"], f"os.kill(os.getpid(), {int(s)})")
        check(f"a death by {s.name}", status == -s, status)
    p = start(["--summary"], TELLS, stderr=subprocess.DEVNULL)
    line(p)
    p.kill()
    ends(p)
    check("SIGKILL reaches the program", line(p) == "", "it goes on")


def as_started():
    show = "print([l.split()[1] for l in open('/proc/self/status') if l.startswith(('SigBlk', 'SigIgn'))])"

    def ignore():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

    outs = [run(options, show + "; os._exit(9)", preexec_fn=ignore) for options in ([], ["--summary"])]
    check("blocked and ignored signals", outs[0][1] == outs[1][1], outs)
    check("a caller that ignores SIGCHLD", outs[1][0] == 9, outs)


def descriptors():
    r, w = os.pipe()
    p = subprocess.Popen([*command(["--summary"], TELLS), "close"], env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, pass_fds=[w], text=True)
    os.close(w)
    check("it begins", line(p).startswith("ready"), "")
    check("what the program closes is closed", line(p) == "" and p.poll() is None, "")
    p.stdin.write("0\n")
    p.stdin.close()
    check("its input is its own", ends(p) == 0, p.returncode)
    check("a descriptor that was handed on is closed", select.select([r], [], [], PATIENCE)[0] and os.read(r, 1) == b"", "")
    os.close(r)


def without_streams():
    """The table must not have the number of a stream that is closed: the command puts /dev/null there."""
    late = "import os, time\nto = f'/proc/{os.getppid()}/fd/1'\nwhile os.path.realpath(to) not in ('/dev/null', to): time.sleep(0.001)\n"
    program = [PYTHON, "-c", late + f"os.execv({PYTHON!r}, [{PYTHON!r}, '-c', {HEAD + 'refuse(domain(), 2)'!r}])"]
    for closed in (0,), (1,), (0, 1), (2,), (0, 1, 2):
        status, _, err = run(["--log=off", "--summary", "--fail-on=warn"], program,
                             preexec_fn=lambda c=closed: [os.close(fd) for fd in c])
        check(f"descriptors {closed} are closed", status == 124 and (2 in closed or f"         2{REFUSED}" in err), (status, err))


def full():
    with open("/dev/full", "w", encoding="utf-8") as nowhere:
        for options in ["--log=/dev/full"], ["--log=stderr"], ["--summary"], ["--fail-on=warn"]:
            status, out, _ = run(options, "refuse(domain(), 2); print('goes on'); sys.stdout.flush(); os._exit(7)",
                                 stderr=nowhere)
            check(f"a full disk, {options}", (status, out) == (7, "goes on\n"), (status, out))


def leader(master, slave):
    """A shell, as far as job control goes."""
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def foreground():
        os.setpgid(0, 0)
        os.tcsetpgrp(slave, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)

    p = start(["--summary"], TELLS, stderr=subprocess.DEVNULL, preexec_fn=foreground, pass_fds=[slave])
    pid = int(line(p).split()[1])
    os.write(master, b"\x03")
    check("^C reaches the program", line(p) == "SIGINT 1", "")
    p.send_signal(signal.SIGUSR1)
    said = line(p)
    check("and reaches it once", said == "SIGUSR1 1", said)
    os.write(master, b"\x1a")
    signal.alarm(PATIENCE)
    _, status = os.waitpid(p.pid, os.WUNTRACED)
    check("^Z stops the command", os.WIFSTOPPED(status), status)
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        check("and the program", f.read().rsplit(")", 1)[1].split()[0] == "T", "")
    os.kill(p.pid, signal.SIGCONT)  # not the group: the command hands it on
    said = line(p)
    check("it goes on", said == "SIGCONT 1", said)
    os.write(master, b"\x1c")
    said = line(p)
    if said == "SIGCONT 2":  # handed on, too
        said = line(p)
    check("^\\ too", said == "SIGQUIT 1", said)
    p.stdin.write("0\n")
    p.stdin.close()
    check("its end", ends(p) == 0, p.returncode)
    os._exit(0)


def terminal():
    master, slave = pty.openpty()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        try:
            leader(master, slave)
        except SystemExit as e:
            print(e, flush=True)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    check("job control", status == 0, status)


for scene in (summaries, statuses, processes, nested, elsewhere, execs_without, signals, as_started, descriptors, without_streams, full, terminal):
    scene()
print(f"{checks} checks, none failed")
