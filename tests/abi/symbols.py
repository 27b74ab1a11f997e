#!/usr/bin/python3
"""Compares the dynamic symbols of our libibverbs.so.1 with the distribution's, and with the version script.

Usage: symbols.py OURS MAP.  Exit status 77 (skip) where the distribution's library or binutils are missing.
"""
import re
import shutil
import subprocess
import sys

SYSTEM = ["/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "/usr/lib/aarch64-linux-gnu/libibverbs.so.1",
          "/usr/lib64/libibverbs.so.1"]
# Nodes that Debian 12's library does not have, and how many symbols have their default version there.  What else is
# in the private nodes is compared by private_nodes.py.
NEWER = {"IBVERBS_1.15": 3, "IBVERBS_1.16": 2, "IBVERBS_1.17": 3, "IBVERBS_1.18": 11,
         "IBVERBS_PRIVATE_57": 1, "IBVERBS_PRIVATE_59": 6, "IBVERBS_PRIVATE_64": 5, "IBVERBS_PRIVATE_65": 11,
         "VERBENA_CM_1": 41,  # our librdmacm's
         "VERBENA_VIEW_1": 1}  # our preload's
# What releases up to 56 added to a node that Debian 12's library has: programs and drivers' libraries of theirs bind it.
LATER = {"ibv_wr_opcode_str": "IBVERBS_PRIVATE_34", "ibv_cmd_create_cq_ex2": "IBVERBS_PRIVATE_34",
         "ibv_cmd_query_device": "IBVERBS_PRIVATE_34"}
# Calls that Debian's library never had, under the version that they once had elsewhere.
OURS = {"ibv_alloc_shpd": "IBVERBS_1.1", "ibv_share_pd": "IBVERBS_1.1", "ibv_reg_mr_relaxed": "IBVERBS_1.1",
        "ibv_dereg_mr_relaxed": "IBVERBS_1.1", "ibv_flush_relaxed_mr": "IBVERBS_1.1"}
# Differences that are meant: NODE -> why.  The hidden 2006 variants (single @) are left out: no program that was
# looked at imports one.  Of default versions nothing may differ.
NEEDED = {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libisal.so.2", "libm.so.6",
          "libgcc_s.so.1"}
TLS_LIMIT = 1024  # bytes; what dlopen can still place in the static area that programs keep for it is 1664

bad = []


def expect(ok, what):
    if not ok:
        bad.append(what)


def run(*argv):
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def symbols(lib):
    """name -> (node, type) of default versions, and the set of name@node that are hidden."""
    default, hidden = {}, set()
    for line in run("nm", "-D", "--with-symbol-versions", "--defined-only", lib).splitlines():
        *_, kind, name = line.split()
        if "@@" in name:
            name, node = name.split("@@")
            default[name] = (node, "data" if kind in "BDRV" else "function")
        elif "@" in name:
            hidden.add(name)
    return default, hidden


def chain(lib):
    """node -> its parents."""
    nodes, last = {}, None
    for line in run("readelf", "-VW", lib).splitlines():
        m = re.search(r"Flags: (\w+).*Name: (\S+)", line)
        if m and "Cnt:" in line and m.group(1) != "BASE" and "Index:" in line:
            last = m.group(2)
            nodes[last] = []
        m = re.search(r"Parent \d+: (\S+)", line)
        if m and last:
            nodes[last].append(m.group(1))
    return nodes


def data_size(lib, name):
    for line in run("readelf", "-W", "--dyn-syms", lib).splitlines():
        f = line.split()
        if len(f) >= 8 and f[7].split("@")[0] == name:
            return int(f[2], 0)
    return None


def script(path):
    """symbol -> node, as the version script has them."""
    text = re.sub(r"/\*.*?\*/", "", open(path).read(), flags=re.S)
    out = {}
    for node, body in re.findall(r"(\w[\w.]*)\s*\{(.*?)\}", text, flags=re.S):
        body = body.split("local:")[0]
        for name in re.findall(r"(\w+)\s*;", body):
            out[name] = node
    return out


def compare_with_system(ours, hidden, lib, system):
    theirs, old = symbols(system)
    for name, (node, kind) in sorted(theirs.items()):
        expect(name in ours, f"{name}@@{node} is missing")
        if name in ours:
            expect(ours[name] == (node, kind), f"{name}: {ours[name]}, Debian's is {(node, kind)}")
    for name, (node, _) in sorted(ours.items()):
        expect(name in theirs or node in NEWER or node in (OURS.get(name), LATER.get(name)),
               f"{name}@@{node}: Debian's library has no such symbol")
    for node, count in NEWER.items():
        n = sum(1 for v, _ in ours.values() if v == node)
        expect(n == count, f"{node} has {n} symbols, not {count}")
    for name, node in LATER.items():
        expect(ours.get(name, ("", ""))[0] == node, f"{name}@@{node} of a later release is missing")
    hidden = {h for h in hidden if "@IBVERBS_PRIVATE_" not in h}
    expect(not hidden, f"hidden versions: {sorted(hidden)}")
    a, b = chain(lib), chain(system)
    for node in b:
        expect(a.get(node) == b[node], f"{node} inherits {a.get(node)}, Debian's {b[node]}")
    size = data_size(lib, "verbs_allow_disassociate_destroy")
    expect(size == 1, f"verbs_allow_disassociate_destroy has {size} bytes, not 1")
    print(f"{len(theirs)} default symbols of {system}, {len(ours)} of ours, {len(old)} hidden ones left out")


def check_file(lib):
    dynamic = run("readelf", "-dW", lib)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\]", dynamic))
    expect(needed <= NEEDED, f"needs {sorted(needed - NEEDED)}")
    expect("[libibverbs.so.1]" in dynamic, "SONAME is not libibverbs.so.1")
    expect("NODELETE" in dynamic, "is not linked -z nodelete")
    expect("TEXTREL" not in dynamic, "has text relocations")
    for line in run("readelf", "-lW", lib).splitlines():
        f = line.split()
        if f and f[0] == "TLS":
            expect(int(f[5], 16) <= TLS_LIMIT, f"{int(f[5], 16)} bytes of thread-local storage")


def main():
    lib, version_script = sys.argv[1:3]
    system = next((s for s in SYSTEM if shutil.os.path.exists(s)), None)
    if not shutil.which("nm") or not shutil.which("readelf"):
        print("SKIP: no nm and readelf (package binutils)")
        return 77
    ours, hidden = symbols(lib)
    wanted = script(version_script)
    expect(len(wanted) > 150, f"only {len(wanted)} names read from {version_script}")
    for name, node in sorted(wanted.items()):
        expect(name in ours and ours[name][0] == node, f"{name} of the version script ({node}) is not defined")
    for name in sorted(set(ours) - set(wanted)):
        expect(False, f"{name} is exported, and is not in the version script")
    check_file(lib)
    if system:
        compare_with_system(ours, hidden, lib, system)
    for b in bad:
        print("FAIL:", b)
    if not bad and not system:
        print("SKIP: no libibverbs.so.1 of the distribution to compare with")
        return 77
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
