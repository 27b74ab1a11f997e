/* Why something waits, once: what `verbena explain` and the log say about requests, queues and calls that do
 * not get on.  docs/waits.md has a row for each, which scripts/waits-doc-check compares.
 *
 * The columns: the cause; its name; where the program is to be changed (enum vb_wait_place); what to do,
 * which the sentence with the numbers and the place stand before. */

/* ---- a request ---- */
WAIT(NO_RECEIVE, "no-receive", PEER,
     "post receives with ibv_post_recv() before the other end sends, and post each one again after its "
     "completion")
WAIT(NO_RECEIVE_SRQ, "no-receive-srq", PEER,
     "post receives to that SRQ with ibv_post_srq_recv(), and post each one again after its completion")
WAIT(PEER_STOPPED, "peer-stopped", ANY, "let the peer run again: kill -CONT, or continue it in the debugger")
WAIT(PEER_GONE, "peer-gone", ANY,
     "keep the peer's device and queue pair open until this end is done. To go on, start the peer, exchange "
     "the "
     "queue pair numbers again, and connect again")
WAIT(PEER_NO_QP, "peer-no-qp", ANY,
     "keep the queue pair at the peer until this end is done, or exchange the numbers again; check which "
     "number the peer sent")
WAIT(PEER_STATE, "peer-state", PEER,
     "move the queue pair to RTR and RTS with ibv_modify_qp(), with this end's number as dest_qp_num")
WAIT(PEER_ERROR, "peer-error", PEER,
     "look for the first error (verbena explain of that PID), then connect both ends again")
WAIT(PEER_OTHER, "peer-other", PEER, "set dest_qp_num to the number of the other end's queue pair")
WAIT(PEER_PSN, "peer-psn", PEER, "set rq_psn to the sq_psn of the other end")
WAIT(PEER_UNREADABLE, "peer-unreadable", ANY,
     "run verbena explain for the peer on its host, as its user or as root")
WAIT(UNREACHABLE, "unreachable", ANY,
     "remove the obstacle that the sentence names, and connect both ends again")
WAIT(WRONG_ICRC, "wrong-icrc", ANY,
     "let both ends see each other's own address (containers: --network host, a routed network, or a tunnel)")
WAIT(NEVER_HEARD, "never-heard", NORMAL,
     "run verbena explain for the peer on its host, and let UDP port 4791 in here")
WAIT(FENCE, "fence", ANY,
     "see why the READs and atomics before it do not complete: this request only follows them, and its fence "
     "is "
     "no fault")
WAIT(READ_DEPTH, "read-depth", ANY,
     "see why the READs and atomics before it do not complete. If they only are slow, raise max_rd_atomic at "
     "this end and max_dest_rd_atomic at the peer")
WAIT(QUEUE_DRAINED, "sq-drained", HERE, "move the queue pair from SQD to RTS with ibv_modify_qp()")
WAIT(PEER_SLOW, "peer-slow", ANY, "wait; if it lasts, look at what the peer's threads do")
WAIT(AWAITED, "awaited", HERE,
     "post receives with ibv_post_recv(), and post each one again after its completion")
/* ---- a program that polls, or should ---- */
WAIT(OTHER_CQ, "other-cq", HERE,
     "poll that CQ too, or create the queue pair with the polled CQ as its send_cq and recv_cq")
WAIT(UNPOLLED, "unpolled", HERE, "poll that CQ")
WAIT(QUEUE_FULL, "sq-full-unpolled", HERE, "poll the send CQ: a slot is free when its completion was polled")
WAIT(UNSIGNALLED, "sq-full-unsignalled", HERE,
     "set IBV_SEND_SIGNALED on at least one of every max_send_wr requests, and poll its completion")
WAIT(UNSIGNALLED_DONE, "unsignalled", HERE,
     "set IBV_SEND_SIGNALED on the last request, or sq_sig_all at creation, if the program waits for its "
     "completion")
WAIT(BOTH_RECEIVE, "both-receive", ANY, "let one of the two ends send first")
WAIT(NOTHING_SENT, "nothing-sent", NORMAL, "find out why the peer does not send")
WAIT(WRITE_SILENT, "write-silent", PEER,
     "send IBV_WR_RDMA_WRITE_WITH_IMM, or a SEND after the WRITE, if the other end waits for a completion")
WAIT(OWN_STATE, "own-state", HERE,
     "move the queue pair to RTR and RTS with ibv_modify_qp() after the exchange of numbers")
WAIT(OWN_ERROR, "own-error", HERE,
     "look for the first error in the messages above, then connect the queue pair again from RESET")
/* ---- a program that sleeps on a channel ---- */
WAIT(NEVER_ARMED, "never-armed", HERE,
     "call ibv_req_notify_cq() before the first ibv_get_cq_event() and again after each event, and each time "
     "poll until the CQ is empty before sleeping")
WAIT(NOT_REARMED, "not-rearmed", HERE,
     "call ibv_req_notify_cq() after each event, then poll until the CQ is empty, and only then sleep again")
WAIT(ARMED_LATE, "armed-late", HERE,
     "poll until the CQ is empty after each ibv_req_notify_cq(), before ibv_get_cq_event()")
WAIT(SOLICITED, "solicited-only", ANY,
     "call ibv_req_notify_cq(cq, 0) in the process that sleeps, or set IBV_SEND_SOLICITED on the sender's "
     "SENDs")
WAIT(OTHER_CHANNEL, "other-channel", HERE,
     "call ibv_get_cq_event() on that channel, or create the CQ with the other")
WAIT(EVENT_UNREAD, "event-unread", HERE, "call ibv_get_cq_event() on the channel")
WAIT(EVENT_TAKEN, "event-taken", HERE,
     "let the thread that got the event poll the CQ, or give each thread a channel of its own")
WAIT(NO_CHANNEL, "no-channel", HERE, "create that CQ with the channel, or poll it")
WAIT(NO_CQ, "channel-without-cq", HERE, "pass the channel to ibv_create_cq()")
WAIT(ARMED, "armed", NORMAL, "see why no completion comes")
/* ---- a call ---- */
WAIT(CQ_ACKS, "cq-events-unacknowledged", HERE,
     "call ibv_ack_cq_events() for each event of ibv_get_cq_event()")
WAIT(ASYNC_ACKS, "async-events-unacknowledged", HERE,
     "call ibv_ack_async_event() for each event of ibv_get_async_event()")
WAIT(MR_USED, "region-used", ANY, "let that process run: the call returns when its copy has ended")
WAIT(TURN, "poll-in-progress", HERE,
     "call ibv_end_poll() in the thread that has called ibv_start_poll(), on every path and before it ends")
WAIT(BUILDING, "post-in-progress", HERE,
     "call ibv_wr_complete() or ibv_wr_abort() in the thread that has called ibv_wr_start()")
WAIT(BUILT, "not-completed", HERE, "call ibv_wr_complete(): requests are posted by it")
WAIT(ASYNC_EVENT, "async-event", NORMAL, "see what event the program expects")
/* ---- a datagram ---- */
WAIT(DROPPED, "datagrams-dropped", ANY, "see the reasons above")
WAIT(GROUP_EMPTY, "group-empty", ANY,
     "attach the receivers' queue pairs with ibv_attach_mcast() before sending")
WAIT(SRQ_LIMIT, "srq-limit", HERE, "set srq_limit again with ibv_modify_srq() after each event")
/* ---- rdma_cm ---- */
WAIT(CM_ANSWER, "cm-answer", PEER, "get the event with rdma_get_cm_event() and answer it")
WAIT(CM_STEP, "cm-step", HERE, "make that call")
WAIT(CM_UNREAD, "cm-events-unread", HERE, "call rdma_get_cm_event() on the channel of the id")
WAIT(CM_ACKS, "cm-events-unacknowledged", HERE,
     "call rdma_ack_cm_event() for each event before rdma_destroy_id()")
WAIT(CM_IDLE, "cm-connected", NORMAL, "call rdma_disconnect() at one end when it is done")
WAIT(CM_NO_QP, "cm-no-qp", HERE,
     "create a queue pair with rdma_create_qp() before rdma_accept() and rdma_connect(), or pass qp_num")
WAIT(CM_SPACE, "cm-other-space", ANY,
     "pass the same port space to rdma_create_id() at both ends: RDMA_PS_TCP for RC, RDMA_PS_UDP for UD")
WAIT(CM_LISTENS, "cm-listens", NORMAL, "see that the clients use this address and port")
