#include "mem/near.h"

struct found {
	uint32_t key;
	uint64_t missed;
	bool pd; /* of the wanted protection domain */
	struct vb_key_spec spec;
};

/* Can the request have meant this? */
static bool comparable(const struct vb_key_spec *s, bool remote)
{
	/* A null region is everywhere, and so is an implicit on-demand one. */
	return s->kind != VB_KEY_NULL && s->length < 1ull << 63 && (remote || s->kind != VB_KEY_WINDOW);
}

/* The region of the queue's own domain that is least wide of the range, else one of another domain. */
static bool search(struct vb_keys *t, const struct vb_mem_want *w, struct found *best)
{
	uint32_t looked = 0;
	struct found f;
	bool any = false;

	for (uint32_t i = 0; looked < VB_NEAR_LOOK && (i = vb_key_next(t->marks, i)); looked++) {
		if (!vb_key_at(t, i, w->remote, &f.key, &f.spec) || !comparable(&f.spec, w->remote))
			continue;
		f.pd = f.spec.pd == w->pd;
		f.missed = vb_range_missed(f.spec.iova, f.spec.length, w->addr, w->len);
		if (any && (f.missed > best->missed || (f.missed == best->missed && f.pd <= best->pd)))
			continue;
		*best = f;
		any = true;
	}
	return any;
}

static void add_region(struct vb_facts *f, const struct found *n)
{
	f->a |= VB_KEYF_NEAR;
	f->cur_key = n->key;
	f->start = n->spec.iova;
	f->size = n->spec.length;
	f->pd_have = (uint32_t)n->spec.pd;
}

void vb_key_near(struct vb_keys *t, const struct vb_mem_want *w, struct vb_facts *f)
{
	struct found n = {0};
	bool any = search(t, w, &n);

	/* Not where the key was one of this table: then that is what was meant. */
	if (w->remote && t->ops && t->ops->stranger && f->reason == VB_R_KEY_UNKNOWN) {
		f->b = t->ops->stranger(t->owner, w->key, w->addr, 0);
		if (f->b)
			f->a |= VB_KEYF_STRANGER;
	}
	if (!any)
		return;
	switch (f->reason) {
	case VB_R_KEY_PD: /* the region that has the key is there already; its range may be another's too */
	case VB_R_KEY_BOUNDS:
		if (!n.missed && n.pd) {
			f->a |= VB_KEYF_NEAR;
			f->cur_key = n.key;
		}
		break;
	case VB_R_KEY_STALE:
		if (!n.missed || !f->cur_key)
			add_region(f, &n);
		break;
	default:
		add_region(f, &n);
		break;
	}
}
