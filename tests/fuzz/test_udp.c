/* Runs the fuzz target's corpus, and inputs that are made up by seed, without libFuzzer.
 *
 *	fuzz-udp [-w DIRECTORY] COUNT FIRST-SEED FILE|DIRECTORY...
 *
 * -w writes the inputs that are made up, for libFuzzer to begin with. */
#include "udp_world.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "iba/opcode.h"
#include "iba/pkt.h"

enum { MOST = 1 << 16, GIVEN = 64 };

static struct {
	uint8_t b[MOST];
	size_t n;
	uint64_t rng;
} in;

static unsigned files;

static uint32_t below(uint32_t n)
{
	uint64_t z = in.rng += 0x9e3779b97f4a7c15ull; /* splitmix64 */

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return (uint32_t)((z ^ z >> 31) >> 32) % n;
}

static void put(unsigned v)
{
	if (in.n < MOST)
		in.b[in.n++] = (uint8_t)v;
}

static uint8_t some_opcode(void)
{
	unsigned op;

	do
		op = below(4) ? below(32) : below(256);
	while (!vb_opcodes[op].name && below(64));
	return (uint8_t)op;
}

/* What is outstanding is answered: all is acknowledged, and a READ gets its bytes. */
static void answers(unsigned k)
{
	static const uint8_t ops[] = {
	    VB_ACK,	   VB_READ_RESP_FIRST, VB_READ_RESP_MIDDLE, VB_READ_RESP_LAST,
	    VB_ATOMIC_ACK, VB_READ_RESP_ONLY,  VB_READ_RESP_MIDDLE, VB_READ_RESP_FIRST};

	for (unsigned n = 1 + below(12), i = below(2) ? 0 : below(8); n--; i = below(8) ? i + 1 : below(8)) {
		uint8_t op = ops[i % 8];
		unsigned len = vb_opcodes[op].hdr_len;

		put(k);
		put(2);
		put(op == VB_ACK ? (below(4) ? 126 : below(8)) : 127);
		put(op == VB_READ_RESP_LAST || op == VB_READ_RESP_ONLY);
		put(0xff);
		for (unsigned j = 0; j < len || (j < GIVEN && vb_opcodes[op].bits & VB_OP_PAYLOAD); j++)
			put(!j ? op : j == VB_BTH_LEN ? 0x1f : 0);
	}
}

/* A datagram as a far end may send it, or nearly. */
static void datagram(void)
{
	static const uint16_t lengths[] = {0, 4, 8, 24, 256, 1024, 4096, 260, 1020, 4100};
	static const uint8_t syndromes[] = {0x1f, 0x1f, 0x00, 0x21, 0x60, 0x61,
					    0x62, 0x63, 0x64, 0x7e, 0x7f, 0xa1};
	uint8_t opcode = some_opcode();
	const struct vb_opcode_row *op = &vb_opcodes[opcode];
	bool answer = op->bits & VB_OP_RESPONSE;
	unsigned flags = below(16) ? answer ? 2 : 1 : below(3), len = op->name ? op->hdr_len : 12;

	if (op->bits & VB_OP_PAYLOAD || !below(16))
		len += below(3) ? lengths[below(10)] : below(64);
	flags |= below(8) ? 0 : below(256) & 0xfc;
	put(below(0x80));
	put(flags);
	if (flags & 0x80)
		for (unsigned how = below(256), n = how & 0x80 ? 3 : 1; n--;)
			put(n ? below(256) : how);
	if (flags & 3)
		put(below(4) ? 0 : below(3) ? below(6) : answer && below(4) ? 126 + below(2) : below(256));
	if (below(2)) {
		put(below(2));
		put(0xff);
	} else {
		put(len);
		put(len >> 8);
	}
	if (flags & 0x80)
		put(below(256)), put(below(4) ? 0 : below(256));
	for (unsigned i = 0; i < len && i < GIVEN; i++)
		put(!i					       ? opcode
		    : i == 1				       ? (below(2) ? 0 : below(256))
		    : i == VB_BTH_LEN && op->bits & VB_OP_AETH ? syndromes[below(12)]
		    : i > VB_BTH_LEN && below(2)	       ? 0
							       : below(256));
}

/* A call, or a MAD: its kind as it is, named and for the listener mostly. */
static void connection(unsigned what)
{
	unsigned n = below(3) ? 0 : below(GIVEN), how = below(8) ? below(0x40) : below(256);

	put(below(8));
	put(how);
	if (what & 4)
		put(below(32));
	if (!(what & 2)) {
		put(below(256));
		return;
	}
	if (how & 0x80)
		put(below(2) ? 64 + below(12) : below(256));
	put(n);
	while (n--)
		put(below(256));
	put(below(256));
}

static void make_up(uint64_t seed)
{
	in.n = 0;
	in.rng = seed;
	for (unsigned steps = 1 + below(60); steps--;)
		if (!below(8)) {
			answers(below(3));
		} else if (below(4)) {
			datagram();
		} else {
			unsigned what = below(4) ? 0x80 | below(128) : 0xf8 | below(8);

			put(what);
			if ((what >> 4 & 7) == 2)
				put(below(256)), put(below(256)), put(below(4) ? 0 : below(256));
			else if ((what >> 4 & 7) == 5)
				put(below(8));
			else if ((what >> 4 & 7) == 6 && !(what & 3))
				put(below(256));
			else if ((what >> 4 & 7) == 7 && what & 8)
				connection(what);
		}
}

static void write_to(const char *dir, uint64_t seed)
{
	char name[4096];
	FILE *f;

	snprintf(name, sizeof name, "%s/seed-%llu", dir, (unsigned long long)seed);
	f = fopen(name, "wb");
	if (!f || fwrite(in.b, 1, in.n, f) != in.n || fclose(f)) {
		perror(name);
		exit(1);
	}
}

static void run(const uint8_t *data, size_t n)
{
	uint8_t *exact = malloc(n ? n : 1); /* so that what lies behind it is not read */

	if (!exact)
		abort();
	memcpy(exact, data, n);
	world_run(exact, n);
	free(exact);
}

static void run_path(const char *path);

static void run_directory(const char *path)
{
	struct dirent **names;
	int n = scandir(path, &names, NULL, alphasort);

	for (int i = 0; i < n; i++) {
		char name[4096];

		snprintf(name, sizeof name, "%s/%s", path, names[i]->d_name);
		if (names[i]->d_name[0] != '.')
			run_path(name);
		free(names[i]);
	}
	if (n >= 0)
		free(names);
}

static void run_path(const char *path)
{
	static uint8_t b[MOST];
	struct stat st;
	size_t n;
	FILE *f;

	if (!stat(path, &st) && S_ISDIR(st.st_mode)) {
		run_directory(path);
		return;
	}
	f = fopen(path, "rb");
	if (!f) {
		perror(path);
		exit(1);
	}
	n = fread(b, 1, sizeof b, f);
	fclose(f);
	fprintf(stderr, "%s\n", path);
	files++;
	run(b, n);
}

int main(int argc, char **argv)
{
	const char *dir = argc > 2 && !strcmp(argv[1], "-w") ? argv[2] : NULL;
	char **arg = argv + (dir ? 3 : 1);
	unsigned long long count = *arg ? strtoull(*arg++, NULL, 0) : 0,
			   first = *arg ? strtoull(*arg++, NULL, 0) : 1;

	world_open();
	for (; *arg; arg++)
		run_path(*arg);
	if (getenv("VERBENA_SOAK"))
		count *= 100;
	for (unsigned long long seed = first; seed < first + count; seed++) {
		make_up(seed);
		if (dir)
			write_to(dir, seed);
		fprintf(stderr, "seed %llu%c", seed, seed % 16 ? ' ' : '\n');
		run(in.b, in.n);
	}
	fprintf(stderr, "\n%u files, %llu seeds, %llu packets\n", files, count,
		(unsigned long long)world_packets());
	return 0;
}
