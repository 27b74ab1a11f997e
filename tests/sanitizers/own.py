#!/usr/bin/python3
"""Builds the tests' own programs with a sanitizer, and runs them on an ordinary build of Verbena.  Each has to end as it does without
one, and only what KNOWN lists may be reported.

    own.py BUILD address|thread|memcheck [NAME...]      a NAME is a regular expression: proc-uc, 'proc-cm_.*', short

It tries the programs that call nothing but the verbs and rdma_cm.  The others need functions of the library, are linked with its
objects, and are named at the end.  Exit status 77: the sanitizer is not here."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import pairs

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(TESTS)
HARNESS = os.path.join(TESTS, "proc", "harness")
LIMIT = 900  # seconds for one program
# For `make test`, and what these have of the harness.
SHORT = ["proc-windows_shared", "proc-twice", "proc-verbs"]
SHORT_KIT = ["device.c", "end.c", "log.c", "process.c"]

# Programs that a checked process cannot pass.
DIRECT = "it expects that peers place data directly, which they do not in a checked process"
LEFT = {
    "proc-direct": DIRECT, "proc-fades": DIRECT, "proc-held": DIRECT, "proc-idle": DIRECT, "proc-lend": DIRECT,
    "proc-lend_mapped": DIRECT, "proc-prompt": DIRECT, "proc-refused": DIRECT, "proc-windows_held": DIRECT,
    "proc-starved": "it measures how the kernel gives CPUs, and needs the machine for itself",
}
UNMAPPED = "it unmaps memory of its requests, and memcheck reports the library's access to it"
MALLOC = "valgrind replaces malloc(), so no buffer is shared"
SECCOMP = "valgrind does not know seccomp()"
PIDFD = "its processes share memory by pidfd_open(), which valgrind 3.19 does not know"
LEFT_BY = {
    "address": {
        "proc-inproc_rereg": "it takes memory back from requests that are outstanding, and AddressSanitizer may not look where poison changes",
    },
    "thread": {
        "proc-doubt": "ThreadSanitizer does not start in a program that may not map memory",
        "proc-exit": "ThreadSanitizer delivers a signal at the program's next call of the C library, and the program makes none",
        "proc-log_pipe": "it waits until all threads sleep, and ThreadSanitizer has one that does not",
        "proc-strict": "it unmaps memory, and ThreadSanitizer maps its own there",
        "proc-vanish": "it unmaps memory, and ThreadSanitizer maps its own there",
        "proc-twice": "it uses objects that it has closed, whose memory ThreadSanitizer changes",
        "proc-upheaval": "it takes two minutes",
    },
    "memcheck": {
        "proc-doubt": "it executes /proc/self/exe, which is valgrind",
        "proc-cm_many": "valgrind does not let a program set its limit of descriptors back",
        "proc-cm_sandbox": SECCOMP, "proc-sandbox": SECCOMP,
        "proc-import": PIDFD, "proc-relaxed": PIDFD, "proc-shared_many": PIDFD, "proc-shared_pd": PIDFD, "proc-shared_revoke": PIDFD,
        "proc-windows_shared": PIDFD,
        "proc-key_words": "it needs addresses above 4 GiB, and valgrind has the heap below",
        "proc-mixed": "it takes more than five minutes",
        "proc-one_cpu": "it counts polls in vain, of which there are more where all is slow",
        "proc-port": "it counts descriptors, and valgrind opens some of its own in a child",
        "proc-share_buffers": MALLOC, "proc-share_peer": MALLOC, "proc-share_random": MALLOC,
        "proc-upheaval": "it takes two minutes without valgrind",
        "proc-verbs": "it has 5,000 queue pairs and 100,000 regions, which takes more than five minutes",
        "proc-strict": UNMAPPED, "proc-vanish": UNMAPPED,
    },
}

EARLY = "it looks at a posted receive buffer before it polls, to see what came"
SHARED = "its receives share one buffer, and it looks at the first message while others are posted"
PEER = "a peer writes to memory that is not there, and memcheck reports the library's access"
GONE = "it takes memory back from requests that are outstanding"
# What is reported rightly: the function of the test, as the report's summary or first frame has it.
KNOWN = {
    "proc-last_byte": ("look_at_message|intact|look|memset|looker", "it watches how a READ or WRITE arrives"),
    "proc-inproc_rereg": ("mover|memset|posted", GONE),
    "proc-on_demand": ("get_byte", EARLY),
    "proc-port": ("uc_finds_an_address_without_notices", EARLY),
    "proc-relaxed": ("the_flush", EARLY),
    "proc-rereg": ("look|free", EARLY),
    "proc-revoke": ("memset|intact|take", GONE),
    "proc-small_stack": ("used", "it looks how much of a thread's stack was ever used, below the part in use"),
    "proc-stranger": ("look_at_two", EARLY),
    "proc-uc": ("child", SHARED),
    "proc-xrc": ("talk", SHARED),
    "situations": ("vb_copy_app|vb_guard_copy_long", PEER),
    "proc-cm_late": ("close", "a thread destroys a channel in which another one waits"),
}
# What fails, with the output that shows that it is this.
FAILS = {
    "proc-relaxed": ("the flush did not wait", DIRECT),
    "proc-revoke": ("nothing was ever placed|kit_reap\\(pid\\[me\\]\\) == 0", DIRECT),
}
# Of the situations and hangs, those that fail.
SRQ = "what a sender knows of its peer's SRQ is known by direct placement"
LOW = "it expects the heap far from address 0, and valgrind has it near"
PARTS = {"N7.7-srq": SRQ, "no-receive-srq": SRQ, "awaited-srq": SRQ, "starved": SRQ, "region-used": DIRECT}
SPACE = "it limits the address space, and the sanitizer needs more"
MAPPINGS = "it takes all mappings that the kernel allows, and those of the sanitizer are among them"
PARTS_BY = {
    "thread": {"N1.3": SPACE, "N1.6": MAPPINGS},
    "memcheck": {"N1.3": SPACE, "N1.6": MAPPINGS, "N1.20": LOW, "N4.2": LOW, "N6.2": PEER, "N6.2-part": PEER},
}
FAILED_PART = re.compile(r"^([\w.-]+): (?:0x[0-9a-f]+$|verbena explain lacks|the log says)", re.M)


def at(*parts):
    return os.path.join(TESTS, *parts)


def sources(*pattern):
    return sorted(glob.glob(at(*pattern)))


def programs():
    """Of each program its sources, and the arguments of its runs."""
    found = {f"{layer}-{os.path.basename(f)[5:-2]}": ([f], [[]]) for layer in ("proc", "wire") for f in sources(layer, "test_*.c")}
    found["situations"] = sources("situations", "*.c"), [[]]
    found["situations-hangs"] = (sources("situations", "hangs", "*.c"),
                                 [[n] for n in "requests awaited polls sleeps calls datagrams cms more rights".split()])
    return found


class Means:
    def __init__(self, name, build, folder):
        self.name, self.build, self.folder = name, build, folder
        self.cc, self.flags = pairs.compiler(name)
        os.mkdir(os.path.join(folder, "tests"))
        os.mkdir(os.path.join(folder, "kit"))
        os.symlink(os.path.join(build, "verbena"), os.path.join(folder, "verbena"))  # situations run it
        os.chmod(folder, 0o755)  # some programs change their user

    def compile(self, files, *more):
        done = subprocess.run([self.cc, "-g", "-O1", "-std=gnu11", "-D_GNU_SOURCE", "-w", "-fno-strict-aliasing", "-fno-omit-frame-pointer",
                               *self.flags, *(f"-I{d}" for d in (HARNESS, os.path.join(ROOT, "src"), os.path.join(ROOT, "include"))),
                               *files, *more], capture_output=True, text=True, cwd=self.folder)
        return done.returncode and done.stderr

    def kit(self, names):
        with ThreadPoolExecutor(2) as pool:
            for bad in pool.map(lambda f: self.compile([f], "-c", "-o", os.path.join("kit", os.path.basename(f)[:-1] + "o")),
                                [f for n in names for f in sources("proc", "harness", n)]):
                if bad:
                    sys.exit(bad)
        subprocess.run(["ar", "rcs", "kit.a", *glob.glob(os.path.join(self.folder, "kit", "*.o"))], cwd=self.folder, check=True)

    def link(self, name, files):
        """False: it needs functions of the library."""
        libraries = [os.path.join(self.build, "lib", so) for so in ("librdmacm.so.1", "libibverbs.so.1")]
        bad = self.compile(files, "kit.a", "-o", os.path.join("tests", name), *libraries, "-lcmocka", "-lpthread")
        lacks = bad and set(re.findall(r"undefined reference to `(\w+)'", bad))
        if bad and not (lacks and all(n.startswith("vb_") for n in lacks)):
            sys.exit(bad)
        return not bad

    def run(self, name, args):
        """Its exit status, its output, and the sanitizer's reports, also of its children."""
        reports = tempfile.mkdtemp(dir=self.folder)
        os.chmod(reports, 0o777)
        path = os.path.join(reports, "report")
        env = {k: v for k, v in os.environ.items() if not k.startswith("VERBENA_")}
        # a thread that is cancelled does not leave its stack as AddressSanitizer expects it
        env.update(LD_LIBRARY_PATH=os.path.join(self.build, "lib"),
                   ASAN_OPTIONS=f"log_path={path}:exitcode=66:detect_leaks=0:halt_on_error=0:use_sigaltstack=0",
                   TSAN_OPTIONS=f"log_path={path}:exitcode=66:die_after_fork=0")
        front = [] if name == "situations" else [at("alone")]  # as ctest does
        if self.name == "thread":  # processes tell one another by shared memory what they have done
            env["VERBENA_CHECK"] = "no-remote"
        elif self.name == "memcheck":
            front += ["valgrind", "-q", "--leak-check=no", "--vgdb=no", "--error-exitcode=66", f"--log-file={path}.%p"]
        try:
            done = subprocess.run([*front, os.path.join(self.folder, "tests", name), *args], env=env, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, errors="replace", timeout=LIMIT)
            status, text = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            status, text = f"none within {LIMIT} s", ""
        told = "".join(pairs.read(f) for f in sorted(glob.glob(path + ".*")))
        shutil.rmtree(reports)
        return status, text, told


TALK = re.compile(r"^--\d+-- |^==\d+== *$|unhandled amd64-linux syscall|You may be able to write your own|README_MISSING_SYSCALL|"
                  r"Nevertheless it|support@valgrind|valgrind.org")  # of valgrind about itself
# A report's first function, without what the compiler has merged into it.  It is empty if a summary names none.
HEAD = re.compile(r"^SUMMARY: (?:.* in (\w+)|)|"
                  r"^==\d+== \S.*\n(?:==\d+==    (?:at|by) 0x[0-9A-F]+: UnknownInlinedFun .*\n)*==\d+==    (?:at|by) 0x[0-9A-F]+: (\w+)", re.M)
SANITIZER_SPEAKS = re.compile(r"\S")


def fails(means, label, text):
    """Whether the output is that of a program which fails as it must."""
    parts = set(FAILED_PART.findall(text))
    if parts:
        return parts <= {**PARTS, **PARTS_BY.get(means, {})}.keys()
    return label in FAILS and re.search(FAILS[label][0], text)


def judge(means, name, label, status, text, told):
    """What is wrong with a run, None: nothing."""
    known, right = KNOWN.get(name, ("(?!)",))[0], fails(means, label, text)
    told = "".join(line for line in told.splitlines(True) if not TALK.search(line))
    heads = HEAD.findall(told)
    heads = [(a or b).removeprefix("__interceptor_") for a, b in heads]
    if right:  # a check that failed left a thread
        heads = [h for h in heads if h != "pthread_create"]
    strange = [h for h in heads if not re.fullmatch(known, h)]
    if strange or SANITIZER_SPEAKS.search(told) and not heads and not right or (pairs.SENTENCE.search(text) and not heads):
        return f"{label}: reports {strange}:"
    if isinstance(status, str) or (status not in (0, 77) and not heads and not right):
        return f"{label}: status {status}:"
    return None


def main():
    build, name, only = os.path.realpath(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if only == ["short"]:
        only = SHORT
    left = {**LEFT, **LEFT_BY[name]}
    bad, ran, skipped, internal = [], [], [], []

    def each(item):
        program, (files, runs) = item
        if program in left or only and not any(re.fullmatch(o, program) for o in only):
            return
        if not means.link(program, files):
            internal.append(program)
            return
        for args in runs:
            label = " ".join([program, *args])
            began = time.monotonic()
            status, text, told = means.run(program, args)
            print(f"{label}: {time.monotonic() - began:.0f} s", flush=True)
            why = judge(name, program, label, status, text, told)
            (skipped if status == 77 else ran).append(label)
            if why:
                bad.append(label)
                print(why, text[-4000:], told[:8000], sep="\n", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        means = Means(name, build, folder)
        means.kit(SHORT_KIT if only == SHORT else ["*.c"])
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(each, programs().items()))
    if not only:
        print("linked with the library's objects, not tried:", *sorted(internal))
        print("left out:", *(f"\n  {n}: {why}" for n, why in left.items()))
    if only == SHORT:  # which are to be tried
        bad += internal
    print(f"{name}: {len(ran)} runs, {len(skipped)} skipped, {len(bad)} faults{': ' if bad else ''}{', '.join(bad)}")
    return 1 if bad or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
