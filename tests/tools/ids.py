#!/usr/bin/python3
"""verbena explain, of rdma_cm ids: what each waits for, of processes that run, are stopped, or are in the middle of
rdma_destroy_id().   ids.py BUILD HELPERS
"""
import json
import os
import signal
import subprocess
import sys
import time

BUILD, HELPERS = (os.path.realpath(p) for p in sys.argv[1:3])
VERBENA = os.path.join(BUILD, "verbena")
PATIENCE = 30  # seconds
checks = 0


class Program:
    def __init__(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("VERBENA_", "LD_"))}
        self.process = subprocess.Popen([VERBENA, "run", "--log=off", "--", os.path.join(HELPERS, "tools-cm")], env=env,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def do(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, f"{line}: the program has ended"
        return answer

    def text(self):
        return subprocess.run([VERBENA, "explain", str(self.pid)], capture_output=True, text=True, check=True).stdout

    def json(self):
        done = subprocess.run([VERBENA, "explain", "--json", str(self.pid)], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def id(self, number):
        """The id of that address; None: there is none."""
        found = [i for i in self.json()["ids"] if i.get("id") == number]
        assert len(found) < 2, found
        return found[0] if found else None

    def stop(self):
        """Stops it, and waits until each of its threads has stopped: kill() does not."""
        os.kill(self.pid, signal.SIGSTOP)
        end = time.monotonic() + PATIENCE
        while True:
            states = [state(f"/proc/{self.pid}/task/{thread}/stat") for thread in os.listdir(f"/proc/{self.pid}/task")]
            if set(states) == {"T"}:
                return
            check(f"process {self.pid} stops", time.monotonic() < end, states)
            time.sleep(0.01)

    def end(self):
        self.process.kill()
        self.process.wait()


def check(what, good, shown):
    global checks
    checks += 1
    if not good:
        sys.exit(f"FAIL: {what}:\n{shown}")


def state(path):
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]


def says(program, *words):
    """Once it is so: what comes by itself takes the engine a moment."""
    end = time.monotonic() + PATIENCE
    while True:
        text = program.text()
        if all(w in text for w in words):
            break
        if time.monotonic() > end:
            check(f"{words} of process {program.pid}", False, text)
        time.sleep(0.01)
    check(words, True, text)
    return text


def connects(server, client):
    _, port, listener = server.do("listen 127.0.0.1 8").split()
    at = f"127.0.0.1:{port}"
    says(server, "rdma_cm: 1 id, 0 comm IDs in TIMEWAIT\n",
         f"id {listener}  TCP RC  {at}  listening: waiting for requests, 0 of at most 8 pending\n")
    own = client.do(f"resolve 127.0.0.1 {port}").split()[1]
    says(client, f"id {own}  TCP RC  127.0.0.1:", f" -> {at}  route resolved: waiting for the program to call rdma_connect\n")

    server.stop()
    client.do("connect")
    says(client, f" -> {at}  QP 0x000123  connecting (REQ_SENT): waiting for the REP: the REQ was sent 1 of 16 times, next at 2",
         "; the server has not accepted yet\n")
    waits = client.id(own)
    check("a client in JSON", waits["state"] == "connecting" and waits["unanswered"] == "REQ" and waits["sent"] == 1
          and waits["sent_at_most"] == 16 and waits["destination"] == at and not waits["passive"] and
          waits["due"].endswith("Z") and waits["qp"] == "0x000123" and waits["unacknowledged"] == [], waits)
    says(server, "listening: waiting for requests, 0 of at most 8 pending\n")  # it is stopped
    os.kill(server.pid, signal.SIGCONT)
    says(server, "1 of at most 8 pending; undelivered events: CONNECT_REQUEST (rdma_get_cm_event returns it)\n",
         f"a request  TCP RC  {at} <- 127.0.0.1:", "(MRA_REQ_SENT): waiting for the program to call rdma_accept or rdma_reject\n")
    return port, listener, own


def establishes(server, client, listener, own):
    check("the request", server.do("get") == "CONNECT_REQUEST 0", "")
    says(server, "0 of at most 8 pending; unacknowledged events: CONNECT_REQUEST (rdma_destroy_id waits for rdma_ack_cm_event)\n")
    server.do("ack")
    check("the listener has none left", server.id(listener)["unacknowledged"] == [], server.text())
    server.do("accept")
    says(server, "accepted, not established (REP_SENT): waiting for the RTU: the REP was sent 1 of 16 times")
    says(client, "undelivered events: CONNECT_RESPONSE or ESTABLISHED")
    check("the answer", client.do("get") == "CONNECT_RESPONSE 0", "")
    client.do("ack")
    says(client, "accepted by the peer, not established")
    client.do("establish")
    says(client, "connected (ESTABLISHED)\n")
    check("it is established", server.do("get") == "ESTABLISHED 0", "")
    passive = [i for i in server.json()["ids"] if i["passive"]]
    check("the connection in JSON", len(passive) == 1 and passive[0]["state"] == "connected" and
          passive[0]["unacknowledged"] == ["ESTABLISHED"] and passive[0]["remote_qp"] == "0x000123" and
          passive[0]["remote_comm_id"] == client.id(own)["comm_id"], passive)


def ends(server, client, own):
    server.do("destroy")
    says(server, "rdma_destroy_id is running; unacknowledged events: ESTABLISHED (rdma_destroy_id waits for rdma_ack_cm_event)\n")
    server.stop()
    check("of a process that is stopped", [i["unacknowledged"] for i in server.json()["ids"] if i["destroying"]] ==
          [["ESTABLISHED"]], server.text())
    os.kill(server.pid, signal.SIGCONT)
    server.do("ack")
    server.do("await")
    says(server, "rdma_cm: 1 id, 1 comm ID in TIMEWAIT\n")
    says(client, "undelivered events: DISCONNECTED (rdma_get_cm_event returns it)\n", "(DREQ_RCVD): waiting for the program to call rdma_disconnect")
    check("the end", client.do("get") == "DISCONNECTED 0", "")
    client.do("ack")
    client.do("disconnect")
    says(client, "disconnected (TIMEWAIT): TIMEWAIT until 2", "rdma_cm: 1 id, 1 comm ID in TIMEWAIT\n")
    check("TIMEWAIT in JSON", client.json()["timewait"] == 1 and "due" in client.id(own), client.text())
    client.do("destroy")
    client.do("await")
    says(client, "rdma_cm: 0 ids, 1 comm ID in TIMEWAIT\n")


def is_refused(server, client, port):
    check("the port is taken", client.do(f"bind 127.0.0.1 {port}") == "EADDRINUSE", "")
    says(client, f"rdma_bind_addr: port {port} is taken at this address by process {server.pid} (EADDRINUSE)")
    server.do("destroy")
    server.do("await")
    check("the port is free", client.do(f"bind 127.0.0.1 {port}") == "bound", client.text())
    own = client.do(f"resolve 127.0.0.1 {port}").split()[1]
    client.do("connect")
    check("nobody listens", client.do("get") == "REJECTED 8", client.text())
    says(client, f"rdma_connect to 127.0.0.1 port {port}: REJECTED, status 8: invalid service ID: no listener on this address and port",
         "failed with REJECTED, status 8: waiting for the program to call rdma_destroy_id; unacknowledged events: REJECTED", "1  refused: ")
    last = client.json()
    check("what was counted, in JSON", last["mads"]["refused"] == 1 and last["mads"]["malformed"] == 0 and
          last["further_ids"] == 0, last)
    check("and its id", client.id(own)["state"] == "failed" and client.id(own)["failed_by"] == "REJECTED" and
          client.id(own)["failed_status"] == 8, last)


def main():
    server, client = Program(), Program()
    try:
        port, listener, own = connects(server, client)
        establishes(server, client, listener, own)
        ends(server, client, own)
        is_refused(server, client, port)
    finally:
        server.end()
        client.end()
    print(f"{checks} checks, none failed")


main()
