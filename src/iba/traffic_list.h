/* What a queue pair counts besides its messages, each at a place that is not on the way of a common message:
 * the enum (iba/traffic.h), the names in JSON and metrics and the files of hw_counters/ are made from these
 * rows.
 *
 * The columns: name in the enum; name in JSON, and with "verbena_" in front and "_total" behind of the
 * metric; the files of hw_counters/ that show it, or NULL (of mlx5, of rxe); what it counts. */

/* Packets of the path MTU: a message is one, and those behind the first are counted here. */
TRAFFIC(PACKETS_OUT, "further_packets_sent", NULL, NULL,
	"Packets of the path MTU behind the first one of each message sent.")
TRAFFIC(PACKETS_IN, "further_packets_received", NULL, NULL,
	"Packets of the path MTU behind the first one of each message received.")
/* Direct placement: the target has no part in it, so whoever looks at the target reads these of its peer. */
TRAFFIC(PLACED_OUT, "placed_writes", NULL, NULL,
	"WRITEs and atomics that this process carried out in its peer's memory itself.")
TRAFFIC(PLACED_OUT_BYTES, "placed_write_bytes", NULL, NULL,
	"Bytes that this process wrote into its peer's memory itself.")
TRAFFIC(PLACED_IN, "placed_reads", NULL, NULL,
	"READs that this process carried out in its peer's memory itself.")
TRAFFIC(PLACED_IN_BYTES, "placed_read_bytes", NULL, NULL,
	"Bytes that this process read from its peer's memory itself.")
TRAFFIC(WRITES_IN, "write_requests_received", "rx_write_requests", NULL,
	"WRITE requests received in packets.")
TRAFFIC(READS_IN, "read_requests_received", "rx_read_requests", NULL, "READ requests received in packets.")
TRAFFIC(ATOMICS_IN, "atomic_requests_received", "rx_atomic_requests", NULL,
	"Atomic requests received in packets.")
TRAFFIC(RETRANSMITTED, "retransmitted_packets", NULL, "completer_retry_err", "Packets sent again.")
TRAFFIC(RNR_IN, "rnr_naks_received", NULL, "rcvd_rnr_err",
	"RNR NAKs received: the peer had no receive request posted.")
TRAFFIC(RNR_OUT, "rnr_naks_sent", "out_of_buffer", "send_rnr_err",
	"RNR NAKs sent, and datagrams discarded: no receive request was posted.")
TRAFFIC(SEQ_IN, "sequence_naks_received", "packet_seq_err", "rcvd_seq_err",
	"NAKs for a PSN sequence error received: the peer missed a packet.")
TRAFFIC(SEQ_OUT, "out_of_sequence_received", "out_of_sequence", "out_of_seq_request",
	"Packets received whose PSN is higher than the expected one.")
TRAFFIC(IMPLIED, "implied_naks_received", "implied_nak_seq_err", NULL,
	"Answers missing that a later answer shows to be lost.")
TRAFFIC(DUPLICATES, "duplicates_received", "duplicate_request", "duplicate_request",
	"Requests received again.")
TRAFFIC(TIMEOUTS, "ack_timeouts", "local_ack_timeout_err", NULL, "ACK timeouts.")
TRAFFIC(RETRY_EXCEEDED, "retry_exceeded", NULL, "retry_exceeded_err",
	"Requests that failed with IBV_WC_RETRY_EXC_ERR.")
TRAFFIC(RNR_EXCEEDED, "rnr_retry_exceeded", "rnr_nak_retry_err", "retry_rnr_exceeded_err",
	"Requests that failed with IBV_WC_RNR_RETRY_EXC_ERR.")
TRAFFIC(REMOTE_ACCESS, "remote_access_errors", "req_remote_access_errors", NULL,
	"Requests that failed with IBV_WC_REM_ACCESS_ERR.")
TRAFFIC(REMOTE_INVALID, "remote_invalid_requests", "req_remote_invalid_request", NULL,
	"Requests that failed with IBV_WC_REM_INV_REQ_ERR.")
TRAFFIC(SEND_ERRORS, "send_errors", "req_cqe_error", "send_err",
	"Send requests completed with an error, flushed ones included.")
TRAFFIC(SEND_FLUSHED, "send_flushed", "req_cqe_flush_error", NULL,
	"Send requests completed with IBV_WC_WR_FLUSH_ERR.")
TRAFFIC(RECEIVE_ERRORS, "receive_errors", "resp_cqe_error", NULL,
	"Receive requests completed with an error, flushed ones included.")
TRAFFIC(RECEIVE_FLUSHED, "receive_flushed", "resp_cqe_flush_error", NULL,
	"Receive requests completed with IBV_WC_WR_FLUSH_ERR.")
TRAFFIC(ACCESS_REFUSED, "remote_accesses_refused", "resp_remote_access_errors", NULL,
	"Requests of the peer refused with a remote access error.")
TRAFFIC(LENGTH_REFUSED, "local_length_errors", "resp_local_length_error", NULL,
	"Messages longer than the receive request.")
TRAFFIC(CNPS_OUT, "cnps_sent", "np_cnp_sent", NULL, "Congestion notification packets sent.")
TRAFFIC(CNPS_IN, "cnps_received", "rp_cnp_handled", NULL, "Congestion notification packets received.")
TRAFFIC(MARKED_IN, "ecn_marked_packets_received", "np_ecn_marked_roce_packets", NULL,
	"Packets received with an ECN mark.")
/* No queue pair's: such a packet may lie in its number. */
TRAFFIC(WRONG_ICRC, "wrong_icrcs_received", "rx_icrc_encapsulated", NULL,
	"Packets from other hosts discarded because their checksum (ICRC) is wrong.")
