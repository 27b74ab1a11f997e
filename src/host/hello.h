/* What goes over a control socket.  One hello each way, and the memfds of the segment and of the hints with
 * it; then single bytes, and what the upper layer has to say. */
#ifndef VB_HOST_HELLO_H
#define VB_HOST_HELLO_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "host/adapter.h"
#include "iba/reach.h"

enum msg_kind {
	MSG_HELLO = 1,
	MSG_REFUSE,
	MSG_BELL,   /* look at your ring from me */
	MSG_BYE,    /* I am leaving by myself */
	MSG_UNABLE, /* I cannot map your segment: no link, though you answered my hello */
	MSG_TELL,   /* struct tell, perhaps with a descriptor */
	MSG_BROKEN, /* I end the link, since what came from you is nothing that a peer says */
};

enum refuse_why {
	REFUSE_TIE = 1, /* our own connection to you is on its way and wins */
	REFUSE_KNOWN,	/* we have a link already */
	REFUSE_OTHER,
	REFUSE_UNABLE,	/* no memory or no descriptor for your segment */
	REFUSE_VERSION, /* you are of another version: mine is in the hello */
	REFUSE_USER,	/* you are another user's, as it looks from here */
	REFUSE_DENIED,	/* I may not make a call that it takes: `denied` */
	REFUSE_LINK,	/* my ports are of another link layer: `link` */
	REFUSE_BUSY,	/* I cannot send my descriptors just now (ETOOMANYREFS): ask again */
};

/* A call that the sender of a refusal may not make. */
struct denied {
	uint16_t err;  /* errno */
	uint16_t call; /* enum vb_reach_call */
};

static inline struct denied vb_hello_denied(const struct vb_reach_trouble *t)
{
	return (struct denied){.err = (uint16_t)t->err, .call = (uint16_t)t->call};
}

/* MSG_HELLO, and MSG_REFUSE without a descriptor.  The first 16 bytes stay what they are in all versions, so
 * that two that differ can say so; what follows counts only where `version` is the same. */
struct hello {
	uint8_t kind;
	uint8_t why; /* enum refuse_why */
	uint16_t version;
	uint32_t asked; /* the number that was connected to */
	uint64_t magic;
	uint64_t incarnation; /* of the sender, as all below */
	uint32_t number;      /* primary */
	uint32_t index;	      /* of its link: which ring and counter are for the receiver */
	uint32_t pid;
	struct denied denied; /* REFUSE_DENIED, else 0 */
	uint32_t link;	      /* of its ports: IBV_LINK_LAYER_INFINIBAND or _ETHERNET */
	uint32_t reserved;
};

/* A hello as it was received. */
struct heard {
	struct hello h;
	ssize_t n;     /* its length, 0: the other end has closed, -1: nothing yet */
	int err;       /* why it could not be received, 0: it was, or nothing is there */
	int fds[2];    /* HELLO_FDS that came with it, -1: none */
	bool complete; /* all of them did */
	bool no_place; /* err: they came, and this process has no room for them */
};

/* Room for all descriptors that one message can bring (the kernel's SCM_MAX_FD), and who sent it.  The kernel
 * would close those that find none, and wait where the sender has a socket linger. */
struct foreign_room {
	_Alignas(struct cmsghdr) char bytes[CMSG_SPACE(253 * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
};

/* How many descriptors came with a message: the first `most` of them stand in fds, the others are closed. */
int vb_foreign_take(struct msghdr *m, int *fds, int most);
/* Closes what a peer sent, whatever it is, without waiting for it to linger; -1: nothing. */
void vb_foreign_close(int fd);
/* Closes a socket at whose other end somebody is or was, with what lies there unread. */
void vb_foreign_hang_up(int sock);

/* MSG_TELL; as long as its message. */
struct tell {
	uint8_t kind;
	uint8_t subject; /* the upper layer's */
	uint8_t reserved[6];
	uint8_t msg[VB_TELL_MAX];
};

#endif
