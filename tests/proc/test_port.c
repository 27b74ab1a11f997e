/* The port follows the interface: addresses that come and go, an interface that goes down and returns, each
 * in a network namespace of the case's own, and programs hear of it.
 *
 *     proc-port [CASE]     default: all */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "kit.h"
#include "net.h"

static struct ibv_context *ctx;

static void expect(enum ibv_event_type type)
{
	struct ibv_async_event ev;

	CHECK(!ibv_get_async_event(ctx, &ev));
	CHECK(ev.event_type == type, "%s instead of %s", ibv_event_type_str(ev.event_type),
	      ibv_event_type_str(type));
	CHECK(ev.element.port_num == 1);
	ibv_ack_async_event(&ev);
}

static void expect_none(void)
{
	int flags = fcntl(ctx->async_fd, F_GETFL);
	struct ibv_async_event ev;

	CHECK(!fcntl(ctx->async_fd, F_SETFL, flags | O_NONBLOCK));
	CHECK(ibv_get_async_event(ctx, &ev) == -1 && errno == EAGAIN, "%s",
	      ibv_event_type_str(ev.event_type));
	CHECK(!fcntl(ctx->async_fd, F_SETFL, flags));
}

static union ibv_gid gid_of(const char *address)
{
	union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};

	CHECK(inet_pton(AF_INET, address, gid.raw + 12) == 1);
	return gid;
}

static void shows(const char *address)
{
	union ibv_gid gid, want = gid_of(address);

	CHECK(!ibv_query_gid(ctx, 1, 0, &gid));
	CHECK(!memcmp(&gid, &want, sizeof(gid)), "%s is not GID 0", address);
}

static void is_up(bool up)
{
	struct ibv_port_attr a;

	CHECK(!ibv_query_port(ctx, 1, &a));
	CHECK(a.state == (up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN) && a.phys_state == (up ? 5 : 3),
	      "state %d, %d", a.state, a.phys_state);
}

static void begin(void)
{
	kit_net_begin();
	kit_net_make("v0");
	ctx = kit_open();
}

/* As begin(), with an address on v0 that the device shows. */
static void begin_at(const char *address)
{
	kit_net_begin();
	kit_net_make("v0");
	kit_net_address("v0", address, true);
	kit_net_set("v0", true);
	ctx = kit_open();
	shows(address);
	is_up(true);
}

static void an_address_comes_and_goes(void)
{
	begin();
	shows("127.0.0.1");
	kit_net_set("v0", true);
	kit_net_address("v0", "10.77.0.1", true);
	expect(IBV_EVENT_GID_CHANGE);
	shows("10.77.0.1");
	kit_net_address("v0", "10.77.0.1", false);
	expect(IBV_EVENT_GID_CHANGE);
	shows("127.0.0.1");
	is_up(true);
	expect_none();
}

/* One that the table has no room for leads to the device as well. */
static void a_second_address_is_told(void)
{
	begin_at("10.77.0.1");
	kit_net_address("v0", "10.77.0.2", true);
	expect(IBV_EVENT_GID_CHANGE);
	shows("10.77.0.1");
	kit_net_address("lo", "10.77.9.9", true);
	expect(IBV_EVENT_GID_CHANGE);
	kit_net_address("v0", "10.77.0.2", false);
	expect(IBV_EVENT_GID_CHANGE);
	expect_none();
}

static void the_interface_goes_down_and_returns(void)
{
	begin_at("10.77.0.1");
	for (int i = 0; i < 3; i++) {
		kit_net_set("v0", false);
		expect(IBV_EVENT_PORT_ERR);
		is_up(false);
		shows("10.77.0.1");
		kit_net_set("v0", true);
		expect(IBV_EVENT_PORT_ACTIVE);
		is_up(true);
	}
	expect_none();
}

/* However short. */
static void a_short_absence_is_told(void)
{
	begin_at("10.77.0.1");
	for (int i = 0; i < 50; i++) {
		kit_net_set("v0", false);
		kit_net_set("v0", true);
		expect(IBV_EVENT_PORT_ERR);
		expect(IBV_EVENT_PORT_ACTIVE);
	}
	is_up(true);
}

/* Without any other interface the device stands for lo, as long as that is up at all. */
static void lo_goes_down_and_returns(void)
{
	begin();
	kit_net_set("lo", false);
	expect(IBV_EVENT_PORT_ERR);
	is_up(false);
	kit_net_set("lo", true);
	expect(IBV_EVENT_PORT_ACTIVE);
	is_up(true);
}

static void lo_never_was_up(void)
{
	CHECK(kit_own_network());
	ctx = kit_open();
	is_up(true);
	shows("127.0.0.1");
	expect_none();
}

/* What the device has shown leads to it as long as it is open: who got it may only now connect. */
static void an_address_that_was_shown_still_leads_here(void)
{
	struct kit_end e;
	struct ibv_wc wc;

	begin_at("10.77.0.1");
	kit_end_open(&e, ibv_alloc_pd(ctx), 4, 64);
	kit_net_address("v0", "10.77.0.1", false);
	expect(IBV_EVENT_GID_CHANGE);
	shows("127.0.0.1");
	kit_connect_with(&e, &e.card, 12, 1); /* with itself, by the former address */
	CHECK(!kit_recv(&e, 1, 0, 64) && !kit_post(&e, IBV_WR_SEND, 2, 0, 8, NULL, 0));
	for (int i = 0; i < 2; i++) {
		wc = kit_wait(&e, 20);
		CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
	}
}

/* Every context hears of it, once. */
static void all_contexts_are_told(void)
{
	struct ibv_context *other;

	begin_at("10.77.0.1");
	other = ctx;
	ctx = kit_open();
	kit_net_set("v0", false);
	for (int i = 0; i < 2; i++) {
		expect(IBV_EVENT_PORT_ERR);
		expect_none();
		ctx = other;
	}
}

/* Of several devices each hears of its own interface only. */
static void each_device_hears_of_its_own(void)
{
	struct ibv_context *c[2];
	struct ibv_device **list;

	setenv("VERBENA_DEVICES", "2", 1);
	kit_net_begin();
	kit_net_make("v0");
	kit_net_make("v1");
	kit_net_address("v0", "10.77.0.1", true);
	kit_net_address("v1", "10.77.1.1", true);
	kit_net_set("v0", true);
	kit_net_set("v1", true);
	list = ibv_get_device_list(NULL);
	for (int i = 0; i < 2; i++) {
		c[i] = ibv_open_device(list[i]);
		CHECK(c[i]);
	}
	for (int i = 1; i >= 0; i--) {
		const char *name = i ? "v1" : "v0";

		ctx = c[i];
		shows(i ? "10.77.1.1" : "10.77.0.1");
		kit_net_set(name, false);
		expect(IBV_EVENT_PORT_ERR);
		if (i) { /* one more of the first would be the second device's: it would be the second of all
			  */
			kit_net_address(name, "10.77.1.2", true);
			expect(IBV_EVENT_GID_CHANGE);
		}
		kit_net_set(name, true);
		expect(IBV_EVENT_PORT_ACTIVE);
		is_up(true);
		expect_none();
		ctx = c[!i];
		expect_none();
		is_up(true);
	}
}

static void infiniband_has_no_addresses(void)
{
	union ibv_gid before, after;

	setenv("VERBENA_LINK", "infiniband", 1);
	kit_net_begin();
	kit_net_make("v0");
	kit_net_address("v0", "10.77.0.1", true);
	kit_net_set("v0", true);
	ctx = kit_open();
	CHECK(!ibv_query_gid(ctx, 1, 0, &before));
	kit_net_address("v0", "10.77.0.2", true);
	kit_net_set("v0", false);
	expect(IBV_EVENT_PORT_ERR);
	CHECK(!ibv_query_gid(ctx, 1, 0, &after) && !memcmp(&before, &after, sizeof(after)));
	kit_net_set("v0", true);
	expect(IBV_EVENT_PORT_ACTIVE);
	expect(IBV_EVENT_CLIENT_REREGISTER);
	expect_none();
}

/* The descriptor that watches goes with the device, in a forked child too. */
static void nothing_is_left_open(void)
{
	struct ibv_context *first;
	int before, open;
	pid_t pid;

	kit_net_begin();
	first = kit_open(); /* what is kept once */
	CHECK(!ibv_close_device(first));
	before = kit_descriptors();
	ctx = kit_open();
	open = kit_descriptors();
	CHECK(open - before == 8, "%d descriptors for a device", open - before);
	pid = kit_fork();
	if (!pid) {
		/* those of the context go only when it is closed */
		CHECK(!ibv_close_device(ctx) && kit_descriptors() <= before + 2, "%d, %d before",
		      kit_descriptors(), before);
		_exit(0);
	}
	CHECK(!kit_reap(pid));
	CHECK(!ibv_close_device(ctx) && kit_descriptors() == before);
}

/* Opens the device and closes the descriptor of its notices, in whose place a file of the program stands.
 * Returns it. */
static int begin_without_notices(void)
{
	int mine = memfd_create("mine", MFD_CLOEXEC), number = -1, family;
	socklen_t n = sizeof(family);

	begin();
	for (int fd = 3; fd < 64; fd++)
		if (!getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &n) && family == AF_NETLINK)
			number = fd;
	CHECK(mine >= 0 && number >= 0 && dup2(mine, number) == number);
	kit_net_set("v0", true);
	return number;
}

/* The program closes the descriptor of the notices, and has a file of its own there: that stays as it is, and
 * the device goes on without notices.  It looks for an address only when a request goes there. */
static void the_notices_are_closed(void)
{
	int number = begin_without_notices();
	struct stat before, after;
	struct kit_end e;

	CHECK(!fstat(number, &before));
	kit_end_open(&e, ibv_alloc_pd(ctx), 4, 64);
	e.card.gid = gid_of("10.77.0.1"); /* which is nowhere yet */
	kit_connect_with(&e, &e.card, 18, 7);
	CHECK(!kit_recv(&e, 1, 0, 64) && !kit_post(&e, IBV_WR_SEND, 2, 0, 8, NULL, 0));
	kit_net_address("v0", "10.77.0.1", true);
	for (int i = 0; i < 2; i++)
		CHECK(kit_wait(&e, 20).status == IBV_WC_SUCCESS);
	shows("127.0.0.1");
	expect_none();
	CHECK(!ibv_close_device(ctx));
	CHECK(!fstat(number, &after) && after.st_ino == before.st_ino && !after.st_size);
}

/* A request of UC does not wait for the address, so no timer runs for it; and its program makes no call in
 * between. */
static void uc_finds_an_address_without_notices(void)
{
	const struct timespec pause = {.tv_nsec = 20000000};
	double start = kit_now();
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	struct ibv_wc wc;
	struct kit_end e;

	begin_without_notices();
	kit_end_open_as(&e, ibv_alloc_pd(ctx), 64, 64, IBV_QPT_UC);
	sge = (struct ibv_sge){(uintptr_t)e.buf, 8, e.mr->lkey};
	e.buf[0] = 1;
	e.card.gid = gid_of("10.77.0.1");
	kit_connect(&e, &e.card);
	CHECK(!kit_recv(&e, 1, 32, 8) && !ibv_post_send(e.qp, &wr, &bad));
	kit_net_address("v0", "10.77.0.1", true);
	while (!atomic_load((_Atomic uint8_t *)&e.buf[32])) {
		CHECK(kit_now() - start < 20);
		nanosleep(&pause, NULL);
		wr.send_flags ^= IBV_SEND_SIGNALED;
		if (ibv_post_send(e.qp, &wr, &bad)) /* the queue is full */
			while (ibv_poll_cq(e.cq, 1, &wc))
				;
	}
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "comes", .run = an_address_comes_and_goes},
	    {.name = "second", .run = a_second_address_is_told},
	    {.name = "down", .run = the_interface_goes_down_and_returns},
	    {.name = "short", .run = a_short_absence_is_told},
	    {.name = "lo", .run = lo_goes_down_and_returns},
	    {.name = "never", .run = lo_never_was_up},
	    {.name = "shown", .run = an_address_that_was_shown_still_leads_here},
	    {.name = "contexts", .run = all_contexts_are_told},
	    {.name = "devices", .run = each_device_hears_of_its_own},
	    {.name = "infiniband", .run = infiniband_has_no_addresses},
	    {.name = "descriptors", .run = nothing_is_left_open},
	    {.name = "closed", .run = the_notices_are_closed},
	    {.name = "closed, UC", .run = uc_finds_an_address_without_notices},
	};

	if (!kit_net_can())
		return KIT_SKIP;
	KIT_CASES(cases, 60);
	return 0;
}
