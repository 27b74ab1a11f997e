/* Mixed operations at random between two hosts whose packets a relay loses, repeats, delays and corrupts:
 * every byte, completion and event against a model (proc/harness/mixed.h), and no end that hangs.
 *
 *     wire-mixed [OPERATIONS [SEED [PER_MILLE]]]      operations per direction (1,500; 100,000 in make soak),
 * and of a thousand packets how many have each of the four fates (0, 1, 10 and 100, one after the other)
 */
#include "hosts.h"
#include "mixed.h"
#include "relay.h"

static unsigned host;
static bool six;

static uint8_t own_gid(struct ibv_context *c)
{
	return kit_host_gid_index(c, host, six);
}

static void side_close(struct ibv_context *c)
{
	CHECK(!ibv_close_device(c));
}

static void run(struct kit_mixed *m, struct kit_relay *r, unsigned mtu)
{
	struct kit_hosts h = {.count = 2, .mtu = mtu, .relayed = true};
	pid_t pid[2], relay;

	kit_hosts_make(&h);
	six = six && h.ipv6;
	m->path_mtu = mtu > 4300 ? IBV_MTU_4096 : IBV_MTU_1024;
	relay = kit_relay_start(&h, r);
	for (host = 0; host < 2; host++) {
		pid[host] = kit_fork();
		if (!pid[host]) {
			kit_host_enter(&h, host);
			setenv("VERBENA_NETDEV", KIT_HOST_NIC, 1);
			kit_mixed_side(m, (int)host);
			exit(0);
		}
	}
	for (int k = 0; k < 2; k++)
		CHECK(!kit_reap(pid[k]), "side %d failed", k);
	kit_relay_stop(relay, r);
	kit_hosts_free(&h);
	CHECK(r->passed > m->operations, "the packets did not pass the relay");
	CHECK(r->loss < 5 || (r->lost && r->twice && r->delayed && r->corrupted));
}

int main(int argc, char **argv)
{
	static const unsigned rates[] = {0, 1, 10, 100};
	struct kit_relay *r = kit_shared(sizeof *r);
	struct kit_mixed m = {.cards = kit_shared(2 * sizeof *m.cards),
			      .open = kit_open,
			      .close = side_close,
			      .gid_index = own_gid,
			      .reliable_only = true};
	int only = argc > 3 ? atoi(argv[3]) : -1;

	m.operations = argc > 1 ? strtoull(argv[1], NULL, 0) : getenv("VERBENA_SOAK") ? 100000 : 1500;
	m.seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)getpid() << 20 ^ (uint64_t)clock();
	if (!kit_hosts_can())
		return KIT_SKIP;
	for (unsigned i = 0; i < sizeof rates / sizeof rates[0]; i++) {
		unsigned rate = only >= 0 ? (unsigned)only : rates[i], mtu = i % 2 ? 9000 : 1500;

		six = i / 2;
		memset(m.cards, 0, 2 * sizeof *m.cards);
		memset(r, 0, sizeof *r);
		r->seed = m.seed;
		r->dup = r->late = rate;
		r->loss = rate / 2; /* what is corrupt is lost, too: together that many do not arrive */
		r->corrupt = rate - r->loss;
		printf("mixed: wire-mixed %" PRIu64 " %" PRIu64 " %u: MTU %u, IPv%c\n", m.operations, m.seed,
		       rate, mtu, six ? '6' : '4');
		fflush(stdout);
		run(&m, r, mtu);
	}
	return 0;
}
