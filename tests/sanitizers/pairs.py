#!/usr/bin/python3
"""Builds pairs.c with a sanitizer, and runs its cases on an ordinary build of Verbena: the sanitizer has to report each
wrong program, with the right buffer and request, and no right one.  All right ones run in one process.

    pairs.py BUILD address|thread|memory|memcheck [CASE...]

Exit status 77: the sanitizer is not here."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
CHECK = os.path.join(HERE, "..", "check")
# What the wrong program of each case is told, as regular expressions.
CASES = {
    "address": {
        "send-freed": ["ERROR: AddressSanitizer: heap-use-after-free", "freed by thread", "previously allocated",
                       "the program posts memory that it has freed.* byte 0 of piece 0 of the IBV_WR_SEND of wr_id 5"],
        "inline-freed": ["ERROR: AddressSanitizer: heap-use-after-free", "freed by thread", "previously allocated",
                         "the program posts inline data that it has freed.* byte 0 of the 12 at 0x"],
        "freed-early": ["heap-use-after-free", "freed by thread",
                        "the program freed byte 0 of piece 0 of the IBV_WR_SEND of wr_id 5"],
        "receive": ["use-after-poison", "#0 .* in use", "touched byte 8 of piece 0 of the receive of wr_id 5 .* on QP 0x"],
        "receive-next": ["use-after-poison", "touched byte 0 of piece 0 of the receive of wr_id 2 .* on QP"],
        "receive-twice": ["use-after-poison", "touched byte 0 of piece 0 of the receive of wr_id 2 .* on QP"],
        "receive-overlap": ["use-after-poison", "touched byte 0 of piece 0 of the receive of wr_id 2 .* on QP"],
        "receive-freed": ["heap-use-after-free", "freed by thread",
                          "the adapter writes 64 bytes .* for the receive of wr_id 1 .* freed that memory"],
        "neighbours": ["AddressSanitizer", "#0 .* in neighbours", "touched byte 2 of piece 0 of the receive of wr_id 1"],
        "tail": ["heap-buffer-overflow", "#0 .* in use"],
        "many": ["use-after-poison", "touched byte 0 of piece 0 of the receive of wr_id 1"],
        "write-freed": ["heap-use-after-free", "freed by thread", "previously allocated",
                        "the adapter writes 64 bytes .* for a request of the peer of QP 0x.*R_Key 0x"],
        "read": ["use-after-poison", "touched byte 100 of piece 0 of the IBV_WR_RDMA_READ of wr_id 5"],
        "atomic": ["use-after-poison", "touched byte 0 of piece 0 of the IBV_WR_ATOMIC_FETCH_AND_ADD of wr_id 5"],
        "ud": ["use-after-poison", "touched byte 45 of piece 0 of the receive of wr_id 1"],
        "srq": ["use-after-poison", "touched byte 0 of piece 0 of the receive of wr_id 2 .* on SRQ 0x"],
        "fork": ["use-after-poison", "touched byte 0 of piece 0 of the receive of wr_id 1"],
        "destroyed": ["use-after-poison", "touched byte 0 of piece 0 of the receive of wr_id 1"],
        "extended-cq": ["use-after-poison", "touched byte 0 of piece 0 of the receive of wr_id 2"],
        "xrc": ["use-after-poison", "touched byte 0 of piece 0 of the receive of wr_id 2 .* on SRQ 0x"],
        "window": ["heap-use-after-free", "freed by thread", "for a request of the peer of QP 0x.*R_Key 0x"],
        "ud-header": ["use-after-poison", "touched byte 20 of piece 0 of the receive of wr_id 1"],
        "srq-again": ["use-after-poison", "touched byte 0 of piece 0 of the receive of wr_id 1 .* on SRQ 0x"],
        "srq-left": ["use-after-poison", "touched byte 0 of piece 0 of the receive of wr_id 1 .* on SRQ 0x"],
        "rdma_cm": ["use-after-poison", "touched byte 0 of piece 0 of the receive of wr_id 7"],
    },
    "thread": {
        "freed-early": ["data race|heap-use-after-free", ": sends"],
        "builder": ["data race", "#0 builder", ": sends", "ibv_wr_complete"],
        "extended-cq": ["data race", "#0 use", ": receives"],
        "xrc": ["data race", "#0 use", "RDMA adapter SRQ 0x[0-9a-f]{6}: receives"],
        "window": ["data race|heap-use-after-free", "requests of its peer"],
        "revoked": ["data race", "#0 use", "requests of its peer"],
        "ud-header": ["data race", "#0 use", ": receives"],
        "large": ["data race", "#0 large", ": sends"],
        "srq-left": ["data race", "#0 use", "RDMA adapter SRQ 0x[0-9a-f]{6}: receives"],
        "srq-again": ["data race", "#0 use", "RDMA adapter SRQ 0x[0-9a-f]{6}: receives"],
        "rdma_cm": ["data race", "#0 use", ": receives", "rdma_post_recv"],
        "send": ["data race", "#0 send_buffer", "RDMA adapter QP 0x[0-9a-f]{6}: sends", "ibv_post_send"],
        "write": ["data race", "#0 write_source", "RDMA adapter QP 0x[0-9a-f]{6}: sends"],
        "write-freed": ["data race|heap-use-after-free", "requests of its peer"],
        "inline": ["data race", "#0 inline_data", ": sends"],
        "unsignaled": ["data race", "#0 unsignaled", ": sends"],
        "read": ["data race", "#0 use", ": sends"],
        "atomic": ["data race", "#0 use", ": sends"],
        "receive": ["data race", "#0 use", "RDMA adapter QP 0x[0-9a-f]{6}: receives", "ibv_post_recv"],
        "receive-twice": ["data race", "#0 use", ": receives"],
        "neighbours": ["data race", "#0 neighbours", ": receives"],
        "many": ["data race", "#0 use", ": receives"],
        "queues": ["data race", "#0 queues", "RDMA adapter", "ibv_post_send"],
        "ud": ["data race", "#0 datagram", ": receives"],
        "srq": ["data race", "#0 use", "RDMA adapter SRQ 0x[0-9a-f]{6}: receives"],
        "ordered": ["data race", "#0 hears", "Location is global 'said'"],
        "fork": ["data race", "#0 use", ": receives"],
        "destroyed": ["data race", "#0 use", ": receives"],
        "descriptors": ["data race", "#0 use", "requests of its peer"],
        "inherited": ["data race", "#0 use", "requests of its peer"],
    },
    "memory": {
        "send-freed": ["use-of-uninitialized", "created by a heap deallocation",
                       "sends byte 0 of piece 0 without having set it: the IBV_WR_SEND of wr_id 5"],
        "send-undefined": ["use-of-uninitialized", "created by a heap allocation", "in send_undefined",
                           "sends byte 0 of piece 0 without having set it: the IBV_WR_SEND of wr_id 5 .* on QP 0x"],
        "inline-undefined": ["use-of-uninitialized", "created by a heap allocation", "in inline_undefined",
                             "sends byte 3 of its inline data without having set it: the IBV_WR_SEND of wr_id 5 .* on QP 0x"],
        "builder-inline-undefined": ["use-of-uninitialized", "created by a heap allocation", "in builder_inline_undefined",
                                     "sends byte 0 of its inline data without having set it: the IBV_WR_SEND of wr_id 5 .* on QP 0x"],
        "inline-freed": ["use-of-uninitialized", "created by a heap deallocation", "sends byte 0 of its inline data"],
        "receive": ["#0 .* in use", "was marked as uninitialized", "ibv_post_recv", "in receive_buffer"],
        "receive-next": ["#0 .* in use", "ibv_post_recv"],
        "receive-twice": ["#0 .* in use", "ibv_post_recv"],
        "receive-short": ["#0 .* in received_short", "created by a heap allocation"],
        "many": ["#0 .* in use", "ibv_post_recv"],
        "read": ["#0 .* in use", "ibv_post_send", "in read_target"],
        "atomic": ["#0 .* in use", "ibv_post_send", "in atomic_result"],
        "srq": ["#0 .* in use", "ibv_post_srq_recv"],
        "fork": ["#0 .* in use", "ibv_post_recv"],
        "destroyed": ["#0 .* in use", "ibv_post_recv"],
        "extended-cq": ["#0 .* in use", "ibv_post_recv"],
        "xrc": ["#0 .* in use", "ibv_post_srq_recv"],
        "ud-header": ["#0 .* in use", "ibv_post_recv"],
        "srq-again": ["#0 .* in use", "ibv_post_srq_recv"],
        "srq-left": ["#0 .* in use", "ibv_post_srq_recv"],
        "rdma_cm": ["#0 .* in use", "rdma_post_recv"],
    },
    "memcheck": {
        "send-undefined": ["Uninitialised byte", "ibv_post_send|posted"],
        "inline-undefined": ["Uninitialised byte", "ibv_post_send|posted",
                             "sends byte 3 of its inline data without having set it: the IBV_WR_SEND of wr_id 5 .* on QP 0x"],
        "builder-inline-undefined": ["Uninitialised byte",
                                     "sends byte 0 of its inline data without having set it: the IBV_WR_SEND of wr_id 5 .* on QP 0x"],
        "receive": ["Invalid read of size 1", "use \\(pairs.c"],
        "receive-twice": ["Invalid read of size 1", "use \\(pairs.c"],
        "receive-short": ["depends on uninitialised value", "received_short \\(pairs.c"],
        "read": ["Invalid read of size 1", "use \\(pairs.c"],
        "xrc": ["Invalid read of size 1", "use \\(pairs.c"],
        "ud-header": ["Invalid read of size 1", "use \\(pairs.c"],
        "rdma_cm": ["Invalid read of size 1", "use \\(pairs.c"],
    },
}


# A case whose report the program survives, and the kind that Verbena gives it.
SURVIVED = {"address": [("receive", "check-touched"), ("send-freed", "check-freed")], "thread": [("send", "check-race")],
            "memory": [], "memcheck": [("send-undefined", "check-undefined"), ("receive", "check-memcheck")]}


# Programs of tests/check that --check calls right, and a sanitizer does not: they touch buffers whose completions they
# have not polled.  And one that becomes another program, and one that ends all.
NOT_RIGHT = ["receives-share", "flushed", "flushed-behind", "leaves-by-exit", "executes"]
# It has more mappings than the 30,000 that valgrind follows.
NOT_UNDER_MEMCHECK = ["many-places"]

SANITIZER = re.compile(r"(ERROR|WARNING): \w+Sanitizer|^==\d+==", re.M)  # a report of its own
# What Verbena says of one.
SENTENCE = re.compile(r"the program (touched|freed|posts memory|sends byte)|the adapter (reads|writes) \d|ThreadSanitizer ends|memcheck reported")


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def skip(why):
    print("SKIP: " + why)
    sys.exit(77)


# Its first thread ends before the others.  What the library allocates for that thread is no leak.
FIRST_ENDS = """#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdlib.h>
static pthread_t first;
static void *ends(void *unused) { pthread_join(first, NULL); exit(0); return unused; }
int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	pthread_t t;

	if (ibv_close_device(ibv_open_device(list[0])))
		return 1;
	ibv_free_device_list(list);
	first = pthread_self();
	pthread_create(&t, NULL, ends, NULL);
	pthread_exit(NULL);
}"""


def compiler(means):
    """The compiler of a sanitizer, and its flags.  The test is skipped if either is missing, or does not work on this machine."""
    header = "/usr/include/valgrind/memcheck.h"
    cc = {"address": "gcc", "thread": "clang", "memory": "clang", "memcheck": "gcc"}[means]
    if not shutil.which(cc):
        skip(f"{cc} is not installed")
    if means == "memcheck" and not (shutil.which("valgrind") and os.path.exists(header)):
        skip("valgrind and its headers are not installed")
    flags = [] if means == "memcheck" else ["-fsanitize=" + means]
    flags += ["-fsanitize-recover=address"] if means == "address" else []
    flags += ["-fsanitize-memory-track-origins"] if means == "memory" else []
    with tempfile.TemporaryDirectory() as folder:
        empty = os.path.join(folder, "empty")
        done = subprocess.run([cc, *flags, "-x", "c", "-", "-o", empty], input="int main(void) { return 0; }", capture_output=True, text=True)
        if not done.returncode:
            done = subprocess.run((["valgrind", "-q"] if means == "memcheck" else []) + [empty], capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        skip(f"an empty program of {' '.join([cc, *flags])} does not work here: {why}")
    return cc, flags


def compile_with(tool, build, out, *sources):
    cc, flags = tool
    r = subprocess.run([cc, "-g", "-O1", "-D_GNU_SOURCE", *flags, *sources, "-o", out, "-lpthread",
                        *(os.path.join(build, "lib", so) for so in ("librdmacm.so.1", "libibverbs.so.1"))], capture_output=True, text=True)
    if r.returncode:
        sys.exit(r.stderr)


def run(program, means, build, cases, twin, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("VERBENA_")}
    env.update(LD_LIBRARY_PATH=os.path.join(build, "lib"), ASAN_OPTIONS="detect_leaks=0:exitcode=66",
               TSAN_OPTIONS="exitcode=66", MSAN_OPTIONS="exitcode=66:fast_unwind_on_malloc=0")
    env.update(more)
    # a program that goes on behind a fault wants its registers back
    front = ["valgrind", "-q", "--leak-check=no", "--error-exitcode=66", "--vex-iropt-register-updates=allregs-at-mem-access"]
    front = front if means == "memcheck" else []
    r = subprocess.run([*front, program, *cases, twin], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                       errors="replace", timeout=200)
    return r.returncode, r.stdout + r.stderr


def all_right(program, means, build, cases, **more):
    status, text = run(program, means, build, cases, "right", **more)
    said = SENTENCE if "VERBENA_LOG" in more else re.compile("verbena ")
    if status or SANITIZER.search(text) or said.search(text):
        return [f"right: status {status}:\n{text}"]
    return []


def checks_right(tool, program, means, build):
    """The right programs of tests/check, also with --check, which allocates and compares beside the sanitizer."""
    files = sorted(glob.glob(os.path.join(CHECK, "wrongs*.c")))
    left = NOT_RIGHT + (NOT_UNDER_MEMCHECK if means == "memcheck" else [])
    names = [n for f in files for n in re.findall(r'\{"([a-z-]+)", \w+\}', read(f)) if n not in left]
    compile_with(tool, build, program, *files)
    return all_right(program, means, build, names, VERBENA_CHECK="guard")


def one_wrong(program, means, build, case, facts):
    status, text = run(program, means, build, [case], "wrong")
    lacks = [f for f in facts if not re.search(f, text)]
    return [f"{case} wrong: status {status}, lacks {lacks}:\n{text}"] if not status or lacks else []


def own_callback(program, means, build):
    """A callback that the program sets before it opens the device stays."""
    case = {"address": "receive", "thread": "send"}.get(means)
    if not case:
        return []
    status, text = run(program, means, build, [case, "wrong"], "wait", CALLBACKS="1")
    return [] if status == 66 and "the program's callback" in text else [f"own callback: status {status}:\n{text}"]


def without_peers(program, means, build):
    """With --check=no-remote ThreadSanitizer is not shown what peers do, and still what the program's own requests do."""
    if means != "thread":
        return []
    bad = []
    for case, reported in (("descriptors", False), ("send", True)):
        status, text = run(program, means, build, [case], "wrong", VERBENA_CHECK="no-remote")
        if bool(status) != reported:
            bad.append(f"{case} wrong, no-remote: status {status}:\n{text}")
    return bad


def first_ends(tool, program, means, build):
    """LeakSanitizer reports nothing of a program whose first thread ends before the others."""
    if means != "address":
        return []
    with open(program + ".c", "w", encoding="utf-8") as f:
        f.write(FIRST_ENDS)
    compile_with(tool, build, program, program + ".c")
    return all_right(program, means, build, [], ASAN_OPTIONS="detect_leaks=1")


def look(program, means, build, case, kind):
    """What is reported in JSON, in the summary and by `verbena explain`, and whether it counts for --fail-on.  --check, which looks
    at the same buffers, is no mistake of the program's."""
    verbena = os.path.join(build, "verbena")
    env = {k: v for k, v in os.environ.items() if not k.startswith("VERBENA_")}
    env.update(ASAN_OPTIONS="detect_leaks=0:halt_on_error=0", TSAN_OPTIONS="exitcode=66")
    front = ["valgrind", "-q", "--leak-check=no"] if means == "memcheck" else []
    with tempfile.NamedTemporaryFile("r") as log:
        p = subprocess.Popen([verbena, "run", "--check", "--summary", "--fail-on=warn", "--log=" + log.name, "--log-format=json", "--", *front,
                              program, case, "wrong", "wait"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, errors="replace")
        p.stdout.readline()  # it has done all, and waits for the end of its input
        said = subprocess.run([verbena, "explain", "--json", str(p.pid)], env=env, capture_output=True, text=True, timeout=60)
        _, errors = p.communicate(timeout=60)
        lines = [json.loads(line) for line in log]
    kinds = [x.get("reason") for x in lines]
    told = [x.get("reason") for x in json.loads(said.stdout or "{}").get("lines", [])]
    # ThreadSanitizer tells of its reports when it ends the process, with a status of its own
    late = means == "thread"
    one = kind != "check-memcheck" or any("memcheck reported 1 error " in x["text"] for x in lines)
    if not one or {k for k in kinds if k} - {"check-changed"} != {kind} or (kind in told) == late or p.returncode != (66 if late else 124) \
            or not re.search(rf"^ +{kinds.count(kind)}  warn   {kind}$", errors, re.M):
        return [f"{case} as {kind}: status {p.returncode}, log {kinds}, explain {told}:\n{errors}{said.stderr}"]
    return []


def main():
    build, means, only = sys.argv[1], sys.argv[2], sys.argv[3:]
    cases = {c: f for c, f in CASES[means].items() if not only or c in only}
    tool = compiler(means)
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "pairs")
        compile_with(tool, build, program, os.path.join(HERE, "pairs.c"))
        every = only or re.findall(r'^    {"([a-z_-]+)", ', read(os.path.join(HERE, "pairs.c")), re.M)
        if means == "memcheck":  # it watches the library, too, and no program that is executed
            every = [c for c in every if c not in ("nowhere", "inherited")]
        with ThreadPoolExecutor(2) as pool:
            right = [pool.submit(all_right, program, means, build, every, VERBENA_LOG="stderr", VERBENA_LOG_LEVEL="debug")]
            if not only:
                right.append(pool.submit(own_callback, program, means, build))
                right.append(pool.submit(without_peers, program, means, build))
                right.append(pool.submit(first_ends, tool, program + "-first", means, build))
                right.append(pool.submit(checks_right, tool, program + "-checks", means, build))
            bad = [b for found in pool.map(lambda c: one_wrong(program, means, build, c, cases[c]), cases) for b in found]
            bad += [b for r in right for b in r.result()]
        for case, kind in SURVIVED[means]:
            if not only or case in only:
                bad += look(program, means, build, case, kind)
    for b in bad:
        print(b)
    print(f"{means}: {len(every)} right programs, {len(cases)} wrong ones, {len(bad)} faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
