"""Starts programs of others on a build of Verbena: one alone, or a server and its client.

Ports are picked free and tried again when somebody else was faster; readiness is the server's listening socket,
never a fixed time; everything has a limit, and what was started is ended by its pid, also when this process dies.
"""
import argparse
import contextlib
import ctypes
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SKIP = 77
LIMIT = 120  # seconds for one program, unless the caller knows better
LOOK_EVERY = 0.25  # seconds
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def sentence(line):
    """What a line of Verbena's log says, None: it is none."""
    m = re.match(r"\d\d:\d\d:\d\d verbena .*?\[\d+\]: (.*)", line)
    return m and m.group(1)


class Result:
    def __init__(self, argv, status, out, err, seconds):
        self.argv, self.status, self.out, self.err, self.seconds = argv, status, out, err, seconds


class Pair:
    def __init__(self, server, client, why):
        self.server, self.client, self.why = server, client, why

    @property
    def ok(self):
        return self.why is None


GUARD_STOPS = "--check=guard stops it rightly (docs/check.md)"


class Checks:
    """Programs run under --check, and each process appends what is reported to one log.  how: "on" or "guard"."""

    def __init__(self, how):
        self.how = how
        self.log = tempfile.NamedTemporaryFile("r", prefix="verbena-checked-", suffix=".log", encoding="utf-8")

    def env(self):
        return {"VERBENA_CHECK": self.how, "VERBENA_LOG": self.log.name, "VERBENA_LOG_FORMAT": "json"}

    def news(self):
        """The reports since the last call: (kind, sentence)."""
        lines = [json.loads(line) for line in self.log]
        return [(x["reason"], x["text"]) for x in lines if x.get("reason", "").startswith("check-")]


checks = None  # with arguments(): those that the command line asks for


def guarded():
    return checks is not None and checks.how == "guard"


class Program:
    """A running program whose output goes to files, so that no pipe can fill.  terminal: its input is one, else nothing.
    net: the network namespace that it runs in, a descriptor (hosts.py)."""

    def __init__(self, argv, env, cpus=None, terminal=False, net=None):
        self.argv = argv
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.started = time.monotonic()
        me = os.getpid()

        def child():
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != me:
                os._exit(127)
            if cpus:
                os.sched_setaffinity(0, cpus)
            if net is not None and _libc.setns(net, 0):
                os._exit(126)

        self.terminal = pty.openpty() if terminal else ()
        self.process = subprocess.Popen(argv, env=env, stdin=self.terminal[1] if terminal else subprocess.DEVNULL,
                                        stdout=self.out, stderr=self.err, preexec_fn=child, start_new_session=True)

    def wait(self, limit, look=None):
        """The exit status, negative for a signal; None when the limit passed.  look() is called now and then."""
        while look and time.monotonic() - self.started < limit:
            try:
                return self.process.wait(LOOK_EVERY)
            except subprocess.TimeoutExpired:
                look()
        try:
            return self.process.wait(max(0.0, limit - (time.monotonic() - self.started)))
        except subprocess.TimeoutExpired:
            return None

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # its own session: what it started is in it, and may live on
        except ProcessLookupError:
            pass
        self.process.wait()
        for fd in self.terminal:
            os.close(fd)
        self.terminal = ()

    def result(self, status=None):
        texts = []
        for f in (self.out, self.err):
            f.seek(0)
            texts.append(f.read().decode(errors="replace"))
        return Result(self.argv, status if status is not None else self.process.returncode, texts[0], texts[1],
                      time.monotonic() - self.started)


def command(build, argv, mode="run", env=None):
    """The command line and the environment: mode "run" is `verbena run --`, "path" is LD_LIBRARY_PATH alone, "faults" that with the
    variant of the library that has fault points."""
    e = dict(os.environ)
    e.pop("LD_LIBRARY_PATH", None)
    e.pop("LD_PRELOAD", None)
    e.update(env or {})
    e.update(checks.env() if checks else {})
    if mode == "run":
        return [os.path.join(build, "verbena"), "run", "--", *argv], e
    e["LD_LIBRARY_PATH"] = os.path.join(build, "faults", "lib") if mode == "faults" else os.path.join(build, "lib")
    return list(argv), e


def run(build, argv, mode="run", env=None, limit=LIMIT, ahead=(), net=None):
    """ahead: a command that starts all of it, words of its own."""
    line, env = command(build, argv, mode, env)
    program = Program([*ahead, *line], env, net=net)
    try:
        status = program.wait(limit)
    finally:
        program.end()
    r = program.result(status)
    if status is None:
        r.status = None
        r.err += f"\n(ended after {limit} s)\n"
    return r


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def own_address():
    """An address of this host other than loopback's, by the routing table; none is talked to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.99", 9))
            return s.getsockname()[0]
        except OSError:
            return "127.0.0.2"


def listening(port, pid="self"):
    """Whether anybody listens there, in the network namespace of that process."""
    for name in (f"/proc/{pid}/net/tcp", f"/proc/{pid}/net/tcp6"):
        try:
            with open(name) as f:
                for line in f.readlines()[1:]:
                    word = line.split()
                    if word[3] == "0A" and int(word[1].rsplit(":", 1)[1], 16) == port:
                        return True
        except OSError:
            pass
    return False


def rdma_listening(port, pid):
    """Whether the process has a listener of rdma_cm: its claim on the port is a lock, and who listens has another
    one (src/host/ports.h).  The number of the port does not matter."""
    del port
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("net:["):
                with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as f:
                    if sum("OFDLCK" in line for line in f) >= 2:
                        return True
    except OSError:
        pass  # it has just closed a descriptor, or is gone
    return False


def await_listening(process, port, limit=30, ready=None):
    """Returns whether it listens before the limit; it may end instead.  No event tells of the listen() of another process:
    the kernel has none, and what the process prints may stay in its buffer.  So this looks again and again."""
    end = time.monotonic() + limit
    while time.monotonic() < end and process.poll() is None:
        if (ready or listening)(port, process.pid):
            return True
        time.sleep(0.005)
    return False


_TAKEN = re.compile(r"in use|[Cc]ouldn.t (listen|bind)|[Uu]nable to open file descriptor|bind", re.I)


@contextlib.contextmanager
def server(build, argv, ready, mode="run", env=None, net=None):
    """A server that stays, until it is ended behind; "{port}" in a word becomes its port.  Yields both."""
    port = free_port()
    s = Program(*command(build, [w.replace("{port}", str(port)) for w in argv], mode, env), net=net)
    try:
        if not await_listening(s.process, port, ready=ready):
            raise RuntimeError(f"{argv} never listened:\n{tail(s.result().err)}")
        yield s, port
    finally:
        s.end()


def pair(build, argv, port_option="-p", host="127.0.0.1", mode="run", env=None, client_args=(), limit=LIMIT,
         check=None, cpus=(None, None), look=None, other=None, ready=None, terminal=False, nets=(None, None), stays=False):
    """Runs argv as a server and again, with the host's name at its end, as the client.  "{side}" in a word becomes
    "server" or "client".  Where the client's words are others, `other` has them; "{port}" becomes the port where
    there is no option for it.  ready(port, server's pid): whether the server listens, if not by TCP.

    check(client, server) returns a sentence when their output is not what it should be, else None.  cpus: the sets of
    CPUs that the server and the client are bound to; nets: their network namespaces; stays: the server does not end by
    itself.  look(server's pid, client's pid)
    is called now and then while both run."""
    for _ in range(5):
        port = free_port()

        def words(side, line, more=(), port=port):
            line = [*line, *([port_option, str(port)] if port_option else []), *more]
            return [w.replace("{side}", side).replace("{port}", str(port)) for w in line]

        server = client = None
        try:
            server = Program(*command(build, words("server", argv), mode, env), cpus[0], terminal, nets[0])
            if not await_listening(server.process, port, ready=ready):
                early = server.process.poll()
                server.end()
                s = server.result(early)
                if early is not None and _TAKEN.search(s.err) and "bind" in s.err + s.out:
                    continue  # somebody took the port between our look and its bind
                what = "never listened" if early is None else f"ended with status {early} before it listened"
                return Pair(s, Result([], None, "", "", 0), f"the server {what}")
            client = Program(*command(build, words("client", other or argv, [*client_args, *([host] if host else [])]),
                                      mode, env), cpus[1], terminal, nets[1])
            pids = server.process.pid, client.process.pid
            cs = client.wait(limit, (lambda pids=pids: look(*pids)) if look else None)
            # The client is done: the server has its last messages to take in, and must end too.
            ss = server.process.poll() or 0 if stays else server.wait(limit if cs == 0 else time.monotonic() - server.started + 5)
        finally:
            for p in (client, server):
                if p:
                    p.end()
        c, s = client.result(), server.result()
        return Pair(s, c, _judge(c, cs, s, ss, check))
    return Pair(s, Result([], None, "", "", 0), "no free port in five tries")


def _judge(c, cs, s, ss, check):
    for name, status in (("client", cs), ("server", ss)):
        if status is None:
            return f"the {name} hung (client status {cs}, server status {ss})"
    for name, status in (("client", cs), ("server", ss)):
        if status < 0:
            return f"the {name} died of {signal.Signals(-status).name}"
        if status:
            return f"the {name} ended with status {status}"
    return check(c, s) if check else None


def skip(why):
    print(f"SKIP: {why}")
    sys.exit(SKIP)


def there(program):
    return shutil.which(program) is not None


def need(*programs):
    lack = [p for p in programs if not there(p)]
    if lack:
        skip(f"{', '.join(lack)} not installed (scripts/deps demo test)")


@contextlib.contextmanager
def huge_pages(wanted):
    """At least so many huge pages of 2 MiB meanwhile, where this user may; yields whether there are any."""
    path = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"

    def read():
        with open(path, encoding="ascii") as f:
            return int(f.read())

    def write(n):
        with open(path, "w", encoding="ascii") as f:
            f.write(str(n))

    before = None
    try:
        before = read()
        if before < wanted:
            write(wanted)
        there = read() > 0
    except OSError:
        there = bool(before)
    try:
        yield there
    finally:
        if before is not None and before < wanted and there:
            with contextlib.suppress(OSError):
                write(before)


def arguments(check=None):
    """The common command line: --build DIR, --rounds N, --mode run|path, --check on|guard, names of rows to run.
    check: how, without that option."""
    global checks
    p = argparse.ArgumentParser()
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    p.add_argument("--build", default=os.path.join(root, "build"))
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--mode", choices=("run", "path", "both"), default="both",
                   help="verbena run, or LD_LIBRARY_PATH alone; both: rows take turns")
    p.add_argument("--stop", action="store_true", help="stop at the first failure")
    p.add_argument("--check", choices=("on", "guard"), default=check,
                   help="run under --check; a row fails if there is a report that its program is not known for (docs/check.md)")
    p.add_argument("rows", nargs="*", help="run only rows whose command line contains one of these")
    a = p.parse_args()
    a.build = os.path.abspath(a.build)
    for f in ("verbena", "lib/libibverbs.so.1"):
        if not os.path.exists(os.path.join(a.build, f)):
            sys.exit(f"{a.build}/{f} is missing: build first")
    checks = Checks(a.check) if a.check else None
    return a


def tail(text, lines=25):
    return "\n".join("    " + t for t in text.rstrip().splitlines()[-lines:])


def report(name, p):
    """One line for a pair that ran; its output too when it failed.  Returns whether it was well."""
    if p.ok:
        print(f"ok      {name}  ({p.client.seconds:.1f} s)", flush=True)
        return True
    print(f"FAILED  {name}: {p.why}", flush=True)
    for who, r in (("client", p.client), ("server", p.server)):
        for what, text in (("output", r.out), ("errors", r.err)):
            if text.strip():
                print(f"  {who}'s {what}:\n{tail(text)}", flush=True)
    return False


def heed_checks(row, p):
    """A pair that ran well fails by what --check reports of it.  `mistakes` of a row are the kinds that its programs are known for.
    They may depend on who is faster, but those of `mistakes_always` have to be there."""
    news = checks.news() if checks else []
    kinds = {kind for kind, _ in news}
    always = getattr(row, "mistakes_always", set()) if checks else set()
    if p.ok and not kinds <= always | getattr(row, "mistakes", set()):
        p.why = "--check reports:\n" + "\n".join(f"    {kind}: {text}" for kind, text in news)
    elif p.ok and not always <= kinds:
        p.why = f"--check reports {sorted(kinds)}, not {sorted(always)}"
    return p


def rows(a, table, one):
    """Runs one(row, mode) -> Pair over the table, a.rounds times; exits 0 when all were well.  A row whose `lacks` is a
    sentence cannot be run here."""
    done = failed = skipped = 0
    start = time.monotonic()
    for turn in range(a.rounds):
        for i, row in enumerate(table):
            name = row.name
            if a.rows and not any(word in name for word in a.rows):
                continue
            if getattr(row, "lacks", None):
                print(f"SKIP: {name}: {row.lacks}", flush=True)
                skipped += 1
                continue
            mode = ("run", "path")[(i + turn) % 2] if a.mode == "both" else a.mode
            done += 1
            if not report(f"{name} [{mode}]" + (f" round {turn + 1}" if a.rounds > 1 else ""),
                          heed_checks(row, one(row, mode))):
                failed += 1
                if a.stop:
                    sys.exit(1)
    print(f"{done - failed} passed, {failed} failed, {skipped} skipped, in {time.monotonic() - start:.0f} s")
    sys.exit(1 if failed else 0 if done else SKIP if skipped else 1)
