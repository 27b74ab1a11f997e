#!/usr/bin/python3
"""Runs vbetween in two network namespaces that a veth pair joins: between.py PROGRAM MTU [MEASURE]"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "strangers"))
import hosts  # noqa: E402

hosts.alone()
program, mtu, *only = sys.argv[1:]
with hosts.Hosts(2, int(mtu)) as h:
    sys.exit(subprocess.run([program, *map(str, h.nets), h.address(0), h.address(1), mtu, *only], stdin=subprocess.DEVNULL,
                            close_fds=False).returncode)
