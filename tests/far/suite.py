#!/usr/bin/python3
"""The Python suite of this system's rdma-core, unmodified: no case may fail, and some case of each module that docs name passes.

strangers.pyverbs holds Debian 12's suite against a table.  Other releases' have other cases, so here skips are only listed."""
import collections
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "strangers"))
import pyverbs  # noqa: E402
import stranger  # noqa: E402


def link_show(directory):
    """Newer suites ask `rdma link show -j` for interfaces, which fails where the kernel has no RDMA at all.  They then get
    what it prints on a kernel that has, but no device: an empty list.  From there on they ask /sys."""
    r = subprocess.run(["rdma", "link", "show", "-j"], capture_output=True, check=False)
    if r.returncode:
        with open(os.path.join(directory, "rdma"), "w", encoding="ascii") as f:
            f.write("#!/bin/sh\necho '[]'\n")
        os.chmod(f.name, 0o755)
        os.environ["PATH"] = directory + ":" + os.environ["PATH"]


def main():
    a = stranger.arguments()
    with tempfile.TemporaryDirectory(prefix="verbena-suite-") as directory:
        pyverbs.copy(directory)
        link_show(directory)
        found, status, errors = pyverbs.cases(a.build, directory, a.rows or pyverbs.modules("run"), "run")
    count = collections.Counter(what for what, _ in found.values())
    for name, (what, why) in found.items():
        if what in ("fail", "start"):
            print(f"FAILED  {name}: {'it never ended' if what == 'start' else ''}\n{stranger.tail(why)}")
    passing = {name.split(".")[1] for name, (what, _) in found.items() if what == "ok"}
    missing = [] if a.rows else sorted(set(pyverbs.NAMED) - passing)
    for module in missing:
        print(f"FAILED  {module}: no case of it passed")
    for why, n in collections.Counter(why for what, why in found.values() if what == "skip").most_common():
        print(f"skipped {n}: {why}")
    bad = count["fail"] + count["start"] + len(missing)
    if status != 0:
        bad += 1
        print(f"FAILED  the suite ended with status {status}\n{stranger.tail(errors, 60)}")
    print(f"{count['ok']} passed, {bad} failed, {count['skip']} skipped")
    return 1 if bad or not count["ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
