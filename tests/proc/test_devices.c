/* Several devices in a process: names, identities, the addresses that each has, traffic between them; and the
 * link layer that their ports show, LIDs included.
 *
 *     proc-devices [CASE]     default: all */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include "hca/hca.h"
#include "host/devices.h"
#include "kit.h"
#include "net.h"
#include "obj/context.h"

enum { DEVICES = 3 };

struct board {
	_Atomic int step;
	struct kit_card card[2];
	__be64 guid[DEVICES];
	uint16_t lid[DEVICES];
	uint32_t number;
};
static struct board *board;

static struct ibv_device **list;

static struct ibv_context *open_one(int index)
{
	struct ibv_context *c;
	int n;

	if (!list)
		list = ibv_get_device_list(&n);
	CHECK(list);
	c = ibv_open_device(list[index]);
	CHECK(c);
	return c;
}

static void devices(const char *n)
{
	CHECK(!setenv("VERBENA_DEVICES", n, 1));
}

static void named(const char *first, const char *const names[DEVICES])
{
	pid_t pid = kit_fork();
	char path[64];
	int n;

	if (pid) {
		CHECK_EQ(kit_reap(pid), 0);
		return;
	}
	devices("3");
	if (first)
		CHECK(!setenv("VERBENA_DEVICE", first, 1));
	list = ibv_get_device_list(&n);
	CHECK(list && n == DEVICES && !list[n]);
	for (int i = 0; i < n; i++) {
		CHECK(!strcmp(ibv_get_device_name(list[i]), names[i]), "%s", ibv_get_device_name(list[i]));
		snprintf(path, sizeof(path), "uverbs%d", i);
		CHECK(!strcmp(list[i]->dev_name, path));
		snprintf(path, sizeof(path), "/sys/class/infiniband/%s", names[i]);
		CHECK(!strcmp(list[i]->ibdev_path, path));
		CHECK(ibv_get_device_index(list[i]) == -1);
	}
	_exit(0);
}

static void names(void)
{
	named(NULL, (const char *const[]){"verbena0", "verbena1", "verbena2"});
	named("mlx5_9", (const char *const[]){"mlx5_9", "mlx5_10", "mlx5_11"});
	named("rdma", (const char *const[]){"rdma", "rdma1", "rdma2"});
	named("ib09", (const char *const[]){"ib09", "ib010", "ib011"});
}

/* Opening fails, as if the device were not there; no list hides it. */
static void wrong(const char *variable, const char *value, const char *words)
{
	pid_t pid = kit_fork();

	if (pid) {
		CHECK(!kit_reap(pid), "%s=%s", variable, value);
		return;
	}
	kit_log_begin("info");
	CHECK(!setenv(variable, value, 1));
	list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && !list[1] && !strcmp(list[0]->name, "verbena0"));
	errno = 0;
	CHECK(!ibv_open_device(list[0]));
	CHECK_EQ(errno, EINVAL);
	KIT_LOG_SAYS("%s=%s is not a %s", variable, value, words);
	_exit(0);
}

static void wrong_settings(void)
{
	wrong("VERBENA_DEVICES", "0", "number from 1 to 16");
	wrong("VERBENA_DEVICES", "17", "number from 1 to 16");
	wrong("VERBENA_DEVICES", "2x", "number from 1 to 16");
	wrong("VERBENA_DEVICE", "a b", "device name");
	wrong("VERBENA_DEVICE", "../x", "device name");
	wrong("VERBENA_LINK", "ib", "link layer");
}

static void take_identities(void)
{
	for (uint32_t i = 0; i < DEVICES; i++) {
		board->guid[i] = vb_devices_guid(i);
		board->lid[i] = vb_devices_lid(i);
	}
}

/* The same in all processes of a network namespace, and nowhere else. */
static void identities(void)
{
	struct ibv_device_attr attr;
	pid_t pid;

	devices("3");
	pid = kit_fork();
	if (!pid) { /* one that has fewer */
		devices("2");
		take_identities();
		_exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
	for (int i = 0; i < DEVICES; i++) {
		struct ibv_context *c = open_one(i);

		CHECK(i == 2 || ibv_get_device_guid(list[i]) == board->guid[i], "of %d", i);
		board->guid[i] = ibv_get_device_guid(list[i]);
		CHECK(!ibv_query_device(c, &attr) && attr.node_guid == board->guid[i]);
		CHECK(vb_devices_lid((uint32_t)i) == board->lid[i] && board->lid[i]);
		for (int k = 0; k < i; k++)
			CHECK(board->guid[k] != board->guid[i] && board->lid[k] != board->lid[i]);
	}
}

/* Another namespace, another identity. */
static void elsewhere(void)
{
	pid_t pid = kit_fork();

	if (!pid) {
		kit_net_begin();
		take_identities();
		_exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
	CHECK(vb_devices_guid(0) != board->guid[0]);
}

/* The same image and network namespace, another boot: what hosts that were cloned differ in.  (Nobody else
 * sees the file that this process has in the place of the kernel's.) */
static void another_boot(void)
{
	static const char file[] = "/proc/sys/kernel/random/boot_id", text[] = "00000000-cloned\n";
	__be64 guid;
	pid_t pid;

	devices("1");
	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid) {
		char path[] = "/tmp/verbena-boot-XXXXXX";
		int fd = mkstemp(path), err;

		CHECK(fd >= 0 && write(fd, text, sizeof(text) - 1) == sizeof(text) - 1);
		err = unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		      mount(path, file, NULL, MS_BIND, NULL);
		CHECK(!unlink(path));
		if (err) {
			fprintf(stderr, "SKIP: nothing can be mounted over %s\n", file);
			_exit(0);
		}
		board->guid[0] = vb_devices_guid(0);
		atomic_store(&board->step, 1);
		_exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
	guid = vb_devices_guid(0);
	CHECK(!atomic_load(&board->step) || board->guid[0] != guid);
}

static const char *text_of(const uint8_t gid[16])
{
	static char text[INET6_ADDRSTRLEN];

	return inet_ntop(AF_INET6, gid, text, sizeof(text));
}

static void has(int index, const char *address)
{
	struct ibv_context *c = open_one(index);
	union ibv_gid gid;
	char want[64];

	snprintf(want, sizeof(want), "::ffff:%s", address);
	CHECK(!ibv_query_gid(c, 1, 0, &gid));
	CHECK(!strcmp(text_of(gid.raw), want), "device %d has %s", index, text_of(gid.raw));
	CHECK(!ibv_close_device(c));
}

static void belongs(const char *address, int index)
{
	uint8_t gid[16] = {[10] = 0xff, [11] = 0xff};

	CHECK(inet_pton(AF_INET, address, gid + 12) == 1);
	CHECK(vb_devices_of(gid) == index, "%s belongs to %d", address, vb_devices_of(gid));
}

static void addresses(void)
{
	kit_net_begin();
	devices("3");
	kit_net_make("v0");
	kit_net_make("v1");
	kit_net_make("v2");
	kit_net_address("v0", "10.77.0.1", true);
	kit_net_set("v0", true);
	kit_net_address("v1", "10.77.1.1", true);
	kit_net_address("v1", "10.77.11.1", true); /* down: it does not count, but is this host's */
	kit_net_address("v2", "10.77.2.1", true);
	kit_net_set("v2", true);
	has(0, "10.77.0.1");
	has(1, "10.77.2.1");
	has(2, "127.0.0.3");
	belongs("10.77.0.1", 0);
	belongs("10.77.2.1", 1);
	belongs("10.77.11.1", 0); /* its interface is no device's */
	kit_net_address("lo", "10.77.5.5", true);
	vb_devices_read();
	belongs("10.77.5.5", 2); /* lo is that of 127.0.0.3 */
	belongs("127.0.0.1", 0);
	belongs("127.0.0.2", 1);
	belongs("127.9.9.9", 0);
	belongs("10.77.9.9", -1);
}

/* A SEND and a WRITE each way, with bytes compared. */
static void exchange(struct kit_end *from, struct kit_end *to)
{
	struct ibv_wc wc;

	memset(from->buf, 0x5a, 64);
	memset(to->buf, 0, 128);
	CHECK(!kit_recv(to, 1, 0, 64) && !kit_post(from, IBV_WR_SEND, 2, 0, 64, NULL, 0));
	CHECK(!kit_post(from, IBV_WR_RDMA_WRITE, 3, 0, 64, &to->card, 64));
	for (int i = 0; i < 2; i++) {
		wc = kit_wait(from, 20);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	}
	wc = kit_wait(to, 20);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK(wc.byte_len == 64);
	for (int i = 0; i < 128; i++)
		CHECK(to->buf[i] == 0x5a, "byte %d", i);
}

static void within_a_process(void)
{
	struct kit_end e[DEVICES];

	devices("3");
	for (int i = 0; i < DEVICES; i++)
		kit_end_open(&e[i], ibv_alloc_pd(open_one(i)), 8, 256);
	CHECK(e[0].qp->context != e[1].qp->context && e[0].card.qpn >> 12 != e[1].card.qpn >> 12);
	for (int i = 0; i < DEVICES; i++) {
		struct kit_end a, b;

		kit_end_open(&a, e[i].mr->pd, 8, 256);
		kit_end_open(&b, e[(i + 1) % DEVICES].mr->pd, 8, 256);
		kit_connect(&a, &b.card);
		kit_connect(&b, &a.card);
		exchange(&a, &b);
		exchange(&b, &a);
		kit_end_close(&a);
		kit_end_close(&b);
	}
	for (int i = 0; i < DEVICES; i++) {
		struct ibv_context *c = e[i].qp->context;
		struct ibv_pd *pd = e[i].mr->pd;

		kit_end_close(&e[i]);
		CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(c));
	}
}

/* Device 2 of one process and device 1 of another. */
static void between_processes(void)
{
	struct kit_end e;
	int me;
	pid_t pid;

	devices("3");
	atomic_store(&board->step, 0);
	pid = kit_fork();
	me = !pid;
	kit_end_open(&e, ibv_alloc_pd(open_one(me ? 2 : 1)), 8, 256);
	board->card[me] = e.card;
	atomic_fetch_add(&board->step, 1);
	kit_until(&board->step, 2);
	kit_connect(&e, &board->card[!me]);
	if (me) {
		CHECK(!kit_recv(&e, 1, 0, 64));
		atomic_fetch_add(&board->step, 1);
		CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_SUCCESS);
		CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 2, 0, 64, &board->card[0], 128));
		CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_SUCCESS);
		_exit(0);
	}
	kit_until(&board->step, 3);
	memset(e.buf, 0xa5, 64);
	CHECK(!kit_post(&e, IBV_WR_SEND, 2, 0, 64, NULL, 0));
	CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_SUCCESS);
	CHECK_EQ(kit_reap(pid), 0);
	for (int i = 128; i < 192; i++)
		CHECK(e.buf[i] == 0xa5, "byte %d", i);
}

/* An import is of the device that was opened, if this process has so many. */
static void imported(void)
{
	struct ibv_context *c, *i;

	devices("2");
	c = open_one(1);
	i = ibv_import_device(fcntl(c->cmd_fd, F_DUPFD_CLOEXEC, 3));
	CHECK(i && i->device == list[1] && vb_context(i)->adapter == vb_context(c)->adapter);
	CHECK(!ibv_close_device(i) && !ibv_close_device(c));
}

static void imported_by_one_that_has_fewer(void)
{
	int pair[2], fd;
	pid_t pid;

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid) {
		devices("2");
		kit_fd_send(pair[1], open_one(1)->cmd_fd);
		kit_until(&board->step, 1);
		_exit(0);
	}
	kit_log_begin("info");
	fd = kit_fd_receive(pair[0]);
	errno = 0;
	CHECK(fd >= 0 && !ibv_import_device(fd));
	CHECK_EQ(errno, ENODEV);
	KIT_LOG_SAYS("the descriptor is of device 2 of process %d, but this process has 1 device", pid);
	atomic_store(&board->step, 1);
	CHECK_EQ(kit_reap(pid), 0);
}

static void infiniband(void)
{
	CHECK(!setenv("VERBENA_LINK", "infiniband", 1));
}

/* What a port says of itself agrees, whoever asks. */
static void a_port_of_infiniband(void)
{
	static const uint8_t prefix[8] = {0xfe, 0x80};
	struct ibv_gid_entry entry, table[8];
	struct ibv_port_attr a;
	union ibv_gid gid;
	__be64 guid;

	infiniband();
	devices("2");
	for (int i = 0; i < 2; i++) {
		struct ibv_context *c = open_one(i);

		CHECK(!ibv_query_port(c, 1, &a) && a.link_layer == IBV_LINK_LAYER_INFINIBAND);
		CHECK(a.lid == vb_devices_lid((uint32_t)i) && a.lid && a.lid < 0xc000 && !a.lmc && a.sm_lid &&
		      a.sm_lid != a.lid && !(a.flags & 1) && a.gid_tbl_len == 8);
		CHECK(!ibv_query_gid(c, 1, 0, &gid) && !memcmp(gid.raw, prefix, 8));
		guid = ibv_get_device_guid(c->device);
		CHECK(!memcmp(gid.raw + 8, &guid, 8));
		CHECK(!ibv_query_gid_ex(c, 1, 0, &entry, 0) && entry.gid_type == IBV_GID_TYPE_IB &&
		      !memcmp(&entry.gid, &gid, 16));
		CHECK(ibv_query_gid_table(c, table, 8, 0) == 1);
		CHECK(ibv_query_gid(c, 1, 8, &gid) == -1);
		CHECK_EQ(errno, EINVAL);
		CHECK(!ibv_close_device(c));
	}
}

/* A LID is enough, and nothing else is asked for. */
static void by_lid(void)
{
	struct kit_end a, b;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr got;

	infiniband();
	devices("2");
	kit_end_open(&a, ibv_alloc_pd(open_one(0)), 8, 256);
	kit_end_open(&b, ibv_alloc_pd(open_one(1)), 8, 256);
	memset(&a.card.gid, 0, 16);
	memset(&b.card.gid, 0, 16);
	kit_connect(&a, &b.card);
	kit_connect(&b, &a.card);
	CHECK(!ibv_query_qp(a.qp, &got, IBV_QP_AV, &init) && !got.ah_attr.is_global &&
	      got.ah_attr.dlid == b.card.lid);
	exchange(&a, &b);
	exchange(&b, &a);
}

enum { GRH = 40 };

/* A datagram of len bytes, up to 200; what came with it. */
static struct ibv_wc datagram(struct kit_end *from, struct kit_end *to, struct ibv_ah *ah, uint32_t qpn,
			      uint32_t len)
{
	struct ibv_wc wc;

	memset(from->buf, 0x33, len);
	memset(to->buf, 0xee, 256);
	CHECK(ah && !kit_recv(to, 9, 0, GRH + 200) && !kit_datagram(from, ah, qpn, 1, 0, len));
	kit_expect(from, IBV_WC_SEND);
	wc = kit_expect(to, IBV_WC_RECV);
	CHECK_EQ(wc.byte_len, GRH + len);
	CHECK(wc.src_qp == from->card.qpn && wc.slid == from->card.lid);
	CHECK(!wc.pkey_index && !wc.dlid_path_bits);
	for (uint32_t i = GRH; i < GRH + len; i++)
		CHECK(to->buf[i] == 0x33, "byte %u", i);
	CHECK(to->buf[GRH + len] == 0xee && !ibv_destroy_ah(ah));
	return wc;
}

/* InfiniBand's own header, which counts what follows: BTH, DETH, padded payload, checksum. */
static void is_global(const uint8_t *grh, uint32_t len, const union ibv_gid *from, const union ibv_gid *to)
{
	CHECK(grh[0] >> 4 == 6 && grh[4] == 0 && grh[6] == 0x1b);
	CHECK_EQ(grh[5], 12 + 8 + (len + 3) / 4 * 4 + 4);
	CHECK(!memcmp(grh + 8, from, 16) && !memcmp(grh + 24, to, 16));
}

/* All that an address handle says arrives: in the header, in the completion, and in the address that the two
 * make (rule 24).  Without a GRH that is the service level. */
static void address_arrives(struct kit_end *a, struct kit_end *b, struct ibv_ah_attr av, uint32_t len)
{
	struct ibv_ah_attr back;
	struct ibv_wc wc;

	wc = datagram(a, b, ibv_create_ah(a->mr->pd, &av), b->card.qpn, len);
	CHECK_EQ(wc.wc_flags, (av.is_global ? IBV_WC_GRH : 0u));
	CHECK_EQ(wc.sl, av.sl);
	for (int i = 0; i < GRH && !av.is_global; i++)
		CHECK(b->buf[i] == 0xee, "byte %d", i);
	if (av.is_global) {
		is_global(b->buf, len, &a->card.gid, &b->card.gid);
		CHECK_EQ(b->buf[7], av.grh.hop_limit);
	}
	CHECK(!ibv_init_ah_from_wc(b->qp->context, 1, &wc, (struct ibv_grh *)(void *)b->buf, &back));
	CHECK_EQ(back.dlid, a->card.lid);
	CHECK_EQ(back.is_global, av.is_global);
	CHECK_EQ(back.sl, av.sl);
	CHECK_EQ(back.grh.hop_limit, av.grh.hop_limit);
	CHECK_EQ(back.grh.traffic_class, av.grh.traffic_class);
	CHECK_EQ(back.grh.flow_label, av.grh.flow_label);
	datagram(b, a, ibv_create_ah(b->mr->pd, &back), wc.src_qp, len);
}

/* By the LID alone a datagram has no header, and the place of it stays as it was; with is_global it has one.
 * What is told of it leads back, by the LID that it came from (rule 24). */
static void datagrams_by_lid(void)
{
	static const uint32_t lens[] = {8, 33, 100}; /* beside its header, and apart */
	struct kit_end a, b;

	infiniband();
	devices("2");
	kit_end_open_as(&a, ibv_alloc_pd(open_one(0)), 8, 512, IBV_QPT_UD);
	kit_end_open_as(&b, ibv_alloc_pd(open_one(1)), 8, 512, IBV_QPT_UD);
	for (unsigned i = 0; i < 3; i++)
		for (uint8_t sl = 0; sl < 16; sl += 5) {
			struct ibv_ah_attr av = {.dlid = b.card.lid, .sl = sl, .port_num = 1};

			address_arrives(&a, &b, av, lens[i]);
			av.is_global = 1;
			av.grh = (struct ibv_global_route){.dgid = b.card.gid,
							   .flow_label = 0xfedcb,
							   .traffic_class = 0xa5,
							   .hop_limit = (uint8_t)(3 + 16 * sl)};
			address_arrives(&a, &b, av, lens[i]);
		}
}

/* A group has a LID of its own there. */
static void a_group_of_infiniband(void)
{
	union ibv_gid group = {.raw = {0xff, 0x1e, [15] = 7}};
	pid_t pid = getpid();
	struct ibv_ah_attr av = {.dlid = 0xc001, .is_global = 1, .port_num = 1, .sl = 9, .grh.hop_limit = 17};
	struct kit_end a, b;
	struct ibv_wc wc;

	infiniband();
	kit_log_begin("info");
	memcpy(group.raw + 4, &pid, sizeof(pid));
	kit_end_open_as(&a, ibv_alloc_pd(open_one(0)), 8, 512, IBV_QPT_UD);
	kit_end_open_as(&b, a.mr->pd, 8, 512, IBV_QPT_UD);
	CHECK(ibv_attach_mcast(b.qp, &group, 0xbfff) == EINVAL);
	KIT_LOG_SAYS("LID 0xbfff is not a multicast LID, which are 0xc000 to 0xfffe");
	CHECK(ibv_attach_mcast(b.qp, &group, 0xffff) == EINVAL);
	CHECK(!ibv_attach_mcast(b.qp, &group, 0xc001));
	av.grh.dgid = group;
	for (uint32_t len = 4; len < 200; len += 96) {
		wc = datagram(&a, &b, ibv_create_ah(a.mr->pd, &av), 0xffffff, len);
		CHECK_EQ(wc.wc_flags, IBV_WC_GRH);
		CHECK_EQ(wc.sl, 9);
		is_global(b.buf, len, &a.card.gid, &group);
		CHECK_EQ(b.buf[7], 17);
	}
	CHECK(ibv_detach_mcast(b.qp, &group, 0xc002) == EINVAL);
	CHECK(!ibv_detach_mcast(b.qp, &group, 0xc001));
}

static void a_wrong_lid(void)
{
	static const struct {
		uint16_t lid;
		const char *words;
	} wrongs[] = {
	    {0xbff0 - 32, "no port of this network namespace has the LID in the path (dlid 0x%x), and"},
	    {0, "the LID in the path (dlid 0x%x); 0 is the LID of an Ethernet port"}};

	infiniband();
	kit_log_begin("info");
	for (int i = 0; i < 2; i++) {
		struct kit_card far;
		struct kit_end e;
		char words[200];
		uint16_t lid = wrongs[i].lid;
		struct ibv_ah *ah;

		kit_end_open(&e, ibv_alloc_pd(open_one(0)), 8, 256);
		if (lid / VB_MAX_DEVICES == e.card.lid / VB_MAX_DEVICES)
			lid = (uint16_t)(lid - VB_MAX_DEVICES);
		far = e.card;
		far.lid = lid;
		kit_connect_with(&e, &far, 10, 1);
		CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, NULL, 0));
		CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_RETRY_EXC_ERR);
		snprintf(words, sizeof(words), wrongs[i].words, lid);
		kit_log_await(words);
		kit_end_close(&e);
		kit_log_skip();
		kit_end_open_as(&e, ibv_alloc_pd(open_one(0)), 8, 256, IBV_QPT_UD);
		ah = ibv_create_ah(e.qp->pd, &(struct ibv_ah_attr){.dlid = lid, .port_num = 1});
		CHECK(ah && !kit_datagram(&e, ah, e.card.qpn, 1, 0, 8));
		kit_expect(&e, IBV_WC_SEND);
		kit_log_await(words);
	}
}

/* What an Ethernet port's process tells is understood, if not usable, on InfiniBand. */
static void an_ip_address_on_infiniband(void)
{
	struct ibv_ah_attr av = {
	    .is_global = 1, .port_num = 1, .grh.dgid.raw = {[10] = 0xff, 0xff, 127, 0, 0, 1}};
	struct ibv_pd *pd;

	infiniband();
	kit_log_begin("info");
	pd = ibv_alloc_pd(open_one(0));
	CHECK(!ibv_create_ah(pd, &av));
	CHECK_EQ(errno, EINVAL);
	KIT_LOG_SAYS("the address has an IPv4 GID and no LID (dlid 0): the peer's port is Ethernet");
	av.dlid = 1;
	CHECK(ibv_create_ah(pd, &av));
	memcpy(av.grh.dgid.raw + 12, (uint8_t[]){239, 1, 2, 3}, 4);
	av.dlid = 0; /* a group's address says where it leads all the same */
	CHECK(ibv_create_ah(pd, &av));
}

/* A process whose ports are of the other kind refuses, and says so at the end that asked. */
static void refused_by(const char *there, const char *here, const char *words)
{
	struct kit_card far;
	struct kit_end e;
	pid_t pid, child = kit_fork();

	if (child) {
		CHECK(!kit_reap(child), "%s refused by %s", here, there);
		return;
	}
	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid) {
		CHECK(!setenv("VERBENA_LINK", there, 1));
		kit_end_open(&e, ibv_alloc_pd(open_one(0)), 8, 64);
		board->card[1] = e.card;
		atomic_store(&board->step, 1);
		kit_until(&board->step, 2);
		_exit(0);
	}
	CHECK(!setenv("VERBENA_LINK", here, 1));
	kit_log_begin("info");
	kit_until(&board->step, 1);
	kit_end_open(&e, ibv_alloc_pd(open_one(0)), 8, 64);
	far = board->card[1];
	if (e.card.lid)
		far.lid = e.card.lid; /* with its own, which is the right kind of address */
	else
		far.lid = 0; /* by the GID of an InfiniBand port, as that end told it */
	kit_connect_with(&e, &far, 12, 2);
	CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, NULL, 0));
	CHECK_EQ(kit_wait(&e, 30).status, IBV_WC_RETRY_EXC_ERR);
	KIT_LOG_SAYS("process %d, which owns that number, refuses the connection: %s", pid, words);
	atomic_store(&board->step, 2);
	CHECK_EQ(kit_reap(pid), 0);
	_exit(0);
}

static void link_layers_refuse_each_other(void)
{
	refused_by("infiniband", "ethernet",
		   "its ports are InfiniBand, and this process's ports are Ethernet");
	refused_by("ethernet", "infiniband",
		   "its ports are Ethernet, and this process's ports are InfiniBand");
}

/* What cannot be used as an address is refused at the call, by each link layer as adapters of it do. */
static void addresses_of_each_link(void)
{
	struct ibv_qp_attr a = {
	    .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .ah_attr = {.port_num = 1}};
	const int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	struct kit_end e;

	infiniband();
	kit_end_open(&e, ibv_alloc_pd(open_one(0)), 8, 64);
	a.ah_attr.dlid = e.card.lid;
	a.ah_attr.is_global = 1;
	a.ah_attr.grh.sgid_index = 1; /* empty */
	CHECK(ibv_modify_qp(e.qp, &a, mask) == ENODATA);
	a.ah_attr.grh.sgid_index = 8;
	CHECK(ibv_modify_qp(e.qp, &a, mask) == EINVAL);
	a.ah_attr.grh.sgid_index = 0;
	a.ah_attr.sl = 16;
	CHECK(ibv_modify_qp(e.qp, &a, mask) == EINVAL);
	a.ah_attr.sl = 15;
	a.ah_attr.grh.dgid = e.card.gid;
	CHECK(!ibv_modify_qp(e.qp, &a, mask));
}

/* What an InfiniBand port's process tells is understood, if not usable, on Ethernet. */
static void a_lid_on_ethernet(void)
{
	struct ibv_qp_attr a = {
	    .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .ah_attr = {.port_num = 1, .dlid = 0x1234}};
	struct kit_end e;

	kit_log_begin("info");
	kit_end_open(&e, ibv_alloc_pd(open_one(0)), 8, 64);
	CHECK(ibv_modify_qp(e.qp, &a,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == EINVAL);
	KIT_LOG_SAYS("the address has a LID (dlid 0x1234) and no GID: the peer's port is InfiniBand");
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "names", .run = names},
	    {.name = "wrong", .run = wrong_settings},
	    {.name = "identities", .run = identities},
	    {.name = "another boot", .run = another_boot},
	    {.name = "within", .run = within_a_process, .clean = true},
	    {.name = "between", .run = between_processes},
	    {.name = "imported", .run = imported},
	    {.name = "imported-fewer", .run = imported_by_one_that_has_fewer},
	    {.name = "port", .run = a_port_of_infiniband},
	    {.name = "lid", .run = by_lid},
	    {.name = "datagrams", .run = datagrams_by_lid},
	    {.name = "group", .run = a_group_of_infiniband},
	    {.name = "wrong-lid", .run = a_wrong_lid},
	    {.name = "refused", .run = link_layers_refuse_each_other},
	    {.name = "vectors", .run = addresses_of_each_link},
	    {.name = "ethernet-lid", .run = a_lid_on_ethernet},
	    {.name = "infiniband-ip", .run = an_ip_address_on_infiniband},
	};
	static const struct kit_case apart[] = {
	    {.name = "elsewhere", .run = elsewhere},
	    {.name = "addresses", .run = addresses},
	};

	board = kit_shared(sizeof(*board));
	KIT_CASES(cases, 120);
	if (!kit_net_can())
		return 0; /* the rest runs */
	KIT_CASES(apart, 120);
	return 0;
}
