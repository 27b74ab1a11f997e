#!/usr/bin/python3
"""Compares the dynamic symbols of our librdmacm.so.1 with the distribution's, and with the version script.

Usage: rdmacm_symbols.py OURS MAP.  Exit status 77 (skip) where the distribution's library or binutils are missing.
"""
import os
import re
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
from symbols import bad, chain, expect, run, script, symbols  # noqa: E402

SYSTEM = ["/usr/lib/x86_64-linux-gnu/librdmacm.so.1", "/usr/lib/aarch64-linux-gnu/librdmacm.so.1",
          "/usr/lib64/librdmacm.so.1"]
# How many calls each node has; 1.4 and 1.5 are newer than Debian 12's library.
NODES = {"RDMACM_1.0": 62, "RDMACM_1.1": 1, "RDMACM_1.2": 2, "RDMACM_1.3": 3, "RDMACM_1.4": 3, "RDMACM_1.5": 3}
NEWER = {"RDMACM_1.4", "RDMACM_1.5"}
NEEDED = {"libibverbs.so.1", "libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def compare_with_system(ours, lib, system):
    theirs, _ = symbols(system)
    for name, (node, kind) in sorted(theirs.items()):
        expect(ours.get(name) == (node, kind), f"{name}: {ours.get(name)}, the distribution's is {(node, kind)}")
    for name, (node, _) in sorted(ours.items()):
        expect(name in theirs or node in NEWER, f"{name}@@{node}: the distribution's library has no such symbol")
    a, b = chain(lib), chain(system)
    for node in b:
        expect(a.get(node) == b[node], f"{node} inherits {a.get(node)}, the distribution's {b[node]}")
    print(f"{len(theirs)} symbols of {system}, {len(ours)} of ours")


def check_file(lib):
    dynamic = run("readelf", "-dW", lib)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\]", dynamic))
    expect(needed <= NEEDED, f"needs {sorted(needed - NEEDED)}")
    expect("libibverbs.so.1" in needed, "does not need libibverbs.so.1")
    expect("[librdmacm.so.1]" in dynamic, "SONAME is not librdmacm.so.1")
    expect("NODELETE" in dynamic, "is not linked -z nodelete")
    expect("TEXTREL" not in dynamic, "has text relocations")


def main():
    lib, version_script = sys.argv[1:3]
    system = next((s for s in SYSTEM if os.path.exists(s)), None)
    if not shutil.which("nm") or not shutil.which("readelf"):
        print("SKIP: no nm and readelf (package binutils)")
        return 77
    ours, hidden = symbols(lib)
    wanted = script(version_script)
    expect(not hidden, f"hidden versions: {sorted(hidden)}")
    for name in sorted(set(ours) | set(wanted)):
        expect(ours.get(name, (None,))[0] == wanted.get(name),
               f"{name}: {ours.get(name)}, the version script has {wanted.get(name)}")
    for node, count in NODES.items():
        n = sum(1 for v, _ in ours.values() if v == node)
        expect(n == count, f"{node} has {n} symbols, not {count}")
    check_file(lib)
    if system:
        compare_with_system(ours, lib, system)
    for b in bad:
        print("FAIL:", b)
    if not bad and not system:
        print("SKIP: no librdmacm.so.1 of the distribution to compare with")
        return 77
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
