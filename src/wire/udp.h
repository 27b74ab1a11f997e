/* The wire to other hosts: RoCEv2 packets in plain UDP datagrams (IBTA annex A17).  udp.c opens it at an
 * interface, udp_out.c sends, udp_in.c receives.  host/roce.h has the sockets. */
#ifndef VB_WIRE_UDP_H
#define VB_WIRE_UDP_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "host/adapter.h"
#include "host/roce.h"
#include "iba/limits.h"
#include "iba/net.h"

enum {
	VB_UDP_ROOM = 65536,	 /* bytes of a batch, and of a message that is received */
	VB_UDP_SEGMENTS = 60,	 /* packets of one message: kernels take 64 at least */
	VB_UDP_TOGETHER = 64000, /* and its bytes */
	VB_UDP_MESSAGES = 64,	 /* messages of a batch */
	VB_UDP_WAYS = 4,	 /* sockets by which one slot of far ends is sent to, */
	VB_UDP_FREELY = 32,	 /* unless there are that many already */
	VB_UDP_FLOWINFO = 11,	 /* IPV6_FLOWINFO (linux/in6.h), which libc's headers lack */
};

/* A message of a batch: packets of one length, of which the last one may be shorter, for the kernel to cut
 * apart. */
struct vb_udp_message {
	uint64_t of; /* between which ends: a way out's number for them */
	struct vb_net_host *host;
	struct sockaddr_in6 to;
	struct iovec bytes;
	uint32_t packet; /* bytes of each but the last one */
	uint32_t n;
	bool closed;	      /* the last one is shorter */
	uint8_t again;	      /* how often it was tried again */
	uint32_t control_len; /* without what tells the kernel to cut, which follows */
	_Alignas(8) uint8_t control[160];
};

/* A sending socket, and what is to leave by it. */
struct vb_udp_tx {
	struct vb_lock lock; /* guards the rest; only that of the table of addresses is taken under it */
	struct vb_net *net;
	int fd;
	uint16_t port;
	bool singly; /* each packet is a message: the kernel does not cut, or the user wants it so */
	uint32_t used, sent, n; /* bytes; messages that have left, and all */
	_Atomic bool full;	/* the socket had no room */
	struct vb_udp_message *messages;
	uint8_t *room;
} __attribute__((aligned(VB_LINE)));

/* A packet whose ICRC was wrong: the first one, and then one a second. */
struct vb_udp_wrong {
	struct vb_lock lock; /* guards it; a leaf */
	uint64_t at;	     /* when it came; 0: none has */
	struct vb_roce_arrival of;
	uint8_t pkt[VB_ROCE_MOST];
};

/* A receiving socket, and the message in hand. */
struct vb_udp_in {
	struct vb_rxq rxq;  /* guards all of it by rx, but what is atomic */
	struct vb_net *net; /* set once */
	_Atomic uint32_t cold;
	_Atomic bool more; /* the message in hand has packets that were not taken */
	int fd;
	uint32_t len, packet; /* bytes of the message, and of each packet but the last one */
	uint32_t next, n;     /* of `order` */
	uint16_t order[VB_UDP_ROOM / VB_ROCE_LEAST]; /* in which its packets are taken: answers first */
	bool right; /* the next packet of `order` was looked at, and is right */
	bool by_lo;
	uint8_t tclass, hops;
	uint32_t flow;
	_Atomic uint32_t groups; /* that were joined */
	bool marked, known;	 /* a queue on the way was long; `host` was looked for */
	struct vb_net_host *host;
	struct vb_source source;
	uint8_t sgid[VB_GID_TABLE][16], dgid[16];
	struct vb_roce_ends ends;
	struct vb_roce_last last;
	struct vb_roce_here here;
	struct vb_gid addresses[VB_GID_TABLE];
	uint64_t counts[VB_ROCE_VERDICT_COUNT];
	struct vb_udp_wrong wrong;
	uint8_t *room;
};

struct vb_net {
	struct vb_net_cfg cfg;
	struct vb_udp_in in, mads;	 /* this process's slot; QP1, which all processes of the host share */
	struct vb_udp_tx tx[VB_ROCE_TX]; /* as many as ntx says */
	_Atomic uint32_t ntx;
	struct vb_lock tx_lock;			     /* guards the opening of further ones, and the rest */
	uint8_t spare;				     /* a socket that no slot has, plus 1; 0: there is none */
	struct vb_net_host strangers;		     /* all to whom packets were tossed */
	_Atomic uint64_t ids;			     /* numbers of ends, so far */
	uint8_t of_slot[VB_ROCE_SLOTS][VB_UDP_WAYS]; /* which sockets a slot of far ends has, plus 1 */
};

int vb_udp_in_open(struct vb_net *n);
void vb_udp_in_close(struct vb_net *n);
int vb_udp_join(struct vb_net *n, const uint8_t mgid[16], struct vb_text *why);
void vb_udp_leave(struct vb_net *n, const uint8_t mgid[16]);
int vb_udp_out_open(struct vb_net *n);
void vb_udp_out_close(struct vb_net *n);
struct vb_out *vb_udp_way(struct vb_net *n, const struct vb_net_ends *ends);
bool vb_udp_toss(struct vb_net *n, const struct vb_net_ends *ends, struct vb_gid to,
		 const struct vb_brief *b); /* vb_net_wire.toss */

/* ICMP messages about what a socket sent: asks for them, and takes those that have come.  Whether there were
 * any. The far end's own address is in the table then, with the last one. */
void vb_udp_ask_icmp(int fd);
bool vb_udp_take_icmp(const struct vb_net *n, int fd);
/* Packets to there are lost, as errno or an ICMP message says. */
void vb_udp_refused(const struct vb_net *n, struct vb_net_host *host, uint32_t err, bool icmp);
void vb_udp_keep_wrong(struct vb_udp_wrong *w, const struct vb_roce_arrival *a);
/* As in struct vb_net_wire. */
void vb_udp_hear(struct vb_net *n);
bool vb_udp_is_translated(struct vb_net *n, const struct vb_roce_ends *sent, struct vb_gid *from);

extern const struct vb_net_wire vb_udp_wire;

#endif
