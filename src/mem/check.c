#include "mem/check.h"

#include "mem/check_buffers.h"
#include "mem/near.h"

/* No key that this index ever had has this variant. */
static bool never_given(const struct vb_key_shot *s, uint32_t key)
{
	return !s->odd && VB_KEY_VARIANT(s->last - key) >= s->variants;
}

static enum vb_reason judge(const struct vb_keys *t, const struct vb_key_shot *s, const struct vb_mem_want *w)
{
	const struct vb_key_spec *k = &s->spec;

	if (!s->last && !s->odd)
		return VB_R_KEY_UNKNOWN;
	if (t->local_bit & ~w->key) /* no key of this profile */
		return VB_R_KEY_UNKNOWN;
	/* (A kind that there is not stands only in a hostile process's table.) */
	if (s->odd || s->key != (w->key & ~VB_KEY_REMOTE) || k->kind >= VB_KEY_KINDS)
		return never_given(s, w->key) ? VB_R_KEY_UNKNOWN : VB_R_KEY_STALE;
	if (w->remote && (!(w->key & VB_KEY_REMOTE) || k->kind == VB_KEY_NULL))
		return VB_R_KEY_IS_LOCAL;
	if (!w->remote && ((w->key & VB_KEY_REMOTE & ~t->local_bit) || k->kind == VB_KEY_WINDOW))
		return VB_R_KEY_IS_REMOTE;
	if (k->pd != w->pd)
		return VB_R_KEY_PD; /* rule 21 */
	if (k->kind == VB_KEY_WINDOW && k->qpn && k->qpn != w->qpn)
		return VB_R_KEY_QP; /* rule 48 */
	if (!w->whole && !vb_key_bounds(k->iova, k->length, w->addr, w->len))
		return VB_R_KEY_BOUNDS;
	if (w->access & ~k->access)
		return VB_R_KEY_ACCESS;
	return VB_OK;
}

void vb_key_facts(struct vb_facts *f, enum vb_reason r, const struct vb_mem_want *w)
{
	*f = (struct vb_facts){
	    .reason = r,
	    .key = w->key,
	    .addr = w->addr,
	    .len = w->len,
	    .mem = {.want = w->access, .pd_want = (uint32_t)w->pd, .flags = w->remote ? VB_KEYF_REMOTE : 0}};
}

/* What the index holds now. */
static void add_entry(const struct vb_keys *t, const struct vb_key_shot *s, const struct vb_mem_want *w,
		      struct vb_facts *f)
{
	const struct vb_key_spec *k = &s->spec;
	struct vb_mem_facts *m = &f->mem;

	m->cur_key = s->key | (w->remote ? VB_KEY_REMOTE : t->local_bit);
	m->start = k->iova;
	m->size = k->length;
	m->have = k->access;
	m->pd_have = (uint32_t)k->pd;
	if (VB_PD_HOME(k->pd) != VB_PD_HOME(w->pd))
		m->flags |= VB_KEYF_OTHER_HOME;
	if (f->reason == VB_R_KEY_IS_LOCAL && k->kind == VB_KEY_NULL)
		m->cur_key = 0;						 /* it has no R_Key */
	if (f->reason == VB_R_KEY_IS_REMOTE && k->kind == VB_KEY_WINDOW) /* and this no L_Key: its region's */
		m->cur_key = (uint32_t)k->tied | t->local_bit;
}

enum vb_reason vb_key_judge(const struct vb_keys *t, const struct vb_key_entry *e,
			    const struct vb_mem_want *w)
{
	struct vb_key_shot s;

	vb_key_shoot(e, &s);
	return judge(t, &s, w);
}

__attribute__((cold)) enum vb_reason vb_key_classify(struct vb_keys *t, const struct vb_key_entry *e,
						     const struct vb_mem_want *w, struct vb_facts *f)
{
	struct vb_key_shot s = {0};
	enum vb_reason r;

	if (e)
		vb_key_shoot(e, &s);
	r = judge(t, &s, w);
	if (r == VB_OK || !f)
		return r;
	if (r == VB_R_KEY_STALE && vb_check_on)
		vb_check_key_is_stale(w->key, w->remote);
	vb_key_facts(f, r, w);
	if (r == VB_R_KEY_QP) {
		f->window = (struct vb_window_facts){.bound_key = w->key, .bound_qpn = s.spec.qpn};
		return r;
	}
	if (s.spec.kind == VB_KEY_WINDOW)
		f->mem.flags |= VB_KEYF_WINDOW;
	if (s.last != (w->key & ~VB_KEY_REMOTE) && (s.odd || s.variants == VB_KEY_ANY_VARIANT))
		f->mem.flags |= VB_KEYF_UNSURE;
	if (!s.odd && s.key && r != VB_R_KEY_UNKNOWN)
		add_entry(t, &s, w, f);
	if (r == VB_R_KEY_UNKNOWN || r == VB_R_KEY_STALE || r == VB_R_KEY_PD || r == VB_R_KEY_BOUNDS)
		vb_key_near(t, w, f);
	return r;
}
