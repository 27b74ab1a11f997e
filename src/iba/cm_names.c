/* What the numbers of communication management mean to who reads a sentence. */
#include "iba/cm_msg.h"

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

/* 12.6.7.2 and, of the last, the amendment for enhanced connection establishment (ECE). */
static const char *const rejs[] = {
    [VB_CM_REJ_NO_QP] = "no queue pair: the peer could not create one",
    [VB_CM_REJ_NO_EEC] = "no end-to-end context: the peer could not create one",
    [VB_CM_REJ_NO_RESOURCES] = "no resources: the peer has no room for another connection",
    [VB_CM_REJ_TIMEOUT] = "timeout: the peer did not receive the next message in time",
    [VB_CM_REJ_UNSUPPORTED] = "unsupported request",
    [VB_CM_REJ_INVALID_COMM_ID] = "invalid communication ID: the peer has no such connection",
    [VB_CM_REJ_INVALID_COMM_INSTANCE] =
	"invalid communication instance: the communication IDs and the queue pair do not match",
    [VB_CM_REJ_INVALID_SERVICE_ID] = "invalid service ID: no listener on this address and port",
    [VB_CM_REJ_INVALID_SERVICE_TYPE] =
	"invalid transport service type: the listener does not accept queue pairs of this type",
    [VB_CM_REJ_STALE_CONN] = "stale connection: the peer still has an earlier connection of this queue pair",
    [VB_CM_REJ_NO_RDC] = "no reliable datagram channel",
    [VB_CM_REJ_INVALID_GID] = "invalid GID of the primary path: the peer does not have this GID",
    [VB_CM_REJ_INVALID_LID] = "invalid LID of the primary path: the peer does not have this LID",
    [VB_CM_REJ_INVALID_SL] = "invalid service level of the primary path",
    [VB_CM_REJ_INVALID_TRAFFIC_CLASS] = "invalid traffic class of the primary path",
    [VB_CM_REJ_INVALID_HOP_LIMIT] = "invalid hop limit of the primary path",
    [VB_CM_REJ_INVALID_RATE] = "invalid packet rate of the primary path",
    [VB_CM_REJ_INVALID_ALT_GID] = "invalid GID of the alternate path",
    [VB_CM_REJ_INVALID_ALT_LID] = "invalid LID of the alternate path",
    [VB_CM_REJ_INVALID_ALT_SL] = "invalid service level of the alternate path",
    [VB_CM_REJ_INVALID_ALT_TRAFFIC_CLASS] = "invalid traffic class of the alternate path",
    [VB_CM_REJ_INVALID_ALT_HOP_LIMIT] = "invalid hop limit of the alternate path",
    [VB_CM_REJ_INVALID_ALT_RATE] = "invalid packet rate of the alternate path",
    [VB_CM_REJ_REDIRECT] = "redirected to another port and connection manager",
    [VB_CM_REJ_PORT_REDIRECT] = "redirected to another port",
    [VB_CM_REJ_INVALID_MTU] = "invalid path MTU: the peer's MTU is smaller",
    [VB_CM_REJ_RESPONDER_RESOURCES] = "not enough responder resources at the peer",
    [VB_CM_REJ_CONSUMER] = "rejected by the remote program",
    [VB_CM_REJ_RNR_RETRY] = "the peer does not accept this RNR retry count",
    [VB_CM_REJ_DUPLICATE_COMM_ID] = "duplicate communication ID: another connection already uses it",
    [VB_CM_REJ_CLASS_VERSION] = "the peer's connection manager uses another class version",
    [VB_CM_REJ_INVALID_FLOW_LABEL] = "invalid flow label of the primary path",
    [VB_CM_REJ_INVALID_ALT_FLOW_LABEL] = "invalid flow label of the alternate path",
    [VB_CM_REJ_VENDOR_OPTION] = "the vendor's options (ECE) are not supported",
};

/* 12.11.2 */
static const char *const sidrs[] = {
    [VB_CM_SIDR_SUCCESS] = "resolved",
    [VB_CM_SIDR_UNSUPPORTED] = "service ID not supported: no listener on this address and port",
    [VB_CM_SIDR_REJECT] = "rejected by the remote program",
    [VB_CM_SIDR_NO_QP] = "no queue pair: the peer has none for this service",
    [VB_CM_SIDR_REDIRECT] = "redirected to another port",
    [VB_CM_SIDR_UNSUPPORTED_VERSION] = "the peer's connection manager uses another class version",
};

const char *vb_cm_rej_text(uint16_t reason)
{
	const char *text = reason < LENGTH(rejs) ? rejs[reason] : NULL;

	return text ? text : "a reason that the specification does not define";
}

const char *vb_cm_sidr_text(uint8_t status)
{
	return status < LENGTH(sidrs) ? sidrs[status] : "a status that the specification does not define";
}
