#include "hca/roots.h"

#include <stddef.h>

#include "base/waiting.h"
#include "hca/hca.h"
#include "obj/cq.h"
#include "obj/dests.h"
#include "obj/live.h"
#include "obj/qp.h"
#include "obj/srq.h"

/* Polynomials of what may differ from build to build; a version that changes no struct differs by its name.
 */
#define MIX(sum, x) ((sum)*1099511628211ull ^ (uint64_t)(x))
#define AT(s, m)    (offsetof(struct s, m))
#define QP                                                                                             \
	MIX(MIX(MIX(MIX(MIX(sizeof(struct vb_qp), AT(vb_qp, post)), AT(vb_qp, req)), AT(vb_qp, resp)), \
		AT(vb_qp, why)),                                                                       \
	    AT(vb_qp, silence))
#define OTHERS                                                                                    \
	MIX(MIX(MIX(MIX(sizeof(struct vb_cq), sizeof(struct vb_srq)), sizeof(struct vb_channel)), \
		sizeof(struct vb_context)),                                                       \
	    MIX(MIX(sizeof(struct vb_swqe), sizeof(struct vb_cqe)), sizeof(struct vb_waiting)))
#define INNER                                                                 \
	MIX(MIX(MIX(AT(vb_cq, lock), AT(vb_cq, delivered)), AT(vb_cq, head)), \
	    MIX(MIX(AT(vb_srq, rq), AT(vb_channel, evq)), sizeof(struct vb_hca)))
#define C(i) ((uint64_t)VB_VERSION[(i) < sizeof(VB_VERSION) ? (i) : 0] << 8 * (i))

const struct vb_roots vb_roots = {
    .layout = MIX(MIX(MIX(QP, OTHERS), INNER), C(0) ^ C(1) ^ C(2) ^ C(3) ^ C(4) ^ C(5) ^ C(6) ^ C(7)),
    .waitings = (uint64_t)(uintptr_t)vb_waitings,
    .nwaitings = VB_WAITINGS,
    .live = (uint64_t)(uintptr_t)vb_live_shards,
    .nlive = VB_LIVE_SHARDS,
};
