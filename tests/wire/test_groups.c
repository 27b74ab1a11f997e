/* Multicast between three hosts, with several processes on each: whoever is a member gets each datagram once,
 * whichever host it comes from, by the group's address; nobody else gets it.  A network may lose a datagram:
 * so a sender sends until each member has got one, and none may come twice.
 *
 *     wire-groups
 */
#include <arpa/inet.h>
#include <errno.h>
#include <sys/wait.h>

#include "hosts.h"
#include "kit.h"

enum { GRH = 40, SIZE = 1 << 20, ROOM = 2048, RECEIVES = 256, GROUP_QPN = 0xffffff, MOST = 1024 };
enum { PROCESSES = 6, WAVES = 3 };

static const struct process {
	unsigned host;
	int group;   /* that it is a member of; -1: none */
	bool leaves; /* before the last wave */
	int sends;   /* in which wave; -1: in none */
	bool blocks; /* what it sends itself */
} processes[PROCESSES] = {
    {.host = 0, .group = 0, .sends = -1},
    {.host = 0, .group = 0, .sends = -1, .leaves = true},
    {.host = 1, .group = 0, .sends = 2},
    {.host = 1, .group = -1, .sends = 1},
    {.host = 2, .group = 0, .sends = 0, .blocks = true},
    {.host = 2, .group = 1, .sends = -1},
};

/* Numbers of datagrams begin at 1 and are not used twice. */
static struct board {
	_Atomic unsigned ready, left, done;
	_Atomic uint32_t first[WAVES], next; /* of a wave; 0: it has not begun */
	_Atomic uint32_t last[PROCESSES];    /* that came to a process */
	uint32_t qpn[PROCESSES];
} * board;

static bool six;

static union ibv_gid group(int n)
{
	union ibv_gid g;

	inet_pton(AF_INET6,
		  six ? n ? "ff0e::1:2" : "ff0e::1:1"
		  : n ? "::ffff:239.2.1.2"
		      : "::ffff:239.2.1.1",
		  &g);
	return g;
}

static bool is_member(unsigned who, unsigned wave)
{
	return processes[who].group == 0 && !(processes[who].leaves && wave == WAVES - 1);
}

/* The queue pair to which nothing comes that it has sent itself. */
static void block_own(struct kit_end *e, struct ibv_pd *pd)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = KIT_QKEY},
			   rtr = {.qp_state = IBV_QPS_RTR}, rts = {.qp_state = IBV_QPS_RTS};
	struct ibv_qp_init_attr_ex x = {
	    .send_cq = e->cq,
	    .recv_cq = e->cq,
	    .qp_type = IBV_QPT_UD,
	    .pd = pd,
	    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
	    .create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
	    .cap = {.max_send_wr = 8, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1}};

	CHECK(!ibv_destroy_qp(e->qp));
	e->qp = ibv_create_qp_ex(pd->context, &x);
	CHECK(e->qp, "%s", strerror(errno));
	CHECK(!ibv_modify_qp(e->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	CHECK(!ibv_modify_qp(e->qp, &rtr, IBV_QP_STATE));
	CHECK(!ibv_modify_qp(e->qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static uint32_t length_of(uint32_t number)
{
	return (uint32_t)sizeof(number) + number % 900 / 4 * 4;
}

static void receive(struct kit_end *e, uint64_t slot)
{
	CHECK(!kit_recv(e, slot, SIZE / 2 + slot * ROOM, ROOM));
}

/* The header names the sender, and the group as who is meant. */
static void check_header(const uint8_t *grh, const struct ibv_wc *wc, unsigned wave)
{
	union ibv_gid to = group(0), from;
	unsigned who = 0;

	while (processes[who].sends != (int)wave)
		who++;
	inet_pton(six ? AF_INET6 : AF_INET, kit_host_address(processes[who].host, six), &from);
	CHECK(wc->src_qp == board->qpn[who] && wc->wc_flags == IBV_WC_GRH && wc->sl == (six ? 1 : 2));
	if (six)
		CHECK(!memcmp(grh + 8, &from, 16) && !memcmp(grh + 24, &to, 16));
	else
		CHECK(!memcmp(grh + 32, &from, 4) && !memcmp(grh + 36, to.raw + 12, 4));
}

/* Takes in what has come.  Whether a datagram of its own has left. */
static bool take(struct kit_end *e, unsigned me)
{
	static bool seen[MOST];
	struct ibv_wc wc;
	bool sent = false;

	while (ibv_poll_cq(e->cq, 1, &wc) > 0) {
		const uint8_t *at = e->buf + SIZE / 2 + wc.wr_id * ROOM;
		uint32_t number;
		unsigned wave = WAVES - 1;

		CHECK(wc.status == IBV_WC_SUCCESS, "process %u: %s", me, ibv_wc_status_str(wc.status));
		if (wc.wr_id == RECEIVES) {
			sent = true;
			continue;
		}
		memcpy(&number, at + GRH, sizeof(number));
		CHECK(number && number < MOST && wc.byte_len == GRH + length_of(number));
		CHECK(!seen[number], "process %u: datagram %u comes twice", me, number);
		seen[number] = true;
		while (wave && (!board->first[wave] || board->first[wave] > number))
			wave--;
		CHECK(is_member(me, wave), "process %u, no member, gets a datagram of wave %u", me, wave);
		CHECK(!processes[me].blocks || processes[me].sends != (int)wave,
		      "its own datagram comes back");
		check_header(at, &wc, wave);
		board->last[me] = number;
		receive(e, wc.wr_id);
	}
	return sent;
}

/* Whether all who are to get one of the wave have got one. */
static bool is_over(unsigned wave)
{
	for (unsigned i = 0; i < PROCESSES; i++)
		if (is_member(i, wave) && !(processes[i].blocks && processes[i].sends == (int)wave) &&
		    board->last[i] < board->first[wave])
			return false;
	return true;
}

static void send_wave(struct kit_end *e, struct ibv_ah *ah, unsigned me, unsigned wave)
{
	enum { LEAST = 50 };
	uint32_t n = ++board->next;

	board->first[wave] = n;
	for (;; n = ++board->next) {
		double until = kit_now() + 0.02;
		bool sent = false;

		CHECK(n < MOST, "datagrams do not arrive");
		memcpy(e->buf, &n, sizeof(n));
		CHECK(!kit_datagram(e, ah, GROUP_QPN, RECEIVES, 0, length_of(n)));
		do /* nothing tells of a datagram that is lost */
			sent |= take(e, me);
		while (!sent || (!is_over(wave) && kit_now() < until));
		if (is_over(wave) && n - board->first[wave] >= LEAST)
			break;
	}
	board->done++;
}

/* A datagram that no packet of the network can be. */
static void send_too_long(struct kit_end *e, struct ibv_ah *ah)
{
	struct ibv_wc wc;

	CHECK(!kit_datagram(e, ah, GROUP_QPN, RECEIVES, 0, 1028));
	do
		wc = kit_wait(e, 20);
	while (wc.status == IBV_WC_SUCCESS);
	CHECK(wc.status == IBV_WC_LOC_LEN_ERR, "%s", ibv_wc_status_str(wc.status));
}

/* Whether this host's interface is a member of the group, as the kernel's table has it. */
static bool is_joined(const union ibv_gid *g)
{
	FILE *f = fopen(six ? "/proc/thread-self/net/igmp6" : "/proc/thread-self/net/igmp", "re");
	char line[256], name[33];
	bool found = false;
	uint32_t word;

	CHECK(f);
	memcpy(&word, g->raw + 12, sizeof(word));
	snprintf(name, sizeof(name), "%08X", word);
	for (unsigned i = 0; six && i < 16; i++)
		snprintf(name + 2 * i, sizeof(name) - 2 * i, "%02x", g->raw[i]);
	while (fgets(line, sizeof(line), f))
		found |= strstr(line, name) != NULL;
	fclose(f);
	return found;
}

static void run(unsigned me)
{
	const struct process *p = &processes[me];
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	union ibv_gid to = group(0), own = group(p->group);
	struct ibv_ah_attr av = {
	    .is_global = 1,
	    .port_num = 1,
	    .grh = {.dgid = to, .hop_limit = 3, .sgid_index = kit_host_gid_index(ctx, p->host, six)}};
	struct ibv_ah *ah = ibv_create_ah(pd, &av);
	struct kit_end e;
	unsigned done;

	CHECK(ah, "%s", strerror(errno));
	kit_end_open_as(&e, pd, RECEIVES, SIZE, IBV_QPT_UD);
	if (p->blocks)
		block_own(&e, pd);
	board->qpn[me] = e.qp->qp_num;
	for (unsigned i = 0; i < RECEIVES - 1; i++)
		receive(&e, i);
	if (p->group >= 0)
		CHECK(!ibv_attach_mcast(e.qp, &own, 0));
	board->ready++;
	while ((done = board->done) < WAVES) {
		take(&e, me);
		if (board->ready < PROCESSES)
			continue;
		if (p->leaves && done == WAVES - 1 && !board->left) {
			CHECK(!ibv_detach_mcast(e.qp, &own, 0));
			board->left = 1;
		}
		if (p->sends == (int)done && (done < WAVES - 1 || board->left))
			send_wave(&e, ah, me, done);
	}
	take(&e, me);
	if (p->group < 0)
		send_too_long(&e, ah);
	if (p->host == 1 && p->group == 0) { /* the only one on its host */
		CHECK(is_joined(&own));
		CHECK(!ibv_detach_mcast(e.qp, &own, 0));
		CHECK(!is_joined(&own), "the interface has not left the group");
	} else if (p->group >= 0 && !p->leaves) {
		CHECK(!ibv_detach_mcast(e.qp, &own, 0));
	}
	CHECK(!ibv_destroy_ah(ah));
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

static unsigned number_of(const pid_t *pid, pid_t wanted)
{
	unsigned i = 0;

	while (i < PROCESSES && pid[i] != wanted)
		i++;
	return i;
}

static void try(struct kit_hosts *h, bool ipv6, const char *wire)
{
	double began = kit_now();
	pid_t pid[PROCESSES];
	siginfo_t ended;

	six = ipv6;
	memset(board, 0, sizeof(*board));
	for (unsigned i = 0; i < PROCESSES; i++) {
		pid[i] = kit_fork();
		if (pid[i])
			continue;
		kit_host_enter(h, processes[i].host);
		setenv("VERBENA_NETDEV", KIT_HOST_NIC, 1);
		setenv("VERBENA_WIRE", wire, 1);
		run(i);
		exit(0);
	}
	for (unsigned i = 0; i < PROCESSES; i++) { /* the others wait for one that has failed */
		CHECK(!waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT));
		CHECK(!kit_reap(ended.si_pid), "process %u failed", number_of(pid, ended.si_pid));
	}
	printf("# IPv%c, VERBENA_WIRE=%s: %u datagrams, %.2f s\n", six ? '6' : '4', wire, board->next,
	       kit_now() - began);
}

int main(void)
{
	struct kit_hosts h = {.count = 3, .mtu = 1500};

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!kit_hosts_can())
		return KIT_SKIP;
	board = kit_shared(sizeof(*board));
	kit_hosts_make(&h);
	for (int ipv6 = 0; ipv6 <= h.ipv6; ipv6++) {
		try(&h, ipv6, "auto");
		try(&h, ipv6, "udp");
	}
	kit_hosts_free(&h);
	return 0;
}
