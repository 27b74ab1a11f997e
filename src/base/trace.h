/* Tracepoints: what rarely happens, for bpftrace, perf and gdb.  docs/tracing.md has the table of them, and
 * tools.probes compares it with this file.  Nobody traces: each is one nop, and its arguments are what the
 * code has at hand.  None stands at a post, a poll or a completion.  Keys are no arguments.
 *
 * VB_SDT: the build has found <sys/sdt.h>.  Without it nothing is left of them. */
#ifndef VB_BASE_TRACE_H
#define VB_BASE_TRACE_H

#ifdef VB_SDT
#include <sys/sdt.h>
#else
#define DTRACE_PROBE2(provider, name, a, b)	  ((void)(a), (void)(b))
#define DTRACE_PROBE3(provider, name, a, b, c)	  ((void)(a), (void)(b), (void)(c))
#define DTRACE_PROBE4(provider, name, a, b, c, d) ((void)(a), (void)(b), (void)(c), (void)(d))
#endif

/* Why a requester sends again; the numbers stand in docs/tracing.md. */
enum vb_trace_cause {
	VB_TRACE_TIMEOUT,  /* the ACK timer has run out */
	VB_TRACE_SEQUENCE, /* NAK: PSN sequence error */
	VB_TRACE_IMPLIED,  /* an answer shows that an earlier one is missing */
	VB_TRACE_RNR,	   /* RNR NAK: after the wait that it names */
	VB_TRACE_OWN,	   /* a NAK that only Verbena sends, between processes of one host */
	VB_TRACE_TAIL,	   /* the probe has arrived, and what was sent before it has not */
	VB_TRACE_PROBE,	   /* the oldest packet alone, to find out what has arrived */
};

#define VB_TRACE_NAK_SENT(qpn, peer_qpn, psn, syndrome) \
	DTRACE_PROBE4(verbena, nak_sent, qpn, peer_qpn, psn, syndrome)
#define VB_TRACE_NAK_RECEIVED(qpn, peer_qpn, psn, syndrome) \
	DTRACE_PROBE4(verbena, nak_received, qpn, peer_qpn, psn, syndrome)
#define VB_TRACE_RETRANSMIT(qpn, psn, cause, retried) \
	DTRACE_PROBE4(verbena, retransmit, qpn, psn, cause, retried)
#define VB_TRACE_QP_STATE(qpn, from, to)      DTRACE_PROBE3(verbena, qp_state, qpn, from, to)
#define VB_TRACE_MR_REG(addr, length, access) DTRACE_PROBE3(verbena, mr_reg, addr, length, access)
#define VB_TRACE_MR_DEREG(addr, length)	      DTRACE_PROBE2(verbena, mr_dereg, addr, length)
#define VB_TRACE_ERROR(kind, err, sentence)   DTRACE_PROBE3(verbena, error, kind, err, sentence)

#endif
