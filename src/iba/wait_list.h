/* Why something waits, once: what `verbena explain` and the log say about requests, queues and calls that do
 * not get on.  docs/waits.md has a row for each, which scripts/waits-doc-check compares.
 *
 * The columns: the cause; its name; what to do, which the sentence with the numbers stands before. */

/* ---- a request ---- */
WAIT(
    NO_RECEIVE, "no-receive",
    "post receives at the peer with ibv_post_recv() before this end sends, and post each one again after its "
    "completion")
WAIT(NO_RECEIVE_SRQ, "no-receive-srq",
     "post receives to that SRQ with ibv_post_srq_recv(), and post each one again after its completion")
WAIT(PEER_STOPPED, "peer-stopped", "let the peer run again: kill -CONT PID, or continue it in the debugger")
WAIT(PEER_GONE, "peer-gone", "start the peer, exchange the queue pair numbers again, and connect again")
WAIT(PEER_NO_QP, "peer-no-qp",
     "keep the queue pair at the peer until this end is done, or exchange the numbers again; check which "
     "number the peer sent")
WAIT(PEER_STATE, "peer-state",
     "move the peer's queue pair to RTR and RTS with ibv_modify_qp(), with this end's number as dest_qp_num")
WAIT(PEER_ERROR, "peer-error",
     "look for the first error at the peer (verbena explain of its PID), then connect both ends again")
WAIT(PEER_OTHER, "peer-other", "set dest_qp_num at each end to the number of the other end's queue pair")
WAIT(PEER_PSN, "peer-psn", "set the rq_psn of the peer to the sq_psn of this end, and the reverse")
WAIT(PEER_UNREADABLE, "peer-unreadable", "run verbena explain for the peer, as its user or as root")
WAIT(FENCE, "fence",
     "find out why the READs and atomics before it do not complete, or post it without IBV_SEND_FENCE")
WAIT(READ_DEPTH, "read-depth",
     "find out why the READs and atomics before it do not complete, or raise max_rd_atomic at this end and "
     "max_dest_rd_atomic at the peer")
WAIT(QUEUE_DRAINED, "sq-drained", "move the queue pair from SQD to RTS with ibv_modify_qp()")
WAIT(PEER_SLOW, "peer-slow", "wait; if it lasts, look at what the peer's threads do")
/* ---- a program that polls, or should ---- */
WAIT(OTHER_CQ, "other-cq",
     "poll that CQ too, or create the queue pair with the polled CQ as its send_cq and recv_cq")
WAIT(UNPOLLED, "unpolled", "poll that CQ")
WAIT(QUEUE_FULL, "sq-full-unpolled", "poll the send CQ: a slot is free when its completion was polled")
WAIT(UNSIGNALLED, "sq-full-unsignalled",
     "set IBV_SEND_SIGNALED on at least one request of each max_send_wr, and poll its completion")
WAIT(UNSIGNALLED_DONE, "unsignalled",
     "set IBV_SEND_SIGNALED on the last request, or sq_sig_all at creation, if the program waits for its "
     "completion")
WAIT(BOTH_RECEIVE, "both-receive", "let one of the two ends send first")
WAIT(NOTHING_SENT, "nothing-sent", "find out why the peer does not send")
WAIT(WRITE_SILENT, "write-silent",
     "send IBV_WR_RDMA_WRITE_WITH_IMM, or a SEND after the WRITE, if the peer waits for a completion; else "
     "look at the memory that is written")
WAIT(OWN_STATE, "own-state",
     "move the queue pair to RTR and RTS with ibv_modify_qp() after the exchange of numbers")
WAIT(OWN_ERROR, "own-error", "look for the first error above, and connect the queue pair again from RESET")
/* ---- a program that sleeps on a channel ---- */
WAIT(NEVER_ARMED, "never-armed",
     "call ibv_req_notify_cq() after the CQ is created, and poll the CQ once before each ibv_get_cq_event()")
WAIT(NOT_REARMED, "not-rearmed",
     "call ibv_req_notify_cq() after each event, then poll until the CQ is empty, and only then sleep again")
WAIT(ARMED_LATE, "armed-late", "poll the CQ once more after ibv_req_notify_cq(), before ibv_get_cq_event()")
WAIT(SOLICITED, "solicited-only",
     "set IBV_SEND_SOLICITED on the peer's SEND, or call ibv_req_notify_cq(cq, 0)")
WAIT(OTHER_CHANNEL, "other-channel",
     "call ibv_get_cq_event() on that channel, or create the CQ with the other")
WAIT(EVENT_UNREAD, "event-unread", "call ibv_get_cq_event() on the channel")
WAIT(EVENT_TAKEN, "event-taken",
     "let the thread that got the event poll the CQ, or give each thread a channel of its own")
WAIT(NO_CHANNEL, "no-channel", "create that CQ with the channel, or poll it")
WAIT(NO_CQ, "channel-without-cq", "pass the channel to ibv_create_cq()")
WAIT(ARMED, "armed", "nothing here; see why no completion comes")
/* ---- a call ---- */
WAIT(CQ_ACKS, "cq-events-unacknowledged", "call ibv_ack_cq_events() for each event of ibv_get_cq_event()")
WAIT(ASYNC_ACKS, "async-events-unacknowledged",
     "call ibv_ack_async_event() for each event of ibv_get_async_event()")
WAIT(MR_USED, "region-used", "let that process run: the call returns when its copy has ended")
WAIT(TURN, "poll-in-progress", "call ibv_end_poll() in the thread that has called ibv_start_poll()")
WAIT(BUILDING, "post-in-progress",
     "call ibv_wr_complete() or ibv_wr_abort() in the thread that has called ibv_wr_start()")
WAIT(BUILT, "not-completed", "call ibv_wr_complete(): requests are posted by it")
WAIT(ASYNC_EVENT, "async-event", "nothing, unless the program expects an event")
/* ---- a datagram ---- */
WAIT(DROPPED, "datagrams-dropped", "see the reasons above")
WAIT(GROUP_EMPTY, "group-empty", "attach the receivers' queue pairs with ibv_attach_mcast() before sending")
WAIT(SRQ_LIMIT, "srq-limit", "set srq_limit again with ibv_modify_srq() after each event")
/* ---- rdma_cm ---- */
WAIT(CM_ANSWER, "cm-answer", "let the peer's program get its event and answer it")
WAIT(CM_STEP, "cm-step", "make that call")
WAIT(CM_UNREAD, "cm-events-unread", "call rdma_get_cm_event() on the channel of the id")
WAIT(CM_ACKS, "cm-events-unacknowledged", "call rdma_ack_cm_event() for each event before rdma_destroy_id()")
WAIT(CM_IDLE, "cm-connected", "call rdma_disconnect() at one end when it is done")
WAIT(CM_NO_QP, "cm-no-qp",
     "create a queue pair with rdma_create_qp() before rdma_accept() and rdma_connect(), or pass qp_num")
WAIT(CM_SPACE, "cm-other-space", "pass the same port space to rdma_create_id() at both ends")
WAIT(CM_LISTENS, "cm-listens", "nothing here; see that the clients use this address and port")
