#!/usr/bin/python3
"""The log of a failing program: as JSON, on a terminal, and in a file that begins anew.   log.py BUILD HELPERS"""
import datetime
import errno
import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios

BUILD, HELPERS = (os.path.realpath(p) for p in sys.argv[1:3])
VERBENA = os.path.join(BUILD, "verbena")
TROUBLE = os.path.join(HELPERS, "tools-trouble")
LIMIT = 60  # seconds
checks = 0


def check(what, good, shown):
    global checks
    checks += 1
    if not good:
        sys.exit(f"FAIL: {what}:\n{shown}")


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VERBENA_", "LD_")) and k != "NO_COLOR"}
    env.update({"TERM": "xterm", **more})
    return env


def run(*options, program=TROUBLE, what="denied", env=None, **more):
    """What a program says that fails and ends."""
    r = subprocess.run([VERBENA, "run", *options, "--", program, what], env=env or environment(), timeout=LIMIT,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, **more)
    check(f"the program's end, {options}", r.returncode == 0, r.stderr)
    return r.stderr


def objects(text):
    lines = text.decode().split("\n")
    check("the last line ends", lines.pop() == "", text)
    return [json.loads(line) for line in lines]


def without_addresses(text):
    return re.sub("0x[0-9a-f]+", "0x", text)


def as_json():
    before = datetime.datetime.now(datetime.timezone.utc)
    all_ = objects(run("--log-format=json", env=environment(TZ="XYZ-05:30")))
    after = datetime.datetime.now(datetime.timezone.utc)
    check("a refused call, and a request at both ends", len(all_) == 3, all_)
    for o in all_:
        check("what all have", o["level"] == "warn" and o["program"] == "tools-trouble" and o["pid"] > 0 and o["text"],
              o)
        when = datetime.datetime.strptime(o["time"], "%Y-%m-%dT%H:%M:%S.%f%z")
        check("the offset", o["time"].endswith("+05:30") and when.utcoffset() == datetime.timedelta(minutes=330), o)
        check("the time", before - datetime.timedelta(milliseconds=1) <= when <= after, (before, o, after))
    call, there, here = all_
    check("a call", call["call"] == "ibv_reg_mr" and call["errno"] == "EFAULT" and
          call["errno_number"] == errno.EFAULT and "reason" not in call, call)
    for o in there, here:
        check("a reason", o["reason"] == "key-access" and "errno" not in o and "call" not in o, o)
        number = o["object"]["number"]
        check("its object", o["object"]["kind"] == "QP" and re.fullmatch("0x[0-9a-f]{6}", number) and
              f"QP {number}" in o["text"], o)
        facts = o["facts"]
        check("its facts", facts["qpn"] == there["object"]["number"] and facts["key"] in o["text"] and
              (facts["len"], facts["region_len"]) == (8, 4096) and facts["addr"] == facts["region_addr"] and
              (facts["want"], facts["have"]) == ("REMOTE_WRITE", "REMOTE_READ") and "other_key" not in facts, o)
    check("two ends", there["object"] != here["object"], all_)
    text = run().decode().splitlines()
    check("as text the same", len(text) == 3 and all(re.match(r"\d\d:\d\d:\d\d verbena tools-trouble\[\d+\]: ", t)
                                                     for t in text) and
          without_addresses(text[0]).endswith("]: " + without_addresses(call["text"])), (text, all_))


def hostile_names(tmp):
    for name, shown in ((b"a\"b\\c", "a\"b\\c"), (b"\n\x1b[31m", "\\x0a\\x1b[31m"), (b"\xff\xc3", "\\xff\\xc3"),
                        (b"two words]: x", "two words]: x"), ("café".encode(), "café")):
        program = os.path.join(tmp.encode(), name)
        shutil.copy(TROUBLE, program)
        for o in objects(run("--log-format=json", program=program)):
            check(f"the name {name}", o["program"] == shown, o)


def on_terminal(columns, *options, **env):
    """What a terminal shows."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    p = subprocess.Popen([VERBENA, "run", *options, "--", TROUBLE, "denied"], env=environment(**env),
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    text = b""
    while select.select([ours], [], [], LIMIT)[0]:
        try:
            text += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    check("the program's end", p.wait(LIMIT) == 0, text)
    return text.decode().replace("\r\n", "\n").splitlines()


def terminals():
    wrapped = on_terminal(60)
    plain = [re.sub("\x1b\\[[0-9;]*m", "", line) for line in wrapped]
    check("colours", "".join(wrapped).count("\x1b[33mverbena tools-trouble[") == 3, wrapped)
    check("the width", len(plain) > 3 and all(len(line) <= 60 for line in plain), plain)
    check("the indentation", sum(line.startswith("    ") for line in plain) == len(plain) - 3, plain)
    check("NO_COLOR", [len(line) for line in on_terminal(60, NO_COLOR="1")] == [len(line) for line in plain], plain)
    check("an empty NO_COLOR", any("\x1b" in line for line in on_terminal(60, NO_COLOR="")), "")
    for what, lines in (("a dumb terminal", on_terminal(60, TERM="dumb")),
                        ("JSON", on_terminal(60, "--log-format=json"))):
        check(what, len(lines) == 3 and "\x1b" not in "".join(lines), lines)


def files(tmp):
    path = os.path.join(tmp, "log")

    def log(*options, **env):
        """What the file has after a run that began with old lines."""
        with open(path, "w") as f:
            f.write("old\n" * 1000)
        said = run(*options, env=environment(**env))
        with open(path) as f:
            text = f.read()
        return text.count("old\n"), text.count("]: "), said.decode()

    check("the option truncates", log(f"--log={path}") == (0, 3, ""), log(f"--log={path}"))
    check("the variable appends", log(VERBENA_LOG=path) == (1000, 3, ""), log(VERBENA_LOG=path))
    for how, argv, env in (("run", [VERBENA, "run", f"--log={path}", "--", TROUBLE, "once"], environment()),
                           ("without it", [TROUBLE, "once"],
                            environment(VERBENA_LOG=path, LD_LIBRARY_PATH=os.path.join(BUILD, "lib")))):
        other = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        check("another program", other.stdout.readline(), "")  # now it has said all, and waits
        old, new, said = log(f"--log={path}")
        check(f"a file in use, {how}", (old, new) == (1000, 3) and f"another process logs to {path}" in said,
              (old, new, said))
        other.communicate()
        check(f"a file that was in use, {how}", log(f"--log={path}") == (0, 3, ""), "")
    for name in ("stdout", "stderr"):
        with open(path, "w") as f:
            f.write("old\n")
        with open(path, "a") as f:
            subprocess.run([VERBENA, "run", f"--log={path}", "--", TROUBLE, "denied"], env=environment(), check=True,
                           timeout=LIMIT, stdin=subprocess.DEVNULL, **{name: f},
                           **{"stdout" if name == "stderr" else "stderr": subprocess.DEVNULL})
        with open(path) as f:
            text = f.read()
        check(f"its own {name}", text.startswith("old\n") and text.count("]: ") == 3, text)
    check("/dev/null", run("--log=/dev/null") == b"", "")
    check("/dev/stderr", run("--log=/dev/stderr").count(b"]: ") == 3, "")


def pipes(tmp):
    path = os.path.join(tmp, "pipe")
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    run(f"--log={path}", program="/bin/true")
    events = poll.poll(0)
    check("a pipe is not opened without need", not events, events)
    p = subprocess.Popen([VERBENA, "run", f"--log={path}", "--", TROUBLE, "once"], env=environment(),
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    check("the program runs", p.stdout.readline(), "")  # now it has said all, and waits
    events = poll.poll(0)
    check("the pipe has no end while the program runs", events == [(reader, select.POLLIN)], events)
    said = p.communicate(timeout=LIMIT)[1]
    text = os.read(reader, 65536)
    check("the pipe has its line", text.count(b"]: ") == 1 and not said, (text, said))
    os.close(reader)


def wrong_values():
    def said(argv=(TROUBLE, "once"), **env):
        lib = environment(LD_LIBRARY_PATH=os.path.join(BUILD, "lib"), **env)
        return subprocess.run(argv, env=lib, stdin=subprocess.DEVNULL, capture_output=True, check=True,
                              timeout=LIMIT).stderr.decode()

    check("right ones", said(VERBENA_DIRECT="", VERBENA_LOG_LEVEL="", VERBENA_LOG_FORMAT="") == "", "")
    for name, value, right in (("LOG_FORMAT", "xml", ("text", "json")),
                               ("LOG_LEVEL", "loud", ("error", "warn", "info", "debug")),
                               ("DIRECT", "maybe", ("on", "off")), ("PTRACE", "1", ("on", "off")),
                               ("PCAP", "/no/such/file", ("No such file",))):
        text = said(**{f"VERBENA_{name}": value})
        words = text.partition(f"VERBENA_{name}={value}" if name != "PCAP" else value)[2]
        check(f"a wrong {name}", all(w in words for w in right) and text.count("\n") == 1, text)
        check(f"a wrong {name} without a log", said(**{f"VERBENA_{name}": value}, VERBENA_LOG="off") == "", "")


def main():
    with tempfile.TemporaryDirectory() as tmp:
        as_json()
        hostile_names(tmp)
        terminals()
        files(tmp)
        pipes(tmp)
        wrong_values()
    print(f"{checks} checks")


main()
