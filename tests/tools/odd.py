#!/usr/bin/python3
"""The commands that look into a process, of processes that are not as usual: of another user, stopped, under a debugger,
without a first thread, ended, ending meanwhile, of another version or build, with a segment that is corrupt; and of words
that are no process.  Each answer is a sentence, and none is wrong.   odd.py BUILD HELPERS [ROUNDS [SEED]]"""
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

build, helpers = (os.path.realpath(p) for p in sys.argv[1:3])
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 4
seed = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1 << 30)
chance = random.Random(seed)
verbena = os.path.join(build, "verbena")
env = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "LD_PRELOAD", "VERBENA_LOG")}
bad = checks = 0
running = []
OF_ONE = [["explain"], ["explain", "--json"], ["qp"], ["qp", "--json"], ["mr"], ["mr", "--json"]]
OF_ALL = [["list"], ["list", "--json"], ["list", "--metrics"], ["top", "-b", "-n", "1", "-d", "0.01"]]
libc = ctypes.CDLL(None, use_errno=True)


def check(what, good, *seen):
    global bad, checks
    checks += 1
    if not good:
        bad += 1
        print(f"FAIL: {what}:", *seen)


def run(words, before=()):
    """Its status and what it prints, which is something, and text."""
    r = subprocess.run([*before, verbena, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
                       stdin=subprocess.DEVNULL, timeout=60, check=False, cwd=tmp)
    text = r.stdout.decode("utf-8")
    check(f"{words}: a status, and a sentence", r.returncode in (0, 125) and text, r.returncode, text)
    return r.returncode, text


def refused(what, pid, sentence, before=()):
    """By each command that looks into a process; bundle leaves no file behind."""
    for words in OF_ONE + [["bundle", "-o", "report"]]:
        status, text = run(words + [pid], before)
        check(f"{what}, {words}", status == 125 and sentence in text and text.count("\n") == 1, status, text)
    check(f"{what}: no report", not os.path.exists(os.path.join(tmp, "report")))


def start(*command, **more):
    p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, **more)
    running.append(p)
    p.line = p.stdout.readline()
    check("it starts", p.line, command)
    return p


def traffic(*words):
    return start(verbena, "run", "--log=off", "--", os.path.join(helpers, "tools-traffic"), *words)


def end(p):
    p.kill()
    p.communicate()


def state(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        return f.read().rpartition(")")[2].split()[0]


def words_that_are_none(p):
    for word in "0", "99999999999999999999", "4294967297", "init", "12x", "", "0x10":
        refused("no number", word, f'"{word}" is not a process ID')
    refused("a negative number", "-1", "has no option -1")
    refused("no process", "2147483647", "there is no process 2147483647")
    tid = max(int(t) for t in os.listdir(f"/proc/{p.pid}/task"))
    check("there are threads", tid != p.pid)
    refused("a thread", tid, f"{tid} is a thread of process {p.pid}, and no process. Type: verbena ")


def another_user(p):
    if os.geteuid() or subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", "true"], check=False).returncode:
        print("this user cannot become another one")
        return
    global verbena
    mine, verbena = verbena, os.path.join(tmp, "verbena")
    shutil.copy(mine, verbena)
    os.chmod(tmp, 0o777)
    nobody = ["setpriv", "--reuid=65534", "--clear-groups"]
    refused("another user's", p.pid, f"process {p.pid} belongs to user ", nobody)
    for words in OF_ALL:
        status, text = run(words, nobody)
        check(f"another user's, {words}", not status and str(p.pid) not in text.split(), text)
    verbena = mine


def another_namespace(p):
    """The number that a process has in its own PID namespace is no number here."""
    if subprocess.run(["unshare", "-Urp", "--fork", "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        print("no PID namespace can be made here")
        return
    q = start("unshare", "-r", "-p", "--fork", "--mount-proc", verbena, "run", "--log=off", "--",
              os.path.join(helpers, "tools-traffic"))
    for words in OF_ONE:
        status, text = run(words + [q.pid])
        check(f"of another PID namespace, {words}", not status and "tools-traffic" in text and q.line.split()[0] in text or
              words[0] in ("mr", "explain"), text)
    status, text = run(["list"], ["unshare", "-r", "-p", "--fork", "--mount-proc"])
    check("nothing is listed there", "no process of yours" in text, text)
    end(q)
    check("the others are still there", str(p.pid) in run(["list"])[1])


def debugged(p):
    """Attached and running, stopped there, and running again: looking at it changes nothing."""
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    if libc.ptrace(0x4206, p.pid, 0, 0):  # PTRACE_SEIZE
        print(f"no debugger can attach here: {os.strerror(ctypes.get_errno())}")
        return
    me = f"a debugger, PID {os.getpid()} ("
    status, text = run(["explain", p.pid])
    check("attached", not status and me in text and "is attached to the process, which runs" in text, text)
    check("it runs on", state(p.pid) in "SR", state(p.pid))
    libc.ptrace(0x4207, p.pid, 0, 0)  # PTRACE_INTERRUPT
    os.waitpid(p.pid, 0x40000000)  # __WALL
    status, text = run(["explain", p.pid])
    check("stopped there", not status and me in text and "has stopped the process: continue it there" in text, text)
    check("no advice that does not help", "kill -CONT" not in text, text)
    for words in OF_ONE:
        status, text = run(words + [p.pid])
        check(f"under a debugger, {words}", not status and str(p.pid) in text, text)
    check("it stays stopped", state(p.pid) == "t", state(p.pid))
    check("in JSON", '"process_state":"a debugger, ' in run(["explain", "--json", p.pid])[1])
    libc.ptrace(17, p.pid, 0, 0)  # PTRACE_DETACH
    check("no debugger", "debugger" not in run(["explain", p.pid])[1])


def stopped(p):
    os.kill(p.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, p.pid, os.WSTOPPED | os.WNOWAIT)
    text = run(["explain", p.pid])[1]
    check("stopped", f"the process is stopped by a signal (SIGSTOP or Ctrl-Z): kill -CONT {p.pid}" in text, text)
    for words in OF_ONE + OF_ALL:
        status, text = run(words + ([p.pid] if words in OF_ONE else []))
        check(f"stopped, {words}", not status and str(p.pid) in text, text)
    check("it stays stopped", state(p.pid) == "T")
    os.kill(p.pid, signal.SIGCONT)


def ended():
    p = traffic()
    p.kill()
    os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)
    refused("a zombie", p.pid, f"process {p.pid} has ended, and its history with it")
    p.communicate()
    p = start("/usr/bin/python3", "-c", "import ctypes, threading\nthreading.Thread(target=input).start()\n"
              "print('ready', flush=True)\nctypes.CDLL(None).syscall(60, 0)")  # exit(2): of this thread alone
    while state(p.pid) != "Z":  # no event tells of the end of a first thread alone
        time.sleep(0.001)
    refused("without a first thread", p.pid, f"the first thread of process {p.pid} has ended, and others still run")
    end(p)


def ends_meanwhile(words, p):
    """p is killed at some moment while the command looks at it."""
    killer = threading.Timer(chance.random() * (0.3 if words[0] == "bundle" else 0.06), p.kill)
    killer.start()
    status, text = run(words + ([] if words in OF_ALL else [p.pid]))
    killer.join()
    p.communicate()
    check(f"{words}, a process that ends", words not in OF_ALL or not status, status, text)
    if status:
        check(f"{words}, why", "has ended" in text or "there is no process" in text or "cannot be read" in text or
              "no device of Verbena open" in text, text)
    if words[0] == "bundle" and not status:
        with open(os.path.join(tmp, "report"), encoding="utf-8") as f:
            check("all parts", "\n==== limits\n" in f.read())
        os.unlink(os.path.join(tmp, "report"))


# What holds a segment: a copy of another process's, under its own PID, with some bytes changed.
FAKE = r"""
import fcntl, os, random, struct, sys
source, size, version, flips, seed = sys.argv[1], *map(int, sys.argv[2:])
chance = random.Random(seed)
fd = os.memfd_create("verbena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(fd, size)
old = os.open(source, os.O_RDONLY)
pages, at = [], 0
while True:
    try:
        at = os.lseek(old, at, os.SEEK_DATA)
    except OSError:
        break
    end = os.lseek(old, at, os.SEEK_HOLE)
    pages += range(at, min(end, size), 4096)
    at = end
for at in pages:
    os.pwrite(fd, os.pread(old, min(4096, size - at), at), at)
for _ in range(flips):
    page = chance.choice(pages)
    os.pwrite(fd, chance.choice([bytes(8), b"\xff" * 8, chance.randbytes(8), chance.randbytes(64)]), page + chance.randrange(4000))
os.pwrite(fd, struct.pack("<Q", 0x3142524556), 0)
os.pwrite(fd, struct.pack("<I", version), 8)
os.pwrite(fd, struct.pack("<QI", struct.unpack("<Q", os.pread(old, 8, 24))[0], os.getpid()), 24)
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
print("ready", flush=True)
sys.stdin.read()
"""


def segments(p):
    source = [f"/proc/{p.pid}/fd/{fd}" for fd in os.listdir(f"/proc/{p.pid}/fd")
              if os.readlink(f"/proc/{p.pid}/fd/{fd}") == "/memfd:verbena (deleted)"][0]
    size = os.stat(source).st_size
    with open(source, "rb") as f:
        version = int.from_bytes(f.read(12)[8:], "little")

    def fake(*numbers):
        return start("/usr/bin/python3", "-c", FAKE, source, *map(str, numbers))
    q = fake(size, version - 1, 0, 0)
    refused("another version", q.pid, f"process {q.pid} uses another version of Verbena: its segment has version {version - 1}")
    for words in OF_ALL:
        check(f"another version, {words}", str(q.pid) not in run(words)[1].split())
    end(q)
    q = fake(8192, version, 0, 0)
    refused("a truncated one", q.pid, f"process {q.pid} ")
    end(q)
    q = fake(size, version, 0, 0)  # what the copy calls its objects are none of this process
    text = run(["explain", q.pid])[1]
    check("another build", "its queues cannot be read: it runs another build of Verbena" in text and "what waits" not in text, text)
    text = run(["qp", q.pid])[1]
    check("another build, of qp", "2 queue pairs" in text and "The queues are not shown: the process runs another build" in text, text)
    end(q)
    for i in range(rounds):
        q = fake(size, version, 1 << chance.randrange(2, 10), chance.randrange(1 << 30))
        for words in OF_ONE + OF_ALL:
            run(words + ([q.pid] if words in OF_ONE else []))
        status, text = run(["bundle", "-o", "report", q.pid])
        check(f"corrupt, round {i}: a report", not status, text)
        os.unlink(os.path.join(tmp, "report"))
        end(q)


def main():
    p = traffic()
    words_that_are_none(p)
    another_user(p)
    another_namespace(p)
    debugged(p)
    stopped(p)
    ended()
    segments(p)
    for _ in range(rounds):
        for words in OF_ONE + OF_ALL + [["bundle", "-o", "report"]]:
            ends_meanwhile(words, traffic("busy"))
    check("the first is as it was", "2 RTS" in run(["list"])[1])


with tempfile.TemporaryDirectory() as tmp:
    try:
        main()
    finally:
        for child in running:
            if child.poll() is None:
                child.kill()
print(f"odd: {checks} checks, {bad} failed, seed {seed}")
sys.exit(bad > 0)
