#include "obj/pd.h"

#include <errno.h>

#include "base/log.h"
#include "base/msan.h"
#include "base/pages.h"
#include "obj/ring.h"

/* Whole pages, as drivers of adapters ask for them, so that callbacks may madvise() what they give. */
static int ask(struct vb_queue_mem *m, struct vb_pd *pd, const char *call)
{
	const struct vb_parent *p = pd->parent;
	size_t size = vb_page_round(m->bytes), page = vb_page_size();

	vb_msan_calls_back(5);
	m->at = p->alloc(&pd->ibv, p->pd_context, size, page, m->kind);
	if (!m->at)
		return vb_refuse(ENOMEM, call,
				 "the parent domain's alloc callback returned NULL for %zu bytes", size);
	if (m->at == IBV_ALLOCATOR_USE_DEFAULT)
		return 0;
	m->from = pd;
	if (vb_page_offset((uintptr_t)m->at)) {
		int err = vb_refuse(EINVAL, call,
				    "the parent domain's alloc callback returned %p, which is not aligned to "
				    "the requested %zu bytes",
				    m->at, page);

		vb_queue_free(m);
		return err;
	}
	return 0;
}

int vb_queue_alloc(struct vb_queue_mem *m, struct vb_pd *pd, enum vb_queue_kind kind, size_t bytes,
		   uint32_t n, const char *call)
{
	*m = (struct vb_queue_mem){.bytes = bytes, .kind = kind};
	if (pd && pd->parent && pd->parent->alloc) {
		int err = ask(m, pd, call);

		if (err || m->from)
			return err;
	}
	m->at = vb_ring_alloc(bytes);
	return m->at ? 0 : vb_refuse(ENOMEM, call, "out of memory for %u entr%s", n, n == 1 ? "y" : "ies");
}

void vb_queue_free(struct vb_queue_mem *m)
{
	const struct vb_parent *p = m->from ? m->from->parent : NULL;

	if (p) {
		vb_msan_calls_back(4);
		p->free(&m->from->ibv, p->pd_context, m->at, m->kind);
	} else {
		vb_ring_free(m->at, m->bytes);
	}
	*m = (struct vb_queue_mem){0};
}
