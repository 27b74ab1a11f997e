#!/usr/bin/python3
"""The tracepoints: the table of docs/tracing.md, src/base/trace.h and the library have the same ones, with as many
arguments; and the numbers of causes on the page are those of the header.   probes.py BUILD"""
import os
import re
import subprocess
import sys

build = os.path.realpath(sys.argv[1])
source = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))


def read(path):
    with open(os.path.join(source, path), encoding="utf-8") as f:
        return f.read()


def stop(status, sentence):
    print(sentence)
    sys.exit(status)


with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as f:
    found = re.search(r"^VB_SDT_DIR:\w+=(.*)$", f.read(), re.M)
has = bool(found) and not re.search(r"NOTFOUND$|^OFF$|^$", found.group(1))

header = read("src/base/trace.h").replace("\\\n", " ")
wanted = {}
for count, name in re.findall(r"^#define VB_TRACE_\w+\([^)]*\)\s+DTRACE_PROBE(\d)\(verbena, (\w+),", header, re.M):
    wanted[name] = int(count)
page = read("docs/tracing.md")
told = {name: len(re.split(r", ", args))
        for name, args in re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|$", page, re.M)}
causes = len(re.findall(r"^\tVB_TRACE_\w+,", header, re.M))
numbers = re.findall(r"\b(\d):", page[page.index("**cause**"):page.index("**state**")])
listed = re.findall(r"^usdt:\S+:verbena:(\w+)$", page, re.M)

bad = []
if not wanted or told != wanted:
    bad.append(f"docs/tracing.md has the probes {told}, src/base/trace.h {wanted}")
if listed != sorted(wanted):
    bad.append(f"docs/tracing.md lists {listed}, wanted {sorted(wanted)}")
if numbers != [str(n) for n in range(causes)]:
    bad.append(f"docs/tracing.md numbers the causes {numbers}, src/base/trace.h has {causes}")

library = os.path.join(build, "lib", "libibverbs.so.1")
try:
    notes = subprocess.run(["readelf", "-n", library], stdout=subprocess.PIPE, check=True, text=True,
                           env={**os.environ, "LC_ALL": "C"}, timeout=60).stdout
except FileNotFoundError:
    stop(77, "readelf is missing: scripts/deps test")
places = {}
for name, args in re.findall(r"Provider: verbena\n\s+Name: (\w+)\n.*\n\s+Arguments: ?(.*)", notes):
    # an operand may have a blank: none of ours is a string of the assembler's
    places.setdefault(name, []).append(len(re.findall(r"-?\d@", args)))
if not has and not places and not bad:
    stop(77, "this build has no tracepoints: sys/sdt.h was not there; the page and the header agree")
if set(places) != (set(wanted) if has else set()):
    bad.append(f"{library} has the probes {sorted(places)}, wanted {sorted(wanted) if has else 'none'}")
bad += [f"{library}: {name} has {n} arguments, not {wanted[name]}"
        for name, counts in places.items() for n in counts if n != wanted.get(name)]
for line in bad:
    print(f"FAIL: {line}")
if not bad:
    print(f"{len(wanted)} probes at {sum(map(len, places.values()))} places")
sys.exit(bool(bad))
