/* A ping-pong and a stream between two ranks of MPI, by whatever way mpirun is told to take.
 *
 *   mpirun -np 2 vmpi
 *
 *   lat_8               ns, half a round trip of 8 B: the median of the laps' means
 *   bw_65536 bw_1048576 bytes a second, 16 sends at a time, then an empty answer
 */
#include <mpi.h>

#include "common.h"

/* A lap takes milliseconds at least, so that a CPU that is held up for one does not make the median. */
enum { TURNS = 20000, LAPS = 15, WINDOW = 16, LAP_BYTES = 64 << 20 };

static char *bytes;
static int rank;

static void turn(void)
{
	if (!rank)
		MPI_Send(bytes, 8, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
	MPI_Recv(bytes, 8, MPI_BYTE, !rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (rank)
		MPI_Send(bytes, 8, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
}

static double latency(void)
{
	double v[LAPS];

	for (int lap = -1; lap < LAPS; lap++) { /* the first one makes contact */
		double began = now();

		for (int i = 0; i < TURNS; i++)
			turn();
		if (lap >= 0)
			v[lap] = (now() - began) / TURNS / 2;
	}
	return median(v, LAPS);
}

static void window(int size)
{
	MPI_Request r[WINDOW];

	for (int i = 0; i < WINDOW; i++)
		if (rank)
			MPI_Irecv(bytes, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &r[i]);
		else
			MPI_Isend(bytes, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &r[i]);
	MPI_Waitall(WINDOW, r, MPI_STATUSES_IGNORE);
	if (rank)
		MPI_Send(NULL, 0, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
	else
		MPI_Recv(NULL, 0, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static double bandwidth(int size)
{
	int windows = LAP_BYTES / WINDOW / size;
	double v[LAPS];

	for (int lap = -1; lap < LAPS; lap++) {
		double began = now();

		for (int i = 0; i < windows; i++)
			window(size);
		if (lap >= 0)
			v[lap] = (double)size * WINDOW * windows * 1e9 / (now() - began);
	}
	return median(v, LAPS);
}

int main(int argc, char **argv)
{
	double lat, small, large;

	if (MPI_Init(&argc, &argv))
		die("MPI_Init");
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	bytes = aligned_alloc(4096, BUFFER);
	if (!bytes)
		die("aligned_alloc");
	memset(bytes, 1, BUFFER);
	lat = latency();
	small = bandwidth(65536);
	large = bandwidth(1 << 20);
	if (!rank) {
		figure("lat_8", lat);
		figure("bw_65536", small);
		figure("bw_1048576", large);
	}
	free(bytes);
	return MPI_Finalize();
}
