#!/usr/bin/python3
"""rdmacm-utils: the programs of rdma-core that connect by rdma_cm, server and client, over IPv4 and IPv6."""
import re
import sys

import stranger

# own: an ordinary address of this host, 127.0.0.2 where there is none; gid: the port's, for AF_IB
V4, OWN, V6, GID = "127.0.0.1", "own", "::1", "gid"
NEED = ["rping", "ucmatose", "udaddy", "cmtime", "rdma_server", "rdma_client", "rdma_xserver", "rdma_xclient", "mckey", "ibv_devinfo"]


class Row:
    """A server's and a client's words; {host} and {port} in them are filled in.  `says`: what the outputs have to have,
    or must not have if it begins with "!"."""

    def __init__(self, server, client, host=V4, says=(), lines=0, link=None):
        self.server, self.client, self.host, self.says, self.lines = server.split(), client.split(), host, says, lines
        self.env = {"VERBENA_LINK": link} if link else {}
        self.name = f"{'VERBENA_LINK=' + link + ' ' if link else ''}{client} ({host})"

    def check(self, client, server):
        for who, words in self.says:
            text = {"client": client, "server": server}[who]
            text = text.out + text.err
            if words.startswith("!") == bool(re.search(words.lstrip("!"), text)):
                return f"the {who} {'says' if words.startswith('!') else 'does not say'} {words.lstrip('!')!r}"
        if self.lines and len(re.findall(r"^ping data: ", client.out, re.M)) != self.lines:
            return f"the client did not print {self.lines} lines of data"
        return None


def on_infiniband(row):
    """The same on ports of InfiniBand's link layer."""
    return Row(" ".join(row.server), " ".join(row.client), row.host, row.says, row.lines, "infiniband")


def rping(options, host=V4, lines=0):
    return Row(f"rping -s -a {{host}} -p {{port}} {options}", f"rping -c -a {{host}} -p {{port}} {options}", host,
               [("client", "!error"), ("client", "!mismatch"), ("server", "!mismatch")], lines=lines)


def form_of(host):
    """ucmatose and udaddy want to be told of what kind an address is."""
    return "-f gid " if host == GID else "-f ipv6 " if ":" in host else ""


def ucmatose(options, host=V4):
    form = form_of(host)
    done = [(who, "return status 0") for who in ("client", "server")]
    return Row(f"ucmatose {form}-b {{host}} -p {{port}} {options}",
               f"ucmatose {form}-s {{host}} -b {{host}} -p {{port}} {options}", host, done)


def udaddy(options, host=V4):
    form = form_of(host)
    done = [(who, "return status 0") for who in ("client", "server")]
    return Row(f"udaddy {form}-b {{host}} {options}", f"udaddy {form}-s {{host}} -b {{host}} {options}", host, done)


def small(program, options="", host=V4):
    return Row(f"rdma_{program}server -p {{port}} {options}" + (" -s {host}" if program == "" else ""),
               f"rdma_{program}client -s {{host}} -p {{port}} {options}", host,
               [(who, "end 0|end\\s*$") for who in ("client", "server")])


HOSTS = (V4, OWN, V6)
TABLE = [r for h in HOSTS for r in (
    rping("-v -C 1000", h, lines=1000), rping("-C 100 -S 23", h), rping("-C 100 -S 65535", h),
    ucmatose("", h), ucmatose("-c 100", h), ucmatose("-t 8", h), ucmatose("-C 100 -S 4000", h), ucmatose("-m", h),
    udaddy("", h), udaddy("-c 20", h), udaddy("-C 50 -S 2000", h),
    small("", host=h))]
TABLE += [small("x", f"-c {kind}", h) for kind in "rx" for h in (V4, OWN)]
TABLE += [on_infiniband(r) for r in (rping("-v -C 10", OWN, lines=10), ucmatose("-c 10", OWN), udaddy("", OWN),
                                     udaddy("-p 0x0002", OWN), ucmatose("", GID), ucmatose("-P ib", GID), udaddy("", GID),
                                     small("x", "-c x", OWN))]


def gid_of_port(a):
    r = stranger.run(a.build, ["ibv_devinfo", "-v"], env={"VERBENA_LINK": "infiniband"})
    return re.search(r"GID\[ *0\]:\s*([0-9a-f:]+)", r.out).group(1)


def one(a, row, mode):
    host = stranger.own_address() if row.host == OWN else gid_of_port(a) if row.host == GID else row.host

    def fill(words):
        return [w.replace("{host}", host) for w in words]
    return stranger.pair(a.build, fill(row.server), other=fill(row.client), port_option=None, host=None, mode=mode, check=row.check,
                         env=row.env, ready=stranger.rdma_listening)


def persistent(a):
    """rping's server that stays takes one client after another."""
    with stranger.server(a.build, ["rping", "-s", "-P", "-a", V4, "-p", "{port}"], stranger.rdma_listening) as (s, port):
        for turn in range(5):
            r = stranger.run(a.build, ["rping", "-c", "-a", V4, "-p", str(port), "-C", "10", "-v"])
            if r.status or len(re.findall("^ping data", r.out, re.M)) != 10:
                print(f"FAILED  rping -P, client {turn}: status {r.status}\n{stranger.tail(r.out + r.err)}")
                return False
        if s.process.poll() is not None:
            print(f"FAILED  rping -P: the server ended with {s.process.returncode}")
            return False
    print("ok      rping -P, five clients")
    return True


def cmtime(a):
    """Its server stays.  Since release 57 or so cmtime has a controller (-C), by whose TCP port both know when they are done.
    Shortly before (-S) it got a socket, which is of IPv4."""
    bad = 0
    usage = stranger.run(a.build, ["cmtime", "-h"])
    newer = "-C " in usage.out + usage.err
    for host in (V4, stranger.own_address(), V6):
        if host == V6 and "-S]" in usage.out + usage.err and not newer:
            continue
        words = ["cmtime", "-b", host, "-c", "100", "-p"]
        name = f"cmtime -b {host}"
        if newer:
            words = [*words, "{port}", "-C", V4]
            p = stranger.pair(a.build, [*words, "-L"], other=words, port_option=None, host=None,
                              check=lambda c, s: None if re.search(r"^cm connect ", c.out, re.M) else "no figures")
            bad += not stranger.report(name, p)
            continue
        with stranger.server(a.build, [*words, "{port}"], stranger.rdma_listening) as (_, port):
            r = stranger.run(a.build, [*words, str(port), "-s", host])
        if r.status or not re.search(r"^(connect\s*:|cm connect )", r.out, re.M) or "failed" in r.out + r.err:
            bad += 1
            print(f"FAILED  {name}: status {r.status}\n{stranger.tail(r.out + r.err)}")
        else:
            print(f"ok      {name}")
    return not bad


def fabric(a):
    """libfabric's provider for verbs connects by rdma_cm, also for endpoints without connections (ofi_rxm)."""
    bad = 0
    lacks = ("fi_pingpong is not installed (scripts/deps test)" if not stranger.there("fi_pingpong") else
             "libfabric passes over loopback, and there is no other address" if stranger.own_address().startswith("127.") else None)
    if lacks:
        print(f"SKIP: {lacks}")
        return True
    for provider, kind in (("verbs", "msg"), ("verbs;ofi_rxm", "rdm"), ("verbs", "dgram")):
        words = ["fi_pingpong", "-p", provider, "-e", kind, "-I", "100", "-c"]
        p = stranger.pair(a.build, [*words, "-B", "{port}"], other=[*words, "-P", "{port}", stranger.own_address()], port_option=None,
                          host=None, check=lambda c, s: None if re.search(r"^64 .*=100 ", c.out, re.M) else "no figures")
        bad += not stranger.report(f"fi_pingpong -p '{provider}' -e {kind}", p)
    return not bad


def nobody(a):
    """A connect to nobody is refused at once."""
    r = stranger.run(a.build, ["rping", "-c", "-a", V4, "-p", str(stranger.free_port()), "-C", "1"], limit=20)
    if r.status in (0, None) or "REJECTED" not in r.out + r.err:
        print(f"FAILED  rping to nobody: status {r.status}\n{stranger.tail(r.out + r.err)}")
        return False
    print("ok      rping to nobody")
    return True


GROUPS = (("224.0.77.1", OWN, "", 1), ("224.0.77.2", OWN, "-c 3", 1), ("224.0.77.3", OWN, "", 2), ("224.0.77.4", OWN, "-o", 1),
          ("ff1e::77", V6, "-c 3", 1), ("224.0.77.5", V4, "-l", 1))


def start_group(build, group, bind, options, receivers, env=None, nets=(None,)):
    """Receivers in each of the namespaces, and then a sender in the last one, which waits for them itself (three seconds).
    bind: the address in each namespace."""
    both = [] if options == "-o" else options.split()  # who joins to send only is no receiver
    lines = [([*both], *host) for host in zip(bind, nets) for _ in range(receivers)]
    lines += [(["-s", *options.split()], bind[-1], nets[-1])]
    return [stranger.Program(*stranger.command(build, ["mckey", "-m", group, "-b", b, *words], env=env), net=net)
            for words, b, net in lines]


def end_groups(started):
    """Waits for the members of all groups, by name.  Returns {name: what is wrong with its members, else an empty text}."""
    found = {}
    try:
        for name, programs in started.items():
            status = [p.wait(60) for p in programs]
            texts = [p.result().out + p.result().err for p in programs]
            # A sender that joined hears itself, has no receive for that, and is told nothing of it.  With three queue pairs
            # each hears the two others as well, more than it has receives.
            said = not any("-c" in p.argv for p in programs) and any("are discarded" in t for t in texts)
            well = not any(status) and not said and all("return status 0" in t for t in texts)
            found[name] = "" if well else f"{status}\n" + "\n".join(map(stranger.tail, texts))
    finally:
        for programs in started.values():
            for p in programs:
                p.end()
    return found


def groups(a):
    """mckey, all groups at once."""
    ended = end_groups({f"mckey -m {group} -b {bind} {options}, {receivers} receivers":
                        start_group(a.build, group, [stranger.own_address() if bind == OWN else bind], options, receivers)
                        for group, bind, options, receivers in GROUPS})
    for name, wrong in ended.items():
        print(f"FAILED  {name}: {wrong}" if wrong else f"ok      {name}", flush=True)
    return not any(ended.values())


def main():
    a = stranger.arguments()
    stranger.need(*NEED)
    if not a.rows:
        well = [check(a) for check in (persistent, cmtime, fabric, nobody, groups)]
        if not all(well):
            sys.exit(1)
    stranger.rows(a, TABLE, lambda row, mode: one(a, row, mode))


if __name__ == "__main__":
    main()
