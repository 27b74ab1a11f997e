/* Every reason, once.  The enum (iba/reason.h), the table, the sentences' prototypes and the choice among
 * them (iba/reason.c) are made from these rows, each by a macro REASON of its own: so a reason may stand
 * anywhere, and one without a whole row and a sentence does not build.  Completions carry a reason's place as
 * their number.
 *
 * The columns: reason; stable name; NAK; status of the requester whose request met it at the far end; status
 * at the side that found it; event there; kind of facts; sentence, which takes facts of that kind. */
/* no error */
REASON(VB_OK, "ok", 0, IBV_WC_SUCCESS, IBV_WC_SUCCESS, NONE, none, vb_say_ok)

/* Memory keys, local and remote (rules 13, 20, 21). */

/* no region ever had this key's index, or the index is out of the table */
REASON(VB_R_KEY_UNKNOWN, "key-unknown", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
       IBV_EVENT_QP_ACCESS_ERR, mem, vb_say_key_unknown)
/* the index is in use or was, the variant is another */
REASON(VB_R_KEY_STALE, "key-stale", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
       IBV_EVENT_QP_ACCESS_ERR, mem, vb_say_key_stale)
/* an L_Key was given where an R_Key belongs */
REASON(VB_R_KEY_IS_LOCAL, "key-is-local", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
       IBV_EVENT_QP_ACCESS_ERR, mem, vb_say_key_is_local)
/* an R_Key was given where an L_Key belongs */
REASON(VB_R_KEY_IS_REMOTE, "key-is-remote", 0, NEVER, IBV_WC_LOC_PROT_ERR, NONE, mem, vb_say_key_is_remote)
/* the region belongs to another protection domain */
REASON(VB_R_KEY_PD, "key-pd", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR, IBV_EVENT_QP_ACCESS_ERR,
       mem, vb_say_key_pd)
/* a window of type 2 is bound on another QP (rule 48) */
REASON(VB_R_KEY_QP, "key-qp", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR, IBV_EVENT_QP_ACCESS_ERR,
       window, vb_say_key_qp)
/* the range leaves the region */
REASON(VB_R_KEY_BOUNDS, "key-bounds", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
       IBV_EVENT_QP_ACCESS_ERR, mem, vb_say_key_bounds)
/* the region does not permit this */
REASON(VB_R_KEY_ACCESS, "key-access", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
       IBV_EVENT_QP_ACCESS_ERR, mem, vb_say_key_access)
/* invalidate names a region made by ibv_reg_mr, or no window (rule 46) */
REASON(VB_R_KEY_NOT_WINDOW, "key-not-window", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_MW_BIND_ERR,
       IBV_EVENT_QP_ACCESS_ERR, window, vb_say_key_not_window)
/* the process whose memory it is has ended */
REASON(VB_R_KEY_OWNER_GONE, "key-owner-gone", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
       IBV_EVENT_QP_ACCESS_ERR, mem, vb_say_key_owner_gone)
/* this process is not connected to the one whose memory it is */
REASON(VB_R_KEY_NO_CONTACT, "key-no-contact", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
       IBV_EVENT_QP_ACCESS_ERR, mem, vb_say_key_no_contact)
/* the kernel does not let this process reach into the owner's memory */
REASON(VB_R_MEM_FORBIDDEN, "mem-forbidden", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
       IBV_EVENT_QP_ACCESS_ERR, mem, vb_say_mem_forbidden)
/* atomic on private memory of another process */
REASON(VB_R_ATOMIC_PEER, "atomic-peer", ACCESS, IBV_WC_REM_ACCESS_ERR, NEVER, IBV_EVENT_QP_ACCESS_ERR, mem,
       vb_say_atomic_peer)
/* the memory is not mapped any more, or not with that permission */
REASON(VB_R_MEM_VANISHED, "mem-vanished", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
       IBV_EVENT_QP_ACCESS_ERR, mem, vb_say_mem_vanished)

/* Memory windows (rules 46 to 48); the status is IBTA's "memory management operation error". */

/* invalidate names a window of type 1 (rule 46) */
REASON(VB_R_INV_TYPE, "invalidate-type", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_MW_BIND_ERR,
       IBV_EVENT_QP_ACCESS_ERR, window, vb_say_invalidate_type)
/* invalidate names a window that is not bound under this key */
REASON(VB_R_INV_KEY, "invalidate-key", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_MW_BIND_ERR,
       IBV_EVENT_QP_ACCESS_ERR, window, vb_say_invalidate_key)
/* invalidate came to another QP than the window is bound on */
REASON(VB_R_INV_QP, "invalidate-qp", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_MW_BIND_ERR,
       IBV_EVENT_QP_ACCESS_ERR, window, vb_say_invalidate_qp)
/* the window was deallocated before its bind's turn */
REASON(VB_R_BIND_GONE, "bind-gone", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE, window, vb_say_bind_gone)
/* type 2 with length 0 (rule 48) */
REASON(VB_R_BIND_ZERO, "bind-zero", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE, window, vb_say_bind_zero)
/* type 2 that is bound already (rule 48) */
REASON(VB_R_BIND_BOUND, "bind-bound", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE, window, vb_say_bind_bound)
/* the L_Key names no region (any more), or one that takes no windows */
REASON(VB_R_BIND_REGION, "bind-region", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE, window, vb_say_bind_region)
/* QP, window and region are not of one protection domain (rule 47) */
REASON(VB_R_BIND_PD, "bind-pd", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE, window, vb_say_bind_pd)
/* the window leaves the region */
REASON(VB_R_BIND_RANGE, "bind-range", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE, window, vb_say_bind_range)
/* the region lacks MW_BIND, or LOCAL_WRITE for a window that may be written */
REASON(VB_R_BIND_ACCESS, "bind-access", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE, window, vb_say_bind_access)

/* The QP and the request. */

/* qp_access_flags lack the operation: a QP that is not set up for it does not take its opcode (rule 22) */
REASON(VB_R_QP_ACCESS, "qp-access", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_QP_OP_ERR,
       IBV_EVENT_QP_REQ_ERR, access, vb_say_qp_access)
/* atomic address not 8-byte aligned (rule 18) */
REASON(VB_R_ATOMIC_ALIGN, "atomic-align", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_QP_OP_ERR,
       IBV_EVENT_QP_REQ_ERR, atomic, vb_say_atomic_align)
/* a message of XRC names an SRQ that the target's domain has not got (annex A14) */
REASON(VB_R_XRC_SRQ, "xrc-srq", INVALID_RD, IBV_WC_REM_INV_RD_REQ_ERR, NEVER, IBV_EVENT_QP_ACCESS_ERR, srq,
       vb_say_xrc_srq)
/* more READs and atomics at once than responder resources */
REASON(VB_R_TOO_MANY_READS, "too-many-reads", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_QP_OP_ERR,
       IBV_EVENT_QP_REQ_ERR, limit, vb_say_too_many_reads)
/* READ or atomic with max_rd_atomic 0 (rule 14) */
REASON(VB_R_READ_DEPTH_ZERO, "read-depth-zero", 0, NEVER, IBV_WC_LOC_QP_OP_ERR, NONE, none,
       vb_say_read_depth_zero)
/* opcode does not follow the one before it */
REASON(VB_R_BAD_SEQUENCE, "bad-sequence", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_QP_OP_ERR,
       IBV_EVENT_QP_REQ_ERR, packet, vb_say_bad_sequence)
/* payload does not fit the opcode, the path MTU or the DMA length */
REASON(VB_R_BAD_LENGTH, "bad-length", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR,
       IBV_EVENT_QP_REQ_ERR, length, vb_say_bad_length)
/* the message takes several packets, of which the two ends expect different ones (rule 28) */
REASON(VB_R_PATH_MTU, "path-mtu", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, IBV_EVENT_QP_REQ_ERR,
       mtu, vb_say_path_mtu)
/* the message is longer than the receive buffer (rule 23: its request always takes this, and the next) */
REASON(VB_R_RECV_TOO_SMALL, "recv-too-small", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, NONE,
       length, vb_say_recv_too_small)
/* the receive buffer's own L_Key check failed; the far end sees REM_OP */
REASON(VB_R_RECV_LOCAL, "recv-local", OPERATION, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, NONE, mem,
       vb_say_recv_local)
/* an atomic's buffer that is not 8 bytes */
REASON(VB_R_MSG_TOO_LONG, "msg-too-long", 0, NEVER, IBV_WC_LOC_LEN_ERR, NONE, length, vb_say_msg_too_long)
/* a request of which queue pairs of this type know nothing */
REASON(VB_R_QP_TYPE, "qp-type", 0, NEVER, IBV_WC_LOC_QP_OP_ERR, NONE, request, vb_say_qp_type)
/* a datagram's address handle belongs to another protection domain (rule 21) */
REASON(VB_R_AH_PD, "ah-pd", 0, NEVER, IBV_WC_LOC_QP_OP_ERR, NONE, none, vb_say_ah_pd)
/* a datagram that is longer than a packet of the port */
REASON(VB_R_DATAGRAM_TOO_LONG, "datagram-too-long", 0, NEVER, IBV_WC_LOC_LEN_ERR, NONE, length,
       vb_say_datagram_too_long)
/* as VB_R_PATH_MTU, in the answer to a READ */
REASON(VB_R_RESPONSE_MTU, "response-mtu", 0, NEVER, IBV_WC_BAD_RESP_ERR, NONE, mtu, vb_say_response_mtu)
/* a response that fits no request */
REASON(VB_R_RESPONSE_BAD, "response-bad", 0, NEVER, IBV_WC_BAD_RESP_ERR, NONE, packet, vb_say_response_bad)

/* Retries and reach. */

/* receiver not ready, retries used up (rule 1) */
REASON(VB_R_RNR, "rnr", 0, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, NONE, retry, vb_say_rnr)
/* no acknowledgement, retries used up (rule 38) */
REASON(VB_R_RETRY, "retry", 0, IBV_WC_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR, NONE, retry, vb_say_retry)
/* the peer's process ended without a goodbye */
REASON(VB_R_PEER_DIED, "peer-died", 0, IBV_WC_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR, IBV_EVENT_QP_FATAL, gone,
       vb_say_peer_died)
/* the peer's process lives, and the connection to it does not */
REASON(VB_R_PEER_CLOSED, "peer-closed", 0, IBV_WC_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR, IBV_EVENT_QP_FATAL,
       gone, vb_say_peer_closed)
/* this process closed the descriptors of its own device */
REASON(VB_R_DEVICE_LOST, "device-lost", 0, NEVER, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL, none,
       vb_say_device_lost)

/* What a far end found, where no more is known of it here. */

REASON(VB_R_NAK_INVALID_REQUEST, "nak-invalid-request", INVALID, IBV_WC_REM_INV_REQ_ERR,
       IBV_WC_REM_INV_REQ_ERR, NONE, none, vb_say_nak_invalid_request)
REASON(VB_R_NAK_REMOTE_ACCESS, "nak-remote-access", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR,
       NONE, none, vb_say_nak_remote_access)
REASON(VB_R_NAK_REMOTE_OPERATION, "nak-remote-operation", OPERATION, IBV_WC_REM_OP_ERR, IBV_WC_REM_OP_ERR,
       NONE, none, vb_say_nak_remote_operation)
REASON(VB_R_NAK_INVALID_RD, "nak-invalid-rd", INVALID_RD, IBV_WC_REM_INV_RD_REQ_ERR,
       IBV_WC_REM_INV_RD_REQ_ERR, NONE, none, vb_say_nak_invalid_rd)

/* What is dropped in silence, as the specification has it of types that are not acknowledged: no packet and
 * no completion tells of it (rule 23). */

/* packets before it did not come, and their message is lost */
REASON(VB_R_DROP_SEQUENCE, "drop-sequence", 0, NEVER, NEVER, NONE, psn, vb_say_drop_sequence)
/* no receive request was posted */
REASON(VB_R_DROP_NO_RECV, "drop-no-receive", 0, NEVER, NEVER, NONE, none, vb_say_drop_no_receive)
/* it is longer than the receive buffer */
REASON(VB_R_DROP_TOO_SMALL, "drop-too-small", 0, NEVER, NEVER, NONE, length, vb_say_drop_too_small)
/* its Q_Key is another one than the queue pair's */
REASON(VB_R_DROP_QKEY, "drop-qkey", 0, NEVER, NEVER, NONE, qkey, vb_say_drop_qkey)
/* a message came for a number that no queue pair has which takes such, from there, and takes them now */
REASON(VB_R_DROP_NO_QP, "drop-no-qp", 0, NEVER, NEVER, NONE, no_qp, vb_say_drop_no_qp)
/* the far end has taken nothing for long, and there is no room */
REASON(VB_R_DROP_FULL, "drop-full", 0, NEVER, NEVER, NONE, retry, vb_say_drop_full)
/* nobody is there to whom it could be sent */
REASON(VB_R_DROP_NOBODY, "drop-nobody", 0, NEVER, NEVER, NONE, retry, vb_say_drop_nobody)

/* Queues. */

/* the QP is in the error state */
REASON(VB_R_FLUSHED, "flushed", 0, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR, NONE, none, vb_say_flushed)
/* a completion found its CQ full (rule 31) */
REASON(VB_R_CQ_OVERRUN, "cq-overrun", OPERATION, IBV_WC_REM_OP_ERR, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL,
       limit, vb_say_cq_overrun)
