"""Hosts of the test's own: network namespaces that a cable joins (two of them), or a switch.

    me = hosts.alone(user=False)              # first of all: this process gets a network namespace that it may divide
    with hosts.Hosts(count=2, mtu=9000) as h:
        stranger.pair(build, argv, host=h.address(0), nets=(h.nets[0], h.nets[1]), env={"VERBENA_NETDEV": hosts.NIC})

Each has lo and an interface NIC with an address of IPv4 and one of IPv6.  Nothing has a name outside of the test, and all
of it goes with the processes that are in it.  tests/proc/harness/hosts.h makes the same ones for tests in C.
"""
import ctypes
import os
import socket
import subprocess
import sys

import stranger

NIC = "eth0"
_NEWNET = 0x40000000
_RTMGRP_LINK = 1
_libc = ctypes.CDLL(None, use_errno=True)


def alone(user=False):
    """Gives this process a network namespace of its own.  user: as root of a user namespace of its own, for which the program
    is started again.  Where neither may be had, the test is skipped."""
    inside = os.environ.get("VB_TESTS_HOSTS")
    if inside or (not user and os.geteuid() == 0 and _libc.unshare(_NEWNET) == 0):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    stranger.need("unshare", "ip")
    r = subprocess.run(["unshare", "-Urn", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"],
                       stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if r.returncode:
        stranger.skip("no user and network namespaces here: " + r.stderr.strip())
    sys.stdout.flush()
    os.execvpe("unshare", ["unshare", "-Urn", sys.executable, *sys.argv], {**os.environ, "VB_TESTS_HOSTS": "1"})


def enter(net):
    """This process goes there; for a child before it executes its program."""
    if _libc.setns(net, _NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def ip(*words, net=None):
    subprocess.run(["ip", *map(str, words)], check=True, stdin=subprocess.DEVNULL, close_fds=False,
                   preexec_fn=None if net is None else lambda: enter(net))


class Hosts:
    def __init__(self, count=2, mtu=1500):
        self.count, self.mtu, self.nets, self.ipv6 = count, mtu, [], True
        self.middle = self._own()

    @staticmethod
    def _own():
        fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        os.set_inheritable(fd, True)
        return fd

    def __enter__(self):
        for _ in range(self.count):
            if _libc.unshare(_NEWNET):
                raise OSError(ctypes.get_errno(), "unshare")
            self.nets.append(self._own())
        enter(self.middle)
        if self.count == 2:
            ip("link", "add", NIC, "mtu", self.mtu, "type", "veth", "peer", "name", NIC, "mtu", self.mtu,
               "netns", f"/proc/self/fd/{self.nets[1]}", net=self.nets[0])
        else:
            ip("link", "add", "switch", "type", "bridge")
            ip("link", "set", "switch", "up")
            for i, net in enumerate(self.nets):
                ip("link", "add", f"r{i}", "mtu", self.mtu, "type", "veth", "peer", "name", NIC, "mtu", self.mtu,
                   "netns", f"/proc/self/fd/{net}")
                ip("link", "set", f"r{i}", "master", "switch", "up")
        links = [self._watch(net) for net in self.nets]
        for i, net in enumerate(self.nets):
            ip("address", "add", self.address(i) + "/24", "dev", NIC, net=net)
            try:
                ip("address", "add", self.address(i, 6) + "/64", "dev", NIC, "nodad", net=net)
            except subprocess.CalledProcessError:
                self.ipv6 = False
            for name in ("lo", NIC):
                ip("link", "set", name, "up", net=net)
        for net, link in zip(self.nets, links):
            self._await_link(net, link)
        return self

    def _watch(self, net):
        """A socket to which the kernel tells every change of an interface there."""
        enter(net)
        try:
            link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
            link.bind((0, _RTMGRP_LINK))
            link.settimeout(30)
            return link
        finally:
            enter(self.middle)

    @staticmethod
    def _await_link(net, link):
        """The kernel says a little later that both ends of the cable are up; until then the port is down."""
        with link:
            while "state UP" not in subprocess.run(["ip", "-o", "link", "show", NIC], check=True, stdin=subprocess.DEVNULL,
                                                   stdout=subprocess.PIPE, text=True, preexec_fn=lambda: enter(net)).stdout:
                try:
                    link.recv(1 << 16)
                except TimeoutError:
                    raise RuntimeError(f"{NIC} does not come up") from None

    def __exit__(self, *_):
        for i in range(self.count if self.count > 2 else 0):
            ip("link", "delete", f"r{i}")
        if self.count > 2:
            ip("link", "delete", "switch")
        else:
            ip("link", "delete", NIC, net=self.nets[0])
        for fd in (*self.nets, self.middle):
            os.close(fd)
        self.nets = []

    @staticmethod
    def address(i, version=4):
        return f"198.51.100.{i + 1}" if version == 4 else f"2001:db8::{i + 1:x}"
