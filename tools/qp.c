/* verbena qp: the queue pairs of a running process: state, PSNs, how full their queues are, who is at the
 * other end, and what they have counted. */
#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "counts.h"
#include "host/segment.h"
#include "iba/grh.h"
#include "inside.h"
#include "peek.h"
#include "tools.h"

/* Digits in groups of three.  Returns buf. */
static const char *grouped(char buf[32], uint64_t v)
{
	char plain[24];
	int n = snprintf(plain, sizeof plain, "%" PRIu64, v), at = 0;

	for (int i = 0; i < n; i++) {
		if (i && (n - i) % 3 == 0)
			buf[at++] = ',';
		buf[at++] = plain[i];
	}
	buf[at] = 0;
	return buf;
}

static void print_way(const char *what, uint64_t messages, uint64_t bytes)
{
	char a[32], b[32];

	printf("    %-9s %s message%s, %s byte%s", what, grouped(a, messages), messages == 1 ? "" : "s",
	       grouped(b, bytes), bytes == 1 ? "" : "s");
}

/* What the peer did here by itself, which this process does not count. */
static void print_placed(const struct vb_qp_row *r)
{
	const uint64_t *c = r->peer_traffic.count;
	char a[32], b[32];

	if (!r->peer || !(c[VB_TRAFFIC_PLACED_OUT] | c[VB_TRAFFIC_PLACED_IN]))
		return;
	printf("    placed by the peer: %s bytes of WRITEs and atomics, %s bytes of READs\n",
	       grouped(a, c[VB_TRAFFIC_PLACED_OUT_BYTES]), grouped(b, c[VB_TRAFFIC_PLACED_IN_BYTES]));
}

/* How full a queue is. */
struct fill {
	uint32_t of;	   /* what it may hold; 0: there is no such queue */
	uint32_t open;	   /* posted, and not complete; of receives: and not used */
	uint32_t unsent;   /* of these */
	uint32_t psn, una; /* next one to send, oldest one not acknowledged */
};

/* What a queue pair has open, out of the process's memory. */
static void read_fills(const struct vb_qp *qp, struct fill *send, struct fill *receive)
{
	const struct vb_req *q = &qp->req;
	uint32_t head = atomic_load_explicit(&qp->post.head, memory_order_relaxed);

	*send = (struct fill){.of = q->max_wr,
			      .open = head - q->una,
			      .unsent = head - q->next,
			      .psn = q->psn,
			      .una = q->psn_una};
	*receive = (struct fill){.of = qp->no_rq ? 0 : qp->resp.rq.max_wr,
				 .open = atomic_load_explicit(&qp->resp.rq.head, memory_order_relaxed) -
					 qp->resp.rq.tail};
}

static void print_fills(const struct vb_inside *in, const struct vb_qp_row *r)
{
	const struct vb_inside_qp *q = vb_inside_find_qp(in, r->qpn);
	struct fill send, receive;

	if (!q)
		return;
	read_fills(&q->qp, &send, &receive);
	if (send.of)
		printf("    send queue: %u of %u not complete, %u not sent; next PSN 0x%06x, oldest not "
		       "acknowledged "
		       "0x%06x\n",
		       send.open, send.of, send.unsent, send.psn, send.una);
	if (receive.of)
		printf("    receive queue: %u of %u posted\n", receive.open, receive.of);
}

/* Why there is nothing of the queues. */
static const char *unread(const struct vb_inside *in)
{
	switch (in->state) {
	case VB_INSIDE_DENIED:
		return "the kernel does not let this command read the process's memory. Type as root, or see "
		       "\"verbena doctor\"";
	case VB_INSIDE_BUILD:
		return "the process runs another build of Verbena. Use the command \"verbena\" of that build";
	case VB_INSIDE_GONE:
		return "the process has ended meanwhile";
	default:
		return NULL;
	}
}

static void print_counts(const struct vb_traffic *t)
{
	bool any = false;
	char buf[32];

	for (unsigned i = 0; i < VB_TRAFFIC_COUNTS; i++) {
		if (!t->count[i])
			continue;
		printf("%s%s %s", any ? ", " : "    ", vb_traffic_rows[i].name, grouped(buf, t->count[i]));
		any = true;
	}
	if (any)
		printf("\n");
}

/* The address at the other end, if packets go there over a network, and in words; NULL: they do not, or the
 * queues are not read. */
static const uint8_t *host_of(const struct vb_inside *in, uint32_t qpn, char *buf, size_t size)
{
	const struct vb_inside_qp *q = vb_inside_find_qp(in, qpn);
	const uint8_t *gid = q ? vb_inside_host(&q->qp) : NULL;
	struct vb_text t = {buf, size};

	*buf = 0;
	if (gid)
		vb_gid_add(&t, gid);
	return gid;
}

/* Packets for it that were discarded because their checksum was wrong; NULL: there were none. */
static const struct vb_astray *astray_of(const struct vb_inside *in, uint32_t qpn)
{
	const struct vb_inside_qp *q = vb_inside_find_qp(in, qpn);

	return q && atomic_load(&q->qp.astray.n) ? &q->qp.astray : NULL;
}

/* Its memory has them, and not what it shows to everybody. */
static void add_wrong_icrcs(const struct vb_inside *in, struct vb_qp_row *rows, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct vb_astray *a = astray_of(in, rows[i].qpn);

		rows[i].traffic.count[VB_TRAFFIC_WRONG_ICRC] = a ? atomic_load(&a->n) : 0;
	}
}

static void print_astray(const struct vb_astray *a)
{
	char buf[32], from[64] = "";
	struct vb_text t = {from, sizeof(from)};

	if (!a)
		return;
	vb_gid_add(&t, (const uint8_t *)&a->from);
	printf("    discarded: %s packet%s with a wrong checksum (ICRC), the last one from %s%s\n",
	       grouped(buf, atomic_load(&a->n)), atomic_load(&a->n) == 1 ? "" : "s", from,
	       a->translated ? ": something translates addresses (NAT)" : "");
}

static void print_qp(const struct peek *p, const struct vb_inside *in, const struct vb_qp_row *r)
{
	char name[80], address[64];
	const uint8_t *host = host_of(in, r->qpn, address, sizeof(address));

	printf("QP 0x%06x  %s  %s  device %s", r->qpn, vb_counts_type(r->type), vb_counts_state(r->state),
	       vb_counts_device_name(name, sizeof name, p, r->device));
	if (r->srq)
		printf("  SRQ 0x%06x", r->srq);
	if (r->dest_qpn)
		printf("  peer QP 0x%06x", r->dest_qpn);
	if (r->peer)
		printf(" of process %d (%s)", (int)r->peer, r->peer_program);
	else if (host)
		printf(" at %s, over the network", address);
	else if (r->dest_qpn)
		printf(", which no process has that you may look at");
	printf("\n");
	print_way("sent", r->traffic.sent, r->traffic.sent_bytes);
	printf("\n");
	print_way("received", r->traffic.received, r->traffic.received_bytes);
	if (r->receives)
		printf("; next PSN 0x%06x", r->expected);
	printf("\n");
	print_fills(in, r);
	print_placed(r);
	print_astray(astray_of(in, r->qpn));
	print_counts(&r->traffic);
}

static void add_hex(json_object *o, const char *name, uint32_t v)
{
	char buf[16];

	snprintf(buf, sizeof buf, "0x%06x", v);
	json_object_object_add(o, name, json_object_new_string(buf));
}

static void add_fills(json_object *o, const struct vb_inside *in, uint32_t qpn)
{
	const struct vb_inside_qp *q = vb_inside_find_qp(in, qpn);
	struct fill send, receive;
	json_object *s, *r;

	if (!q)
		return;
	read_fills(&q->qp, &send, &receive);
	if (send.of) {
		s = json_object_new_object();
		json_object_object_add(s, "size", json_object_new_int64(send.of));
		json_object_object_add(s, "outstanding", json_object_new_int64(send.open));
		json_object_object_add(s, "unsent", json_object_new_int64(send.unsent));
		json_object_object_add(o, "send_queue", s);
		json_object_object_add(o, "sq_psn", json_object_new_int64(send.psn));
		json_object_object_add(o, "sq_psn_unacknowledged", json_object_new_int64(send.una));
	}
	if (receive.of) {
		r = json_object_new_object();
		json_object_object_add(r, "size", json_object_new_int64(receive.of));
		json_object_object_add(r, "posted", json_object_new_int64(receive.open));
		json_object_object_add(o, "receive_queue", r);
	}
}

static void add_astray(json_object *o, const struct vb_astray *a)
{
	json_object *w = a ? json_object_new_object() : NULL;
	char from[64] = "";
	struct vb_text t = {from, sizeof(from)};

	if (!a)
		return;
	vb_gid_add(&t, (const uint8_t *)&a->from);
	json_object_object_add(w, "last_from", json_object_new_string(from));
	json_object_object_add(w, "translated", json_object_new_boolean(a->translated));
	json_object_object_add(o, "wrong_icrcs", w);
}

static json_object *qp_json(const struct peek *p, const struct vb_inside *in, const struct vb_qp_row *r)
{
	json_object *o = json_object_new_object(), *peer;
	char name[80];

	add_hex(o, "qpn", r->qpn);
	json_object_object_add(
	    o, "device", json_object_new_string(vb_counts_device_name(name, sizeof name, p, r->device)));
	json_object_object_add(o, "type", json_object_new_string(vb_counts_type(r->type)));
	json_object_object_add(o, "state", json_object_new_string(vb_counts_state(r->state)));
	if (r->srq)
		add_hex(o, "srq", r->srq);
	if (r->receives)
		json_object_object_add(o, "rq_psn", json_object_new_int64(r->expected));
	add_fills(o, in, r->qpn);
	if (r->dest_qpn) {
		peer = json_object_new_object();
		add_hex(peer, "qpn", r->dest_qpn);
		if (host_of(in, r->qpn, name, sizeof(name)))
			json_object_object_add(peer, "address", json_object_new_string(name));
		if (r->peer) {
			json_object_object_add(peer, "pid", json_object_new_int(r->peer));
			json_object_object_add(peer, "program", json_object_new_string(r->peer_program));
			json_object_object_add(
			    peer, "placed_write_bytes",
			    json_object_new_uint64(r->peer_traffic.count[VB_TRAFFIC_PLACED_OUT_BYTES]));
			json_object_object_add(
			    peer, "placed_read_bytes",
			    json_object_new_uint64(r->peer_traffic.count[VB_TRAFFIC_PLACED_IN_BYTES]));
		}
		json_object_object_add(o, "peer", peer);
	}
	add_astray(o, astray_of(in, r->qpn));
	vb_counts_traffic_json(o, &r->traffic);
	return o;
}

static int print_json(const struct peek *p, const struct vb_inside *in, const struct vb_qp_row *rows,
		      size_t n)
{
	json_object *o = json_object_new_object(), *list = json_object_new_array();

	json_object_object_add(o, "pid", json_object_new_int(p->pid));
	json_object_object_add(o, "program", json_object_new_string(p->program));
	for (size_t i = 0; i < n; i++)
		json_object_array_add(list, qp_json(p, in, &rows[i]));
	json_object_object_add(o, "queue_pairs", list);
	json_object_object_add(o, "queues_unread", unread(in) ? json_object_new_string(unread(in)) : NULL);
	return vb_peek_print_json(o);
}

static void print_text(const struct peek *p, const struct vb_inside *in, const struct vb_qp_row *rows,
		       size_t n)
{
	printf("process %d (%s): %zu queue pair%s\n", (int)p->pid, p->program, n, n == 1 ? "" : "s");
	for (size_t i = 0; i < n; i++)
		print_qp(p, in, &rows[i]);
	if (n && unread(in))
		printf("The queues are not shown: %s.\n", unread(in));
}

static int qp(const struct vb_command *c, int argc, char **argv)
{
	struct vb_qp_row *rows;
	struct vb_inside in;
	struct peek_ask a;
	struct peek *all;
	size_t n, nall;
	int status = 0;

	if (!vb_peek_open(&a, c, argc, argv))
		return VB_EXIT_SELF;
	rows = vb_counts_qps(&a.at, &n);
	if (!rows && n) {
		vb_say("there is no memory for the list of queue pairs");
		vb_peek_close(&a.at);
		return VB_EXIT_SELF;
	}
	nall = vb_peek_all(&all, a.at.user);
	vb_inside_open(&in, &a.at);
	vb_counts_meet(&a.at, rows, n, all, nall);
	add_wrong_icrcs(&in, rows, n);
	if (a.json)
		status = print_json(&a.at, &in, rows, n);
	else
		print_text(&a.at, &in, rows, n);
	for (size_t i = 0; i < nall; i++)
		vb_peek_close(&all[i]);
	free(all);
	free(rows);
	vb_inside_close(&in);
	vb_peek_close(&a.at);
	return status;
}

const struct vb_command vb_qp_command = {
    .name = "qp",
    .brief = "list the queue pairs of a process",
    .main = qp,
    .usage = "[--json] [PID]",
    .text =
	"Lists the queue pairs of a running process: number, type, state, device, the process at the other "
	"end, "
	"next PSN, and what they have sent, received, sent again and refused. The process may be stopped.\n\n"
	"Without PID it looks at your only process that uses Verbena. If there are several, it lists them.",
    .after = "Exit status: 0; 125 if the process is not found or cannot be read, or if verbena fails.",
    .example = "verbena qp 4711",
    .options = vb_peek_options,
    .noptions = VB_PEEK_OPTIONS,
};
