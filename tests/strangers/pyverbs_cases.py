"""Runs cases of rdma-core's Python suite in the directory that it was copied to, and prints one line of JSON per
case: [id, "ok" | "skip" | "fail", reason, UDP datagrams that came to this network namespace meanwhile].  Stands in for the suite's run_tests.py, whose output is for people."""
import json
import multiprocessing
import os
import sys
import unittest
from importlib.machinery import SourceFileLoader

sys.path.insert(0, os.getcwd())
from args_parser import parser  # noqa: E402

multiprocessing.set_start_method("fork")  # Python 3.14 has another one, for which cases would have to be pickled
wanted = sys.argv[1].split(",")
sys.argv[1:] = sys.argv[2:]
tests = SourceFileLoader("tests", os.path.join(os.getcwd(), "__init__.py")).load_module()
parser.parse_args()


def datagrams():
    with open("/proc/self/net/snmp", encoding="ascii") as f:
        names, values = [line.split() for line in f if line.startswith("Udp:")]
    return int(values[names.index("InDatagrams")])


class Lines(unittest.TestResult):
    before = 0

    def say(self, test, what, why=""):
        os.write(3, (json.dumps([test.id(), what, why, datagrams() - self.before]) + "\n").encode())

    def startTest(self, test):
        super().startTest(test)
        self.before = datagrams()
        self.say(test, "start")

    def addSuccess(self, test):
        self.say(test, "ok")

    def addSkip(self, test, reason):
        self.say(test, "skip", reason)

    def addFailure(self, test, err):
        self.say(test, "fail", self._exc_info_to_string(err, test))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err:
            self.addFailure(test, err)


suite = unittest.TestSuite()
for name in wanted:
    suite.addTests(unittest.defaultTestLoader.loadTestsFromName(name, tests))
suite.run(Lines())
sys.stdout.flush()
