#include "verbs/why.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "base/log.h"
#include "base/text.h"
#include "mem/ground.h"
#include "mem/near.h"
#include "hca/hca.h"
#include "verbs/verbs.h"

#define NO_PAGES "out of memory for the pages of the %" PRIu64 " bytes at 0x%" PRIx64

static int no_memory(int err, const char *call, uint64_t addr, uint64_t length)
{
	struct sysinfo s;

	if (sysinfo(&s))
		return vb_refuse(err, call, NO_PAGES, length, addr);
	return vb_refuse(err, call,
			 NO_PAGES ": %" PRIu64
				  " MiB are free on this machine, and the process's control group may permit "
				  "less; register less memory, or use IBV_ACCESS_ON_DEMAND",
			 length, addr, ((uint64_t)s.freeram * s.mem_unit) >> 20);
}

int vb_why_memory(int err, const char *call, uint64_t addr, uint64_t length, bool write)
{
	struct vb_ground g;
	char text[900];

	if (err == ENOMEM)
		return no_memory(err, call, addr, length);
	if (!vb_log_wanted(VB_LOG_WARN))
		return err;
	vb_ground_look(&g, addr, length, write);
	return vb_refuse(err, call, "the %" PRIu64 " bytes at 0x%" PRIx64 " cannot be %s: %s", length, addr,
			 write ? "written" : "read", vb_ground_say(text, sizeof(text), &g));
}

static int max_map_count(void)
{
	FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
	int n = 0;

	if (f && fscanf(f, "%d", &n) != 1)
		n = 0;
	if (f)
		fclose(f);
	return n;
}

int vb_why_fork(int err, const char *call, uint64_t addr, uint64_t length)
{
	struct vb_ground g;
	char text[900];

	if (!vb_log_wanted(VB_LOG_WARN))
		return err;
	vb_ground_look(&g, addr, length, false);
	if (g.trouble == VB_GROUND_HOLE)
		return vb_refuse(err, call,
				 "the pages of the %" PRIu64 " bytes at 0x%" PRIx64
				 " cannot be excluded from child processes, as ibv_fork_init() requires: %s",
				 length, addr, vb_ground_say(text, sizeof(text), &g));
	return vb_refuse(
	    err, call,
	    "the pages of the %" PRIu64 " bytes at 0x%" PRIx64
	    " cannot be excluded from child processes, as ibv_fork_init() requires: %s. A region may split a "
	    "mapping in three, and vm.max_map_count is %d; raise it, or register fewer, larger regions",
	    length, addr, strerror(err), max_map_count());
}

enum { CHILDREN = VB_CHILDREN + 1 }; /* the last are those that were not counted by kind */

static const struct vb_why_count children[CHILDREN] = {
    [VB_CHILD_MR] = {"memory region", 0},  [VB_CHILD_MW] = {"memory window", 0},
    [VB_CHILD_QP] = {"queue pair", 0},	   [VB_CHILD_SRQ] = {"shared receive queue", 0},
    [VB_CHILD_AH] = {"address handle", 0}, [VB_CHILD_PARENT] = {"parent domain", 0},
    [VB_CHILD_BUF] = {"buffer", 0},	   [VB_CHILD_CQ] = {"completion queue", 0},
    [VB_CHILDREN] = {"other object", 0},
};

/* What a program does with one to be rid of it. */
static const char *const ends[CHILDREN] = {
    [VB_CHILD_MR] = "deregister", [VB_CHILD_MW] = "deallocate", [VB_CHILD_QP] = "destroy",
    [VB_CHILD_SRQ] = "destroy",	  [VB_CHILD_AH] = "destroy",	[VB_CHILD_PARENT] = "deallocate",
    [VB_CHILD_BUF] = "free",	  [VB_CHILD_CQ] = "destroy",	[VB_CHILDREN] = "destroy",
};

/* "1 memory region, 2 queue pairs" */
static void add_counts(struct vb_text *t, const struct vb_why_count *c, unsigned kinds)
{
	const char *sep = "";

	for (unsigned i = 0; i < kinds; i++) {
		if (!c[i].n)
			continue;
		vb_text_add(t, "%s%u %s%s", sep, c[i].n, c[i].name, c[i].n == 1 ? "" : "s");
		sep = ", ";
	}
}

static void sum_children(const struct vb_pd *pd, struct vb_why_count n[CHILDREN])
{
	uint32_t all = atomic_load(&pd->refs), named = 0;

	for (unsigned i = 0; i < VB_CHILDREN; i++) {
		uint32_t k = atomic_load(&pd->children[i]);

		n[i].n += k;
		named += k;
	}
	n[VB_CHILDREN].n += all > named ? all - named : 0;
}

/* One of the domain's own regions.  A key says only the domain's number, which parent domains, imported ones
 * and further instances of a shared domain have too: it is sure whose the regions of that number are only
 * where there are as many as this one made. */
static bool add_region(struct vb_text *t, struct vb_keys *keys, const struct vb_pd *pd, const char *before)
{
	uint32_t looked = 0, found = 0, key, lkey = 0;
	struct vb_key_spec s, one = {0};

	for (uint32_t i = 0; (i = vb_key_next(keys->marks, i)); looked++) {
		if (looked == VB_NEAR_LOOK)
			return false;
		if (!vb_key_at(keys, i, false, &key, &s) || s.pd != pd->id || s.kind == VB_KEY_WINDOW)
			continue;
		if (!found++) {
			one = s;
			lkey = key;
		}
	}
	if (!found || found != atomic_load(&pd->children[VB_CHILD_MR]))
		return false;
	vb_text_add(t, "%s[0x%" PRIx64 ", +%" PRIu64 ") with L_Key 0x%08x", before, one.addr, one.length,
		    lkey);
	return true;
}

/* A region, a queue pair or one of each that hold the domain, between these words. */
static void add_example(struct vb_text *t, struct vb_context *c, const struct vb_pd *pd, const char *before,
			const char *behind)
{
	bool some = add_region(t, &vb_hca(c->adapter)->keys, pd, before);

	vb_lock_take(&c->lock);
	vb_list_each (n, &c->qps) {
		struct vb_qp *qp = vb_list_entry(n, struct vb_qp, on_ctx);

		if (qp->pd != pd)
			continue;
		vb_text_add(t, "%sQP 0x%06x", some ? " and " : before, qp->qpn);
		some = true;
		break;
	}
	vb_lock_give(&c->lock);
	if (some)
		vb_text_add(t, "%s", behind);
}

int vb_why_tied(struct vb_keys *keys, const char *call, uint32_t lkey)
{
	uint32_t looked = 0, key, region = vb_key_bare(keys, lkey), n = vb_key_tied(keys, lkey);
	struct vb_key_spec s;
	char text[100] = "";
	struct vb_text t = {text, sizeof(text)};

	if (!n)
		return vb_refuse(EBUSY, call, "another thread is changing the region of L_Key 0x%08x", lkey);
	for (uint32_t i = 0; looked < VB_NEAR_LOOK && (i = vb_key_next(keys->marks, i)); looked++) {
		if (!vb_key_at(keys, i, true, &key, &s) || s.kind != VB_KEY_WINDOW ||
		    vb_key_bare(keys, (uint32_t)s.tied) != region)
			continue;
		vb_text_add(&t, " (for example [0x%" PRIx64 ", +%" PRIu64 ") with R_Key 0x%08x)", s.addr,
			    s.length, key);
		break;
	}
	return vb_refuse_busy(call,
			      "%u memory window%s bound to the region of L_Key 0x%08x%s; unbind, invalidate "
			      "or deallocate %s first",
			      n, n == 1 ? " is" : "s are", lkey, text, n == 1 ? "it" : "them");
}

int vb_why_no_key(const struct vb_keys *keys, const char *call, const struct vb_pd *pd)
{
	uint32_t tagged = (uint32_t)(pd->id >> 32) != keys->home;

	return vb_refuse(ENOMEM, call,
			 "all %u keys for memory registered in protection domains that %s are in use%s",
			 tagged ? keys->tagged.room : keys->plain.room,
			 tagged ? "other processes own" : "this process owns",
			 tagged ? "" : ". Relaxed regions that wait for a flush keep their keys");
}

int vb_why_pd_busy(struct vb_pd *pd, const char *call)
{
	struct vb_why_count n[CHILDREN];
	unsigned kinds = 0, last = VB_CHILDREN;
	struct vb_context *c = vb_context(pd->ibv.context);
	char text[400] = "";
	struct vb_text t = {text, sizeof(text)};

	if (!vb_log_wanted(VB_LOG_WARN))
		return EBUSY;
	memcpy(n, children, sizeof(n));
	sum_children(pd, n);
	for (unsigned i = 0; i < CHILDREN; i++)
		if (n[i].n) {
			kinds++;
			last = i;
		}
	add_counts(&t, n, CHILDREN);
	if (kinds > 1)
		add_example(&t, c, pd, " (for example ", ")");
	else
		add_example(&t, c, pd, n[last].n == 1 ? ", " : ", for example ", "");
	return vb_refuse_busy(call, "the protection domain still has %s: %s %s first", text,
			      kinds > 1 ? "destroy" : ends[last], kinds > 1 || n[last].n > 1 ? "them" : "it");
}

/* What the context's domains hold, without what the context counts itself.  Returns a domain that holds
 * something, or NULL. */
static struct vb_pd *sum_domains(struct vb_context *c, struct vb_why_count n[CHILDREN])
{
	struct vb_pd *example = NULL;

	memcpy(n, children, sizeof(children));
	vb_lock_take(&c->lock);
	vb_list_each (node, &c->pd_list) {
		struct vb_pd *pd = vb_list_entry(node, struct vb_pd, on_ctx);

		sum_children(pd, n);
		if (!example && atomic_load(&pd->refs))
			example = pd;
	}
	vb_lock_give(&c->lock);
	n[VB_CHILD_QP].n = n[VB_CHILD_CQ].n = 0;
	return example;
}

/* A program that closes destroys nothing meanwhile. */
void vb_why_left(struct vb_context *c, const struct vb_why_count *left, unsigned kinds)
{
	struct vb_why_count n[CHILDREN];
	struct vb_pd *example = sum_domains(c, n);
	char text[500], inside[200] = "";
	struct vb_text t = {text, sizeof(text)}, in = {inside, sizeof(inside)};

	add_counts(&t, left, kinds);
	add_counts(&in, n, CHILDREN);
	if (inside[0])
		vb_text_add(&t, "; in its protection domains: %s", inside);
	if (example)
		add_example(&t, c, example, " (for example ", ")");
	vb_log_note("ibv_close_device: the program did not destroy %s. QPs are stopped, the rest remains "
		    "until the process ends",
		    text);
}
