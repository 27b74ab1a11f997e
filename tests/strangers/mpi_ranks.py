#!/usr/bin/python3
"""What each rank of mpi.py does: messages round a ring and from all to all, a sum, and memory of another rank that it
puts to, gets from and adds to.  Every byte is compared."""
import os
from array import array

import mpi4py

mpi4py.rc.threads = False  # Open MPI has windows over messages only where one thread calls it
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, RANKS = WORLD.rank, WORLD.size
SIZES = (1, 8, 100, 4096, 65536, 1 << 20)  # from what goes with a packet to what goes by RDMA
ADDED = 100  # by each rank


def text(rank, size):
    return bytes((rank + i) & 255 for i in range(256)) * (size // 256 + 1)


def messages(size):
    got = bytearray(size)
    left, right = (RANK - 1) % RANKS, (RANK + 1) % RANKS
    WORLD.Sendrecv([text(RANK, size)[:size], MPI.BYTE], right, recvbuf=[got, MPI.BYTE], source=left)
    assert got == text(left, size)[:size], f"{size} bytes from rank {left}"
    all_of_it = bytearray(size * RANKS)
    WORLD.Alltoall([text(RANK, size)[:size] * RANKS, MPI.BYTE], [all_of_it, MPI.BYTE])
    assert all_of_it == b"".join(text(k, size)[:size] for k in range(RANKS)), f"{size} bytes from all"


def memory():
    window = MPI.Win.Allocate(8 * (RANKS + 1), 8, comm=WORLD)
    mine = memoryview(window).cast("q")
    for i in range(RANKS + 1):
        mine[i] = 0
    window.Fence()
    for k in range(RANKS):
        window.Put([array("q", [1000 * RANK + k]), MPI.INT64_T], k, target=RANK)
    window.Fence()
    assert list(mine[:RANKS]) == [1000 * k + RANK for k in range(RANKS)], list(mine)
    got = array("q", [0] * RANKS)
    window.Get([got, MPI.INT64_T], (RANK + 1) % RANKS, target=0)
    window.Fence()
    assert list(got) == [1000 * k + (RANK + 1) % RANKS for k in range(RANKS)], list(got)
    before = array("q", [0])
    window.Lock_all()
    for _ in range(ADDED):
        window.Fetch_and_op([array("q", [1]), MPI.INT64_T], [before, MPI.INT64_T], 0, RANKS, MPI.SUM)
        window.Flush(0)
    window.Unlock_all()
    WORLD.Barrier()
    assert RANK or mine[RANKS] == ADDED * RANKS, mine[RANKS]
    window.Free()


for n in SIZES:
    messages(n)
assert WORLD.allreduce(RANK + 1) == RANKS * (RANKS + 1) // 2
memory()
os.write(1, f"rank {RANK}: well\n".encode())  # in one piece
