/* The processes among which something waits: the one that is explained, and those that it is connected to.
 * Each is read twice, some milliseconds apart, so that what moves is not taken for something that hangs. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "counts.h"
#include "host/segment.h"
#include "obj/dests.h"
#include "waits.h"

enum { APART_MS = 20 };

static const struct vb_seg_head *head_of(const struct vb_side *s, unsigned device)
{
	return (const void *)s->at.all[device];
}

static uint64_t count_polls(const struct vb_side *s)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < s->at.n; i++)
		sum += atomic_load_explicit(
		    (const _Atomic uint32_t *)(const void *)(s->at.all[i] + VB_SEG_POLLS),
		    memory_order_relaxed);
	return sum;
}

/* The letter of a state in /proc; 0: it cannot be read. */
static char state_in(const char *path)
{
	char text[512], *p;
	FILE *f = fopen(path, "re");
	size_t n;

	if (!f)
		return 0;
	n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = 0;
	p = strrchr(text, ')'); /* its name may have one */
	return p && p[1] ? p[2] : 0;
}

char vb_process_state(unsigned pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	return state_in(path);
}

/* The engine runs for others, whatever the program does. */
static bool is_engine(const struct vb_side *s, unsigned long tid)
{
	for (unsigned d = 0; d < s->at.n; d++)
		if (head_of(s, d)->tid == tid)
			return true;
	return false;
}

/* How many of the program's threads run. */
static unsigned count_running(const struct vb_side *s)
{
	unsigned running = 0;
	char path[300];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)s->at.pid);
	dir = opendir(path);
	for (struct dirent *e; dir && (e = readdir(dir));) {
		if (!isdigit((unsigned char)e->d_name[0]) || is_engine(s, strtoul(e->d_name, NULL, 10)))
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", (int)s->at.pid, e->d_name);
		running += state_in(path) == 'R';
	}
	if (dir)
		closedir(dir);
	return running;
}

const char *vb_side_name(const struct vb_side *s, char *buf, size_t size)
{
	snprintf(buf, size, "PID %d (%s)", (int)s->at.pid, s->at.program);
	return buf;
}

/* The device of that process that has the number; -1: none. */
static int device_with(const struct vb_side *s, uint32_t number)
{
	for (unsigned d = 0; d < s->at.n; d++) {
		const struct vb_seg_head *h = head_of(s, d);
		uint32_t n = atomic_load_explicit(&h->nnumbers, memory_order_acquire);

		for (uint32_t k = 0; k < n && k < VB_ADAPTER_NUMBERS; k++)
			if (h->numbers[k] == number)
				return (int)d;
	}
	return -1;
}

static struct vb_side *side_with(const struct vb_world *w, uint32_t number, unsigned *device)
{
	for (size_t i = 0; i < w->n; i++) {
		int d = device_with(&w->sides[i], number);

		if (d >= 0) {
			*device = (unsigned)d;
			return &w->sides[i];
		}
	}
	return NULL;
}

/* Whether any process has bound it, as the network namespace of the explained process shows. */
static bool is_bound(const struct vb_world *w, uint32_t number)
{
	char path[64], line[512], name[64];
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/net/unix", (int)w->self->at.pid);
	snprintf(name, sizeof(name), " @verbena/1/%u\n", number);
	f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof(line), f))
		found = strstr(line, name) != NULL;
	if (f)
		fclose(f);
	return found;
}

/* Whether a port has that address; a LID leads by the number alone. */
static bool has_address(const struct vb_side *s, unsigned device, const struct ibv_ah_attr *av)
{
	const struct vb_seg_head *h = head_of(s, device);

	for (unsigned i = 0; av->is_global && i < VB_GID_TABLE; i++)
		if (!memcmp(h->gids[i], av->grh.dgid.raw, 16))
			return true;
	return !av->is_global;
}

static const struct vb_shown_qp *shown_at(const struct vb_side *s, unsigned device, uint32_t qpn)
{
	const struct vb_shown_qp *table = (const void *)(s->at.all[device] + VB_SEG_QPS);
	const struct vb_seg_head *h = head_of(s, device);

	for (uint32_t k = 0; k < VB_ADAPTER_NUMBERS; k++)
		if (h->numbers[k] == qpn >> VB_QPN_INDEX_BITS)
			return &table[k * VB_QPN_INDICES + qpn % VB_QPN_INDICES];
	return NULL;
}

static bool is_connected(const struct vb_qp *qp)
{
	return qp->state >= IBV_QPS_RTR && (qp->state != IBV_QPS_ERR || qp->dest_qpn) &&
	       qp->ibv.qp_type != IBV_QPT_UD && !qp->of;
}

const struct vb_shown_qp *vb_world_shown(const struct vb_world *w, uint32_t qpn)
{
	unsigned device;
	struct vb_side *s = side_with(w, qpn >> VB_QPN_INDEX_BITS, &device);

	return s ? shown_at(s, device, qpn) : NULL;
}

struct vb_far_end vb_world_far(const struct vb_world *w, const struct vb_side *s, const struct vb_qp *qp)
{
	uint32_t number = qp->dest_qpn >> VB_QPN_INDEX_BITS;
	struct vb_far_end f = {.how = VB_FAR_UNSET};

	(void)s;
	if (!is_connected(qp))
		return f;
	f.side = side_with(w, number, &f.device);
	if (vb_inside_host(qp) && (!f.side || !has_address(f.side, f.device, &qp->attr.ah_attr))) {
		f.side = NULL; /* numbers are this host's only */
		f.how = VB_FAR_HOST;
		return f;
	}
	if (!f.side && qp->silence.reach == VB_REACH_ADDRESS && !qp->path.rxq) {
		f.how = VB_FAR_ELSEWHERE;
		return f;
	}
	if (!f.side) {
		f.how = is_bound(w, number) ? VB_FAR_STRANGER : VB_FAR_NOBODY;
		return f;
	}
	if (!has_address(f.side, f.device, &qp->attr.ah_attr)) {
		f.side = NULL;
		f.how = VB_FAR_ELSEWHERE;
		return f;
	}
	f.shown = shown_at(f.side, f.device, qp->dest_qpn);
	f.how = f.side->read && f.side->in.state == VB_INSIDE_READ ? VB_FAR_READ : VB_FAR_SHOWN;
	if (f.how == VB_FAR_READ) {
		f.qp = vb_inside_find_qp(&f.side->in, qp->dest_qpn);
		f.before = vb_inside_find_qp(&f.side->before, qp->dest_qpn);
		if (!f.qp && f.shown && atomic_load_explicit(&f.shown->state, memory_order_acquire))
			f.how = VB_FAR_SHOWN; /* it was made, or ended, meanwhile */
	}
	return f;
}

static struct vb_side *receiver_of(const struct vb_world *w, const struct vb_inside *in,
				   const struct vb_qp *qp)
{
	uint32_t head = atomic_load(&qp->post.head);
	unsigned device;
	struct vb_swqe last;

	if (!qp->dests || !head || !vb_wait_request_at(in, qp, head - 1, &last) ||
	    last.to.number >= VB_DEST_NOWHERE)
		return NULL;
	return side_with(w, last.to.qpn >> VB_QPN_INDEX_BITS, &device);
}

const struct vb_side *vb_world_receiver(const struct vb_world *w, const struct vb_inside *in,
					const struct vb_qp *qp)
{
	return receiver_of(w, in, qp);
}

static void read_side(struct vb_side *s)
{
	if (s->read)
		return;
	s->read = true;
	s->polls[0] = count_polls(s);
	s->running = count_running(s);
	vb_inside_open(&s->before, &s->at);
}

/* Whether a queue pair of it sends to a number of the explained process, which may not know of that. */
static bool leads_here(const struct vb_world *w, const struct vb_side *s)
{
	struct vb_qp_row *rows;
	bool leads = false;
	size_t n;

	rows = vb_counts_qps(&s->at, &n);
	for (size_t i = 0; rows && i < n && !leads; i++)
		leads = rows[i].dest_qpn && device_with(w->self, rows[i].dest_qpn >> VB_QPN_INDEX_BITS) >= 0;
	free(rows);
	return leads;
}

/* Those that the explained process is connected to, or that are connected to it. */
static void read_sides(struct vb_world *w)
{
	const struct vb_inside *in = &w->self->before;
	unsigned device;

	read_side(w->self);
	for (size_t i = 0; i < in->nqps; i++) {
		struct vb_side *s = is_connected(&in->qps[i]->qp)
					? side_with(w, in->qps[i]->qp.dest_qpn >> VB_QPN_INDEX_BITS, &device)
					: receiver_of(w, in, &in->qps[i]->qp);

		if (s)
			read_side(s);
	}
	for (size_t i = 0; i < w->n; i++)
		if (!w->sides[i].read && leads_here(w, &w->sides[i]))
			read_side(&w->sides[i]);
}

static void read_again(struct vb_world *w)
{
	const struct timespec apart = {.tv_nsec = APART_MS * 1000000};

	nanosleep(&apart, NULL);
	for (size_t i = 0; i < w->n; i++) {
		struct vb_side *s = &w->sides[i];
		unsigned running;

		if (!s->read)
			continue;
		vb_inside_open(&s->in, &s->at);
		s->polls[1] = count_polls(s);
		s->state = vb_process_state((unsigned)s->at.pid);
		s->debugger = vb_peek_debugger(s->at.pid);
		if (!s->state || s->state == 'Z' || s->state == 'X')
			s->in.state = VB_INSIDE_GONE; /* parts may be missing */
		running = count_running(s);
		if (running < s->running)
			s->running = running;
	}
}

bool vb_world_open(struct vb_world *w, const struct peek *p)
{
	struct peek *all;
	size_t n = vb_peek_all(&all, p->user);

	*w = (struct vb_world){.sides = calloc(n + 1, sizeof(*w->sides))};
	for (size_t i = 0; i < n; i++) {
		if (!w->sides || all[i].network != p->network) {
			vb_peek_close(&all[i]);
			continue;
		}
		w->sides[w->n].at = all[i];
		if (all[i].pid == p->pid)
			w->self = &w->sides[w->n];
		w->n++;
	}
	free(all);
	if (!w->self)
		return false;
	read_sides(w);
	read_again(w);
	return true;
}

void vb_world_close(struct vb_world *w)
{
	for (size_t i = 0; i < w->n; i++) {
		vb_inside_close(&w->sides[i].before);
		vb_inside_close(&w->sides[i].in);
		vb_peek_close(&w->sides[i].at);
	}
	free(w->sides);
	*w = (struct vb_world){0};
}
