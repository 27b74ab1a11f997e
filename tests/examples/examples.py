#!/usr/bin/python3
"""The programs of examples/, compiled and run as their first lines say, and without each step that they explain.

    examples.py --build DIR NAME     all of that for examples/NAME.c
    examples.py --build DIR NAME -v  prints the log of each run that lacks a step
    examples.py --build DIR --under address|thread|memory|memcheck
                                     all of them, compiled with that sanitizer, or run by it: nothing is reported

A comment of an example may end with: Without it: "sentence".  Then the code from there to the next empty line, or to the end
of the block, is a step.  The test removes it, runs the rest, and expects the sentence in the log of one of the processes.  Numbers may
differ, and three dots in a sentence stand for any words.  "The log then says" has a sentence of the whole program;
other programs log nothing.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "strangers"))
sys.path.insert(1, os.path.join(ROOT, "tests", "sanitizers"))
import pairs  # noqa: E402
import stranger  # noqa: E402

LIMIT = 60  # seconds for one run
TCP = lambda pid: stranger.listening(18600)  # noqa: E731
CM = lambda pid: stranger.rdma_listening(0, pid)  # noqa: E731


class Example:
    """libs: as its first lines have them.  ready: how its server is known to listen; None: it is one command.
    expect: what it prints, as regular expressions.  strict: what it prints under that profile, if that is different.
    check: it is run with --check."""

    def __init__(self, name, libs, expect, ready=None, strict=None, check=False):
        self.name, self.libs, self.expect, self.ready = name, libs, expect, ready
        self.env = {"VERBENA_CHECK": "on"} if check else {}
        self.strict = strict or expect

    def profiles(self):
        return [("default", self.expect), ("strict", self.strict)]


PKG = "$(pkg-config --cflags --libs verbena)"  # calls that the system's headers lack
EXAMPLES = [
    Example("01-rc-send", "-libverbs", [r'server received "hello"', r'client received "hello, too"'], TCP),
    Example("02-rc-write-read-atomic", "-libverbs", [r'read "the owner.s text"', "added 5 to 37",
                                                     r'owner has "written by the visitor" and 42']),
    Example("03-events", "-libverbs", [r'(?s)received "message 1".*received "message 10"']),
    Example("04-ud", "-libverbs", [r'answerer received "who is there\?"', 'asker received "it is me"']),
    Example("05-cm-client-server", "-lrdmacm -libverbs", [r'server received "hello"', r'client received "hello, too"'], CM),
    Example("06-cm-async", "-lrdmacm -libverbs", ["server: 50 messages", "client: 50 messages"], CM),
    Example("07-srq", "-libverbs", [r'received "message 12" on queue pair 0x']),
    Example("08-odp-and-windows", "-libverbs",
            ["paged on demand", 'read "a page of the owner.s"', "READ ended with: remote access error"],
            strict=["no on-demand paging", 'read "a page of the owner.s"', "READ ended with: remote access error"]),
    Example("09-relaxed-regions", PKG, ["sender: 20000 messages of 4096 bytes", "receiver: 20000 messages"]),
    Example("10-shared-domains", PKG,
            ['front sent +"row 0"', 'client read +"row 300"', 'store now has +"written through the front"']),
    Example("11-check", "-libverbs", [r'received "message \d", "message \d", "message 2"'], check=True),
]


def fail(why):
    print(f"FAILED  {why}", flush=True)
    sys.exit(1)


def one_line(quoted):
    """A sentence that stands in several lines of a comment."""
    return re.sub(r"\s*\n\s*\*\s*", " ", quoted).strip()


THEN = re.compile(r'The log then says:[\s*]+"([^"]+)"')


class Steps:
    """What an example explains as steps: where each begins and ends, and its sentence."""

    COMMENT = re.compile(r'/\*(?:(?!\*/).)*?Without it:[\s*]+"([^"]+)"\s*\*/\n', re.S)
    END = re.compile(r"\n(?=\n|\s*\}\n)")

    def __init__(self, text):
        self.text, self.found = text, []
        for m in self.COMMENT.finditer(text):
            end = self.END.search(text, m.end()).start()
            self.found.append((m.end(), end, one_line(m.group(1))))
        if text.count("Without it") != len(self.found):
            fail(f"{text.count('Without it')} comments say \"Without it\", and {len(self.found)} have the form for it")

    def without(self):
        for start, end, sentence in self.found:
            line = self.text.count("\n", 0, start) + 1
            yield line, sentence, self.text[:start] + self.text[end:]


def pattern(sentence):
    """Its words, with any number for a number, and any words for three dots."""
    words = re.escape(sentence).replace(re.escape("…"), ".*").replace(re.escape("..."), ".*")
    words = re.sub(r"(?<![\w])(0x[0-9a-f]+|\d[\d,]*)(?![\w])", r"(?:0x[0-9a-f]+|\\d[\\d,]*)", words)
    return re.compile(words.replace(r"\ ", r"\s+"))


def compiled(source, program, libs, *flags, cc=os.environ.get("CC", "cc")):
    if libs == PKG:
        libs = subprocess.run(["pkg-config", "--cflags", "--libs", "verbena"], capture_output=True, text=True).stdout
    argv = [cc, *flags, source, "-o", program, *libs.split()]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode or done.stderr:
        fail(f"{' '.join(argv)}:\n{done.stderr}")


def text_of(p):
    with open(f"/proc/self/fd/{p.err.fileno()}", "rb") as f:
        return f.read().decode(errors="replace")


class Run:
    """A server and its client, or one program.  until: ended when this is in the log of one of them."""

    def __init__(self, build, program, ready, profile, until=None, more=None, front=(), limit=LIMIT):
        self.programs, self.why, self.limit = [], None, limit
        env = {"VERBENA_PROFILE": profile, **(more or {})}
        try:
            for words in ([], ["127.0.0.1"]) if ready else ([],):
                if self.programs:
                    self.listens(ready)
                self.programs.append(stranger.Program(*stranger.command(build, [*front, program, *words], "run", env)))
            self.watch(until)
        finally:
            for p in self.programs:
                p.end()
        self.results = [p.result() for p in self.programs]
        self.out = "".join(r.out for r in self.results)
        self.err = "".join(r.err for r in self.results)

    def listens(self, ready):
        server = self.programs[0]
        while not ready(server.process.pid) and server.process.poll() is None:
            if time.monotonic() - server.started > self.limit:
                fail("the server does not listen")
            time.sleep(0.005)  # between two looks at the event; nothing tells of a listen()

    def watch(self, until):
        started = time.monotonic()
        while any(p.process.poll() is None for p in self.programs):
            if until and any(until.search(text_of(p)) for p in self.programs):
                return
            if time.monotonic() - started > self.limit:
                self.why = f"it did not end within {self.limit} s"
                return
            time.sleep(0.01)  # between two looks at the processes and their logs

    def shown(self):
        return "\n".join(f"  {' '.join(r.argv[3:])}: status {r.status}\n{stranger.tail(r.out + r.err)}" for r in self.results)


def works(a, example, program, text):
    then = [one_line(t) for t in THEN.findall(text)]
    for profile, expect in example.profiles():
        run = Run(a.build, program, example.ready, profile, more=example.env)
        if run.why or any(r.status for r in run.results):
            fail(f"{example.name} under the profile {profile}: {run.why or 'a process failed'}\n{run.shown()}")
        for e in expect:
            if not re.search(e, run.out):
                fail(f"{example.name} under the profile {profile} does not print {e}\n{run.shown()}")
        lacks = [t for t in then if not pattern(t).search(run.err)]
        if lacks or (run.err and not then):
            fail(f"{example.name} under the profile {profile}: its log must have {lacks or 'nothing'}\n{run.shown()}")
        print(f"ok      under the profile {profile}", flush=True)


def explained(a, example, text, top):
    bad = 0
    for line, sentence, rest in Steps(text).without():
        source = os.path.join(top, "step.c")
        with open(source, "w", encoding="utf-8") as f:
            f.write(rest)
        compiled(source, source[:-2], example.libs, "-w")
        wanted = pattern(sentence)
        run = Run(a.build, source[:-2], example.ready, "default", wanted)
        good = wanted.search(run.err)
        print(f"{'ok    ' if good else 'FAILED'}  line {line}: without it: {sentence}", flush=True)
        if not good or a.verbose:
            print(run.shown(), flush=True)
        bad += not good
    return bad


def under(means, a, top):
    """All examples under a sanitizer.  11-check changes a buffer that is being sent, which ThreadSanitizer reports."""
    cc, flags = pairs.compiler(means)
    front = ["valgrind", "-q", "--leak-check=no"] if means == "memcheck" else []
    ran = 0
    for example in EXAMPLES:
        if means == "memcheck" and example.name == "10-shared-domains":
            print(f"left    {example.name}: valgrind 3.19 does not know pidfd_open()")
            continue
        program = os.path.join(top, example.name)
        compiled(os.path.join(ROOT, "examples", f"{example.name}.c"), program, example.libs, "-g", "-O1", *flags, cc=cc)
        run = Run(a.build, program, example.ready, "default", front=front, limit=10 * LIMIT)
        lacks = [e for e in example.expect if not re.search(e, run.out)]
        reported = pairs.SANITIZER.search(run.err) or pairs.SENTENCE.search(run.err)
        wrong = example.env and means == "thread"
        if run.why or (not reported if wrong else reported or lacks or any(r.status for r in run.results)):
            fail(f"{example.name} under {means}: {run.why or ''} lacks {lacks}\n{run.shown()}")
        print(f"ok      {example.name}{', which is reported' if wrong else ''}", flush=True)
        ran += 1
    print(f"{means}: {ran} examples")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("--build", required=True)
    p.add_argument("-v", "--verbose", action="store_true")
    p.add_argument("--under", choices=pairs.CASES)
    p.add_argument("name", nargs="?")
    a = p.parse_args()
    a.build = os.path.abspath(a.build)
    os.environ["PKG_CONFIG_PATH"] = a.build
    if a.under:
        with tempfile.TemporaryDirectory(prefix="verbena-examples-") as top:
            return under(a.under, a, top)
    example = next(e for e in EXAMPLES if e.name == a.name)
    path = os.path.join(ROOT, "examples", f"{a.name}.c")
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if text.count("\n") > 200:
        fail(f"{path} has {text.count(chr(10))} lines, more than 200")
    if example.libs not in text:
        fail(f"{path} does not say that it is compiled with {example.libs}")
    with tempfile.TemporaryDirectory(prefix="verbena-examples-") as top:
        program = os.path.join(top, a.name)
        compiled(path, program, example.libs, "-Wall", "-Wextra", "-Werror")
        works(a, example, program, text)
        return explained(a, example, text, top) > 0


if __name__ == "__main__":
    sys.exit(main())
