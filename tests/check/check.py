#!/usr/bin/python3
"""verbena run --check: each wrong program is reported with its buffer and request, no right one is.

    check.py BUILD PROGRAM PAIRS [NAME...]

PROGRAM is the wrongs of this folder, PAIRS the right programs of tests/sanitizers.  The summary, the exit status and
`verbena explain` agree with the log.
"""
import glob
import json
import os
import re
import subprocess
import sys

BUILD, PROGRAM, PAIRS = (os.path.realpath(p) for p in sys.argv[1:4])
ONLY = sys.argv[4:]
VERBENA = os.path.join(BUILD, "verbena")
LIMIT = 60  # seconds for one run

SEND = r"the IBV_WR_SEND of wr_id 5 \(0x5\) on QP 0x[0-9a-f]{6}, posted "
PLACE = r"(in \w+\(\) \(\S+\+0x[0-9a-f]+\)|at \S+\+0x[0-9a-f]+)"


def changed(what, request, of=""):
    return "check-changed", rf"^the program changed {what}{of} of a buffer while the request was outstanding: {request}{PLACE}"


def request(name, wr_id, kind="QP"):
    return rf"the {name} of wr_id {wr_id} \(0x[0-9a-f]+\) on {kind} 0x[0-9a-f]{{6}}, posted "


# In front of what to do; the key's end, and the calls that led there.
STALE = r"^a peer's request names the R_Key of {}, in (?:.*\S+\+0x[0-9a-f]+\)?)\. "
BYTE = r"byte {} \(0x00 to 0x01\)"
# What is said of a wrong program, by its name.
WRONG = {
    "send-changed": changed(BYTE.format(17), SEND),
    "send-inline": changed(BYTE.format(0), SEND),
    "unsignaled": changed(BYTE.format(99), SEND),
    "shared-buffer": changed(BYTE.format(200), request("IBV_WR_SEND", 6)),
    "write-changed": changed(BYTE.format(4097), request("IBV_WR_RDMA_WRITE", 5)),
    "large-changed": changed("a byte between 196608 and 262143", request("IBV_WR_RDMA_WRITE", 5)),
    "read-target": changed(BYTE.format(40), request("IBV_WR_RDMA_READ", 5)),
    "atomic-target": changed(BYTE.format(2), request("IBV_WR_ATOMIC_FETCH_AND_ADD", 5)),
    "changed-before-atomic": changed(BYTE.format(201), SEND),
    "changed-behind-atomic": changed(BYTE.format(201), SEND),
    "receive-changed": changed(BYTE.format(60), request("receive", 9)),
    "srq-receive-changed": changed(BYTE.format(3), request("receive", 9, "SRQ")),
    "extended-changed": changed(BYTE.format(2), SEND, " of piece 3"),
    "waits-for-receive": changed(BYTE.format(0), SEND),
    "ud-changed": changed(BYTE.format(50), SEND),
    "window-changed": changed(BYTE.format(30), request("IBV_WR_RDMA_WRITE", 5)),
    "two-threads": changed(BYTE.format(12), SEND),
    "forked": changed(BYTE.format(17), SEND),
    "cm-changed": changed(BYTE.format(33), SEND),
    "deregistered": ("check-deregistered", rf"^ibv_dereg_mr: the program deregisters the region of L_Key 0x[0-9a-f]{{8}} while a "
                                           rf"request that uses it is outstanding: {SEND}{PLACE}"),
    "reregistered": ("check-deregistered", rf"^ibv_rereg_mr: the program changes the region of L_Key 0x[0-9a-f]{{8}} while a "
                                           rf"request that uses it is outstanding: {SEND}{PLACE}"),
    "receive-deregistered": ("check-deregistered", rf"is outstanding: {request('receive', 9)}{PLACE}"),
    "unmapped": ("check-unmapped", rf"^the program unmapped the buffer at 0x[0-9a-f]+ \(100 bytes\) while the request was "
                                   rf"outstanding: {request('IBV_WR_RDMA_WRITE', 5)}{PLACE}"),
    "ah-destroyed": ("check-ah", rf"^the program uses an address handle that it has destroyed: {SEND}{PLACE} names 0x"),
    "ah-extended": ("check-ah", rf"^the program uses an address handle that it has destroyed: {SEND}{PLACE} names 0x"),
    "ah-remembered": ("check-ah", rf"^the program uses an address handle that it has destroyed: {SEND}{PLACE} names 0x"),
    "stale-key": ("check-stale-key", STALE.format("a region that this program has deregistered") + "Deregister a "),
    "window-unbound": ("check-stale-key", STALE.format("a memory window that this program has unbound, or bound again") + "Unbind a "),
    "window-bound-again": ("check-stale-key", STALE.format("a memory window that this program has unbound, or bound again")),
    "window-deallocated": ("check-stale-key", STALE.format("a memory window that this program has deallocated") + "Deallocate a "),
    "window-queue-pair-destroyed": ("check-stale-key", STALE.format("a memory window whose queue pair this program has destroyed")),
    "window-invalidated": ("check-stale-key", r"^a peer's request names the R_Key of a memory window that the peer has invalidated by an "
                                              r"IBV_WR_SEND_WITH_INV\. "),
    "xrc-receive-changed": changed(BYTE.format(5), request("receive", 9, "SRQ")),
    "cm-receive-changed": changed(BYTE.format(34), request("receive", 9)),
    "left-cm-event": (None, r"^the program ended with 1 event of rdma_cm that it never acknowledged \(rdma_ack_cm_event\)$"),
    "left-cm-id": (None, r"^the program ended with objects that it did not destroy: 1 rdma_cm_id$"),
    "left-objects": (None, r"^the program ended with objects that it did not destroy: 2 queue pairs, 2 memory regions, 4 "
                           r"completion queues$"),
    "left-completions": (None, r"^the program ended with 1 completion that it never polled, in 1 CQ; 0 are a failure\. The first is "
                               r"of wr_id 5 on QP 0x"),
    "left-event": (None, r"^the program ended with 1 completion event that it never fetched or acknowledged"),
    "guard-read": ("check-guard", rf"^the program touched address 0x[0-9a-f]+ of a posted receive buffer before its data came: "
                                  rf"{request('receive', 9)}{PLACE}"),
    "guard-shared": changed(BYTE.format(17), SEND),
    "guard-syscall": (None, None),  # the system call fails, and nothing is said
}
LEGAL = ["written-while-sent", "one-buffer", "receives-share", "reads-share", "read-while-sent", "flushed", "flushed-behind", "reset", "inline-list",
         "regions-end", "protected", "child-writes", "ring-around", "threads-write", "leaves-by-exit", "own-handler", "child-reads", "executes", "arena",
         "many-places"]
GUARD = ["guard-read", "guard-shared", "guard-syscall"]
# The same mistake again and again, at one place of the program and at many: its kind, how many sentences are written, and how many
# mistakes are counted.
OFTEN = {"ah-often": ("check-ah", 5, 7), "deregistered-often": ("check-deregistered", 5, 7), "ah-places": ("check-ah", 64, 70)}


def fail(*what, sep=" "):
    print("FAILED", *what, sep=sep, flush=True)
    sys.exit(1)


def run(name, how, *options, preload=None, program=PROGRAM):
    log = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"check-{os.getpid()}.log")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VERBENA_", "LD_"))}
    if preload:
        env.update(LD_PRELOAD=preload, ASAN_OPTIONS="detect_leaks=0")
    argv = [VERBENA, "run", f"--log={log}", "--log-format=json", "--log-level=info", *options, "--", program, *name.split(), how]
    done = subprocess.run(argv, env=env, timeout=LIMIT, capture_output=True, text=True)
    with open(log) as f:
        lines = [json.loads(line) for line in f]
    os.unlink(log)
    return done, lines


def about(lines):
    """What --check says."""
    return [x for x in lines if x.get("reason", "").startswith("check-") or x["text"].startswith("the program ")]


def wrong(name, *more):
    reason, sentence = WRONG[name]
    option = "--check=guard" if name in GUARD else "--check"
    done, lines = run(name, "wrong", option, "--summary", "--fail-on=warn", *more)
    found = [x for x in about(lines) if sentence and re.search(sentence, x["text"])]
    if sentence and len(found) != 1:
        fail(f"{name} wrong: {len(found)} sentences are like {sentence}:", *(x["text"] for x in lines), done.stderr, sep="\n")
    if sentence and found[0].get("reason") != reason:
        fail(name, "wrong: its reason is", found[0].get("reason"))
    if done.returncode != (124 if reason else 0):
        fail(f"{name} wrong: exit status {done.returncode}", done.stdout, done.stderr, *lines, sep="\n")
    if reason and not re.search(rf"^ +1  warn   {reason}$", done.stderr, re.M):
        fail(f"{name} wrong: the summary is", done.stderr)


def often(name, reason, written, counted):
    done, lines = run(name, "wrong", "--check", "--summary")
    told = [x.get("reason") for x in about(lines)]
    if told != [reason] * written or not re.search(rf"^ +{counted}  warn   {reason}$", done.stderr, re.M):
        fail(f"{name} wrong:", told, done.stdout, done.stderr)
    right(name, "--check")
    right(name, "--check=guard")  # a region is registered whose first page is guarded


def guard_left():
    """A handler that leaves a fault while it is being told takes no lock along: the program ends well, and its last fault is told."""
    done, lines = run("guard-left", "wrong", "--check=guard")
    if done.returncode or {x.get("reason") for x in about(lines)} != {"check-guard"} or len(about(lines)) < 2:
        fail("guard-left wrong:", done.returncode, done.stdout, done.stderr, *(x["text"] for x in lines), sep="\n")
    right("guard-left", "--check=guard")


def callers():
    """Each request is told with those who called the function that posted it."""
    done, lines = run("several-callers", "wrong", "--check")
    for way in ("called from through() (", "called from through_room() (", "called from through_other_file() (", "called from through_aligned() (", "posted in post_in_room() ("):
        for wr_id, caller in (5, "(first|third)_caller"), (6, "second_caller"):
            pattern = rf"of wr_id {wr_id} \(0x{wr_id}\) on QP .*, {re.escape(way)}[^,]*, called from {caller}\(\) \("
            if len([x for x in about(lines) if re.search(pattern, x["text"])]) != 1:
                fail(f"several-callers wrong: not one sentence is like {pattern}:", *(x["text"] for x in lines), done.stderr, sep="\n")
    right("several-callers", "--check")


def assumptions():
    """What debug builds assume (src/base/debug.h) holds in a checked process, too: the library with fault points is one."""
    libraries = [os.path.join(BUILD, "faults", "lib"), os.path.join(BUILD, "lib")]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VERBENA_", "LD_"))}
    env.update(LD_LIBRARY_PATH=":".join(libraries), VERBENA_CHECK="guard")
    if os.path.exists(libraries[0]):
        done = subprocess.run([PAIRS, "right"], env=env, timeout=LIMIT, capture_output=True, text=True)
        if done.returncode:
            fail(f"pairs with assumptions: exit status {done.returncode}", done.stdout, done.stderr, sep="\n")


def right(name, *options, preload=None):
    done, lines = run(name, "right", *options, "--summary", "--fail-on=warn", preload=preload)
    warned = [x for x in lines if x["level"] in ("warn", "error")]
    # rdma_cm keeps what it opened for all ids
    if done.returncode or about(lines) or (warned and name not in ("flushed", "flushed-behind", "child-writes", "child-reads")):
        fail(f"{name} right with {options}: exit status {done.returncode}", done.stdout, done.stderr,
             *(x["text"] for x in lines), sep="\n")


def pairs():
    """The programs that are right under sanitizers, all in one process.  One of them has requests refused."""
    for option in ("--check", "--check=guard"):
        done, lines = run("", "right", option, program=PAIRS)
        if done.returncode or about(lines):
            fail(f"pairs with {option}: exit status {done.returncode}", done.stdout, done.stderr, *(x["text"] for x in lines), sep="\n")


def mixed():
    """Beside shared buffers, another allocator, and a sanitizer that the program is not built with, which marks buffers, too."""
    others = [found for name in ("libjemalloc", "libasan") for found in sorted(glob.glob(f"/usr/lib/*/{name}.so.*"))[:1]]
    for n in ("one-buffer", "own-handler", "child-reads", "arena"):
        right(n, "--check=guard", "--share-buffers")
        for library in others:
            right(n, "--check=guard", preload=library)


def without(name):
    """Without the option nothing is said."""
    done, lines = run(name, "wrong")
    if about(lines):
        fail(name, "without --check:", *(x["text"] for x in lines))


def explained():
    """`verbena explain` shows the report of a process that runs, with its kind, whatever the log is set to."""
    reason, sentence = WRONG["send-changed"]
    p = subprocess.Popen([VERBENA, "run", "--check", "--log=off", "--", PROGRAM, "send-changed", "wrong", "wait"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        p.stdout.readline()  # it has done all, and waits for the end of its input
        text, facts = (subprocess.run([VERBENA, "explain", *option, str(p.pid)], capture_output=True, text=True, timeout=LIMIT)
                       for option in ([], ["--json"]))
    finally:
        p.communicate(timeout=LIMIT)
    lines = json.loads(facts.stdout or "{}").get("lines", [])
    if not re.search(sentence[1:], text.stdout) or [x["reason"] for x in lines] != [reason] or not re.search(sentence, lines[0]["text"]):
        fail("explain says", text.stdout, text.stderr, facts.stdout, sep="\n")


names = [n for n in WRONG if not ONLY or n in ONLY]
for n in names:
    wrong(n)
    right(n, "--check")
    right(n, "--check=guard")
for n in LEGAL:
    if not ONLY or n in ONLY:
        right(n, "--check")
        right(n, "--check=guard")
if not ONLY:
    without("send-changed")
    without("left-objects")
    wrong("stale-key", "--profile=rxe")  # in which L_Keys look like R_Keys
    for n, numbers in OFTEN.items():
        often(n, *numbers)
    callers()
    explained()
    guard_left()
    pairs()
    assumptions()
    mixed()
print(f"{len(names)} wrong programs and their twins, {len(LEGAL)} legal ones")
