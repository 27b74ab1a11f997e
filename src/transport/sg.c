/* Scatter and gather: the only loop over SGEs that touches bytes. */
#include <string.h>

#include "transport/rc_priv.h"

static enum vb_reason piece(struct vb_qp *qp, uint64_t pd, uint32_t lkey, uint64_t addr, uint8_t *buf,
			    uint32_t n, enum vb_sg_way way, struct vb_facts *f)
{
	bool to_app = way == VB_SG_SCATTER || way == VB_SG_FETCH;
	struct vb_mem_use u;
	enum vb_reason r;
	bool ok;

	/* rule 13: key, PD (rule 21), bounds and access, for a READ's or atomic's sink as well */
	r = vb_mem_begin(
	    qp->keys, &u,
	    &(struct vb_mem_want){
		.key = lkey, .access = to_app ? IBV_ACCESS_LOCAL_WRITE : 0, .pd = pd, .addr = addr, .len = n},
	    f);
	if (vb_unlikely(r != VB_OK))
		return r;
	/* Application memory onto itself, or a piece that is not plain memory: only the ring reads before it
	 * writes. */
	if (vb_unlikely(
		way >= VB_SG_PLACE &&
		(u.how != VB_USE_HERE || (uintptr_t)u.ptr - (uintptr_t)buf + n - 1 < 2 * (uint64_t)n - 1))) {
		vb_mem_end(&u);
		return VB_R_KEY_BOUNDS;
	}
	switch (way) {
	case VB_SG_GATHER:
		ok = vb_mem_get(&u, buf, n);
		break;
	case VB_SG_SCATTER:
		ok = vb_mem_put(&u, buf, n);
		break;
	default:
		ok = to_app ? vb_copy_app(u.ptr, buf, n) : vb_copy_app(buf, u.ptr, n);
	}
	vb_mem_end(&u);
	if (vb_likely(ok))
		return VB_OK;
	return vb_mem_why(&u, lkey, addr, n, f);
}

/* Facts about the program's range, not about our piece of it. */
static __attribute__((cold, noinline)) enum vb_reason why(struct vb_qp *qp, uint64_t pd,
							  const struct ibv_sge *s, enum vb_sg_way way,
							  enum vb_reason r, struct vb_facts *f)
{
	const struct vb_mem_want w = {.key = s->lkey,
				      .access = way == VB_SG_SCATTER ? IBV_ACCESS_LOCAL_WRITE : 0,
				      .pd = pd,
				      .addr = s->addr,
				      .len = s->length};
	/* VB_OK: it was no matter of the key, or that has become right meanwhile */
	enum vb_reason whole = vb_mem_check(qp->keys, &w, f);

	if (whole != VB_OK)
		return whole;
	f->addr = s->addr;
	f->len = s->length;
	return r;
}

enum vb_reason vb_sg_copy(struct vb_qp *qp, uint64_t pd, const struct ibv_sge *sge, uint32_t num_sge,
			  uint64_t off, uint8_t *buf, uint32_t n, enum vb_sg_way way, struct vb_facts *f)
{
	for (uint32_t i = 0; i < num_sge && n; i++) {
		uint32_t len = sge[i].length, k;
		enum vb_reason r;

		if (off >= len) {
			off -= len;
			continue;
		}
		k = len - (uint32_t)off < n ? len - (uint32_t)off : n;
		r = piece(qp, pd, sge[i].lkey, sge[i].addr + off, buf, k, way, f);
		if (vb_unlikely(r != VB_OK))
			return f && way < VB_SG_PLACE ? why(qp, pd, &sge[i], way, r, f) : r;
		off = 0;
		buf += k;
		n -= k;
	}
	return VB_OK;
}

bool vb_request_bytes(struct vb_qp *qp, const struct vb_swqe *w, uint64_t off, uint8_t *to, uint32_t n)
{
	struct vb_facts f;

	vb_lock_assert_held(&qp->lock);
	if (w->flags & IBV_SEND_INLINE) {
		memcpy(to, w->inline_data + off, n);
		return true;
	}
	return vb_sg_copy(qp, qp->pd_id, w->sge, w->num_sge, off, to, n, VB_SG_GATHER, &f) == VB_OK;
}
