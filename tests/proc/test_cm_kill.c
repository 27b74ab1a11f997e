/* A process that is killed in any state of the handshake: the other end has its event at once, nothing hangs,
 * and the port of a dead listener is free for another process.  A process that is stopped is waited for:
 * nothing is said of it before it goes on. */
#include "cm.h"

enum { SOON = 5 }; /* seconds; measured: below 20 ms, printed for each case */

static struct board {
	_Atomic int listening, there;
	_Atomic int go;
	uint16_t port;
} * board;

static struct rdma_event_channel *ch;
static struct rdma_cm_id *listener;

/* The victim has come to where it dies. */
static void stay(void)
{
	atomic_store(&board->there, 1);
	for (;;)
		pause();
}

static void listen_on(enum rdma_port_space ps)
{
	ch = kit_cm_channel();
	listener = kit_cm_listen_at(ch, ps, &board->port, 0);
	atomic_store(&board->listening, 1);
}

static struct rdma_cm_id *asked(void)
{
	struct rdma_cm_id *id = kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;

	kit_cm_qp(id);
	return id;
}

static struct rdma_cm_id *connecting(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	kit_until(&board->listening, 1);
	if (!ch)
		ch = kit_cm_channel();
	id = kit_cm_ready(ch, ps, board->port);
	kit_cm_connect(id);
	return id;
}

/* ---- what victims do; each stays at its end ---- */

static void listens(void)
{
	listen_on(RDMA_PS_TCP);
	stay();
}

static void listens_for_datagrams(void)
{
	listen_on(RDMA_PS_UDP);
	stay();
}

static void takes_the_request(void)
{
	listen_on(RDMA_PS_TCP);
	asked();
	stay();
}

static void takes_the_lookup(void)
{
	listen_on(RDMA_PS_UDP);
	asked();
	stay();
}

static void accepts(void)
{
	listen_on(RDMA_PS_TCP);
	kit_cm_accept(asked());
	stay();
}

static void is_established(void)
{
	listen_on(RDMA_PS_TCP);
	kit_cm_accept(asked());
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	stay();
}

static void hears_of_the_end(void)
{
	listen_on(RDMA_PS_TCP);
	kit_cm_accept(asked());
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	stay();
}

static void connects(void)
{
	connecting(RDMA_PS_TCP);
	stay();
}

static void looks_up(void)
{
	connecting(RDMA_PS_UDP);
	stay();
}

static void is_connected(void)
{
	connecting(RDMA_PS_TCP);
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	stay();
}

static void disconnects(void)
{
	struct rdma_cm_id *id = connecting(RDMA_PS_TCP);

	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	KIT_CM(rdma_disconnect(id));
	stay();
}

/* ---- what survivors do before and after ---- */

static struct rdma_cm_id *mine;

static void before_connect(void)
{
	mine = connecting(RDMA_PS_TCP);
}

static void before_lookup(void)
{
	mine = connecting(RDMA_PS_UDP);
}

static void before_established(void)
{
	before_connect();
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void before_disconnect(void)
{
	before_established();
	KIT_CM(rdma_disconnect(mine));
}

/* The answer waits in the channel, and nobody has taken it. */
static void before_answered(void)
{
	before_connect();
	CHECK(kit_cm_comes(ch, KIT_CM_PATIENCE));
}

static void before_response(void)
{
	kit_until(&board->listening, 1);
	ch = kit_cm_channel();
	mine = kit_cm_bare(ch, RDMA_PS_TCP, board->port);
	KIT_CM(rdma_connect(mine, &(struct rdma_conn_param){.qp_num = 0x123, .retry_count = 7}));
	kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
}

/* The request waits in the channel. */
static void at_listening(void)
{
	listen_on(RDMA_PS_TCP);
	CHECK(kit_cm_comes(ch, KIT_CM_PATIENCE));
}

static void at_listening_for_datagrams(void)
{
	listen_on(RDMA_PS_UDP);
	CHECK(kit_cm_comes(ch, KIT_CM_PATIENCE));
}

static void at_request(void)
{
	listen_on(RDMA_PS_TCP);
	mine = asked();
}

static void at_lookup(void)
{
	listen_on(RDMA_PS_UDP);
	mine = asked();
}

static void at_accept(void)
{
	at_request();
	kit_cm_accept(mine);
}

static void at_established(void)
{
	at_accept();
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void at_disconnect(void)
{
	at_established();
	KIT_CM(rdma_disconnect(mine));
}

static void at_the_end(void)
{
	at_established();
	kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
}

/* What the survivor is told, and what it can still do. */
static void is_in_error(void)
{
	struct ibv_qp_init_attr i;
	struct ibv_qp_attr a;

	CHECK(!ibv_query_qp(mine->qp, &a, IBV_QP_STATE, &i) && a.qp_state == IBV_QPS_ERR, "state %d",
	      a.qp_state);
}

static void is_told_of_the_end(void)
{
	KIT_CM(rdma_disconnect(mine));
	kit_cm_expect(ch, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
}

/* The request that came from the dead may be taken, and is past being accepted. */
static void accepts_too_late(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	double end = kit_now() + SOON;
	int mask;

	if (!mine)
		mine = asked();
	for (;;) { /* no event tells that it is known; but an id that was never connected grants nothing */
		KIT_CM(rdma_init_qp_attr(mine, &attr, &mask));
		if (!attr.qp_access_flags)
			break;
		CHECK(kit_now() < end);
		kit_nap(1);
	}
	KIT_CM_FAILS(rdma_accept(mine, NULL), EINVAL);
}

/* A lookup is an exchange, of whose other end nobody hears. */
static void answers_in_vain(void)
{
	if (!mine)
		mine = asked();
	kit_cm_accept(mine);
}

enum who { LISTENER, CLIENT };

static const struct death {
	const char *name;
	enum who who;
	void (*victim)(void);
	void (*before)(void); /* of the survivor */
	bool stopped;	      /* the victim is stopped before the survivor does anything */
	int event, status;    /* that the survivor gets; event -1: none */
	void (*after)(void);
} deaths[] = {
    /* clang-format off */
    {"before the request comes", LISTENER, listens, before_connect, true, RDMA_CM_EVENT_REJECTED, 28, is_in_error},
    {"before it takes the request", LISTENER, listens, before_connect, false, RDMA_CM_EVENT_REJECTED, 28, is_in_error},
    {"at the request", LISTENER, takes_the_request, before_connect, false, RDMA_CM_EVENT_REJECTED, 28, is_in_error},
    {"after its answer", LISTENER, accepts, before_answered, false, RDMA_CM_EVENT_CONNECT_ERROR, -EINVAL, NULL},
    {"after its answer, which was taken", LISTENER, accepts, before_response, false, RDMA_CM_EVENT_REJECTED, 28, NULL},
    {"established", LISTENER, is_established, before_established, false, RDMA_CM_EVENT_DISCONNECTED, 0,
     is_told_of_the_end},
    {"asked for the end, and silent", LISTENER, hears_of_the_end, before_disconnect, false,
     RDMA_CM_EVENT_DISCONNECTED, 0, NULL},
    {"before a lookup comes", LISTENER, listens_for_datagrams, before_lookup, true, RDMA_CM_EVENT_UNREACHABLE, 2, NULL},
    {"before it takes a lookup", LISTENER, listens_for_datagrams, before_lookup, false, RDMA_CM_EVENT_UNREACHABLE, 2,
     NULL},
    {"at a lookup", LISTENER, takes_the_lookup, before_lookup, false, RDMA_CM_EVENT_UNREACHABLE, 2, NULL},
    {"before its request is taken", CLIENT, connects, at_listening, false, -1, 0, accepts_too_late},
    {"its request taken", CLIENT, connects, at_request, false, -1, 0, accepts_too_late},
    {"before it says that it is ready", CLIENT, connects, at_accept, false, RDMA_CM_EVENT_REJECTED, 28, is_in_error},
    {"established", CLIENT, is_connected, at_established, false, RDMA_CM_EVENT_DISCONNECTED, 0, is_told_of_the_end},
    {"asked for the end, and silent", CLIENT, is_connected, at_disconnect, false, RDMA_CM_EVENT_DISCONNECTED, 0, NULL},
    {"disconnecting", CLIENT, disconnects, at_the_end, false, -1, 0, is_told_of_the_end},
    {"before its lookup is taken", CLIENT, looks_up, at_listening_for_datagrams, false, -1, 0, answers_in_vain},
    {"at its lookup", CLIENT, looks_up, at_lookup, false, -1, 0, answers_in_vain},
    /* clang-format on */
};

enum { DEATHS = sizeof(deaths) / sizeof(deaths[0]) };

/* Another process takes the dead one's port. */
static void the_port_is_free(void)
{
	uint16_t port = board->port;
	pid_t pid = kit_fork();

	if (!pid) {
		kit_cm_listen(kit_cm_channel(), &port);
		_exit(0);
	}
	CHECK(!kit_reap(pid), "port %u", port);
}

static void survive(const struct death *d, pid_t victim)
{
	double t;

	kit_log_begin("warn");
	if (d->stopped) {
		kit_until(&board->there, 1);
		kit_stop(victim);
	}
	d->before();
	kit_until(&board->there, 1);
	if (d->event >= 0 && d->before != before_answered)
		CHECK(!kit_cm_comes(ch, 0.05), "an event before anything has happened");
	t = kit_now();
	CHECK(!kill(victim, SIGKILL));
	CHECK(WIFSIGNALED(kit_reap(victim)));
	if (d->who == LISTENER)
		the_port_is_free();
	if (d->event >= 0) {
		kit_cm_expect(ch, (enum rdma_cm_event_type)d->event, d->status);
		t = kit_now() - t;
		printf("  %.0f ms\n", t * 1e3);
		CHECK(t < SOON, "%.1f s", t);
	}
	if (d->event == RDMA_CM_EVENT_REJECTED || d->event == RDMA_CM_EVENT_UNREACHABLE) {
		KIT_LOG_SAYS(": process %d", victim); /* the status alone would have it a program's wish */
		KIT_LOG_SAYS("status %d: the %s", d->status,
			     d->before == before_response || d->before == at_accept
				 ? "connection was not completed"
				 : "request was not answered");
	}
	if (d->after)
		d->after();
	if (mine)
		kit_cm_end(mine);
	if (listener)
		KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
}

static void die(const struct death *d)
{
	pid_t victim;

	alarm(60);
	board = kit_shared(sizeof *board);
	victim = kit_fork();
	if (!victim) {
		d->victim();
		_exit(1);
	}
	survive(d, victim);
	exit(0);
}

/* ---- who is stopped is waited for ---- */

static double pause_of(void)
{
	return getenv("VERBENA_SOAK") ? 10 : 1; /* with 10 s all is said again */
}

static void stands_still(pid_t other)
{
	kit_stop(other);
}

static void goes_on(pid_t other)
{
	CHECK(!kit_cm_comes(ch, pause_of()), "an event while the other process stands still");
	kit_cont(other);
	atomic_store(&board->go, 2);
}

static pid_t begin(void (*other)(void))
{
	pid_t pid;

	board = kit_shared(sizeof *board);
	pid = kit_fork();
	if (!pid) {
		other();
		_exit(0);
	}
	return pid;
}

static void takes_when_told(void)
{
	struct rdma_cm_id *id;

	listen_on(RDMA_PS_TCP);
	kit_until(&board->go, 1);
	id = kit_cm_take(ch);
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	KIT_CM(rdma_disconnect(id));
	kit_cm_expect(ch, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
	kit_cm_end(id);
}

static void end_well(pid_t other)
{
	KIT_CM(rdma_disconnect(mine));
	kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	kit_cm_expect(ch, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
	kit_cm_end(mine);
	rdma_destroy_event_channel(ch);
	CHECK(!kit_reap(other));
}

static void a_listener_is_stopped_before_a_connect(void)
{
	pid_t other = begin(takes_when_told);

	kit_until(&board->listening, 1);
	stands_still(other);
	before_connect();
	goes_on(other);
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	end_well(other);
}

static void a_far_end_is_stopped_when_established(void)
{
	pid_t other = begin(takes_when_told);

	atomic_store(&board->go, 1);
	before_established();
	stands_still(other);
	goes_on(other);
	end_well(other);
}

static void a_far_end_is_stopped_before_a_disconnect(void)
{
	pid_t other = begin(takes_when_told);

	atomic_store(&board->go, 1);
	before_established();
	stands_still(other);
	KIT_CM(rdma_disconnect(mine));
	goes_on(other);
	kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	kit_cm_expect(ch, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
	kit_cm_end(mine);
	rdma_destroy_event_channel(ch);
	CHECK(!kit_reap(other));
}

static void looks_up_when_told(void)
{
	kit_until(&board->go, 1);
	mine = connecting(RDMA_PS_UDP);
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	kit_until(&board->go, 2); /* has it been seen to go on? */
	kit_cm_end(mine);
}

static void a_client_is_stopped_at_its_lookup(void)
{
	pid_t other = begin(looks_up_when_told);

	listen_on(RDMA_PS_UDP);
	atomic_store(&board->go, 1);
	mine = asked();
	stands_still(other);
	kit_cm_accept(mine);
	goes_on(other);
	CHECK(!kit_reap(other));
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {"a listener is stopped before a connect", a_listener_is_stopped_before_a_connect, false, true},
	    {"a far end is stopped when established", a_far_end_is_stopped_when_established, false, true},
	    {"a far end is stopped before a disconnect", a_far_end_is_stopped_before_a_disconnect, false,
	     true},
	    {"a client is stopped at its lookup", a_client_is_stopped_at_its_lookup, false, true},
	};

	for (int i = 0; i < DEATHS; i++) {
		const struct death *d = &deaths[i];
		pid_t pid;

		if (!kit_asked(d->name, argc, argv))
			continue;
		printf("%s dies %s\n", d->who == LISTENER ? "the listener" : "the client", d->name);
		pid = kit_fork();
		if (!pid)
			die(d);
		CHECK(!kit_reap(pid), "%s", d->name);
	}
	KIT_CASES(cases, 90);
	return 0;
}
