/* What tables, numbers and formats have room for.  What is advertised and enforced is the profile's
 * (iba/profile.h), which stays within it. */
#ifndef VB_IBA_LIMITS_H
#define VB_IBA_LIMITS_H

#define VB_MAX_QP	   65536
#define VB_MAX_CQ	   65536
#define VB_MAX_MR	   (1 << 20)
#define VB_MAX_MW	   (1 << 16)
#define VB_MAX_PD	   65536
#define VB_MAX_AH	   65536
#define VB_MAX_SRQ	   65536
#define VB_MAX_COMP_CNTR   65536
#define VB_MAX_MCAST_GRP   8192 /* multicast groups of an adapter; a segment shows as many */
#define VB_MAX_QP_WR	   16384
#define VB_MAX_SRQ_WR	   16384
#define VB_MAX_CQE	   (1 << 22)
#define VB_MAX_CQ_COUNT	   65535 /* completions that one event can be told of */
#define VB_MAX_CQ_PERIOD   4095	 /* us that an event can wait */
#define VB_MAX_SGE	   32
#define VB_MAX_INLINE	   512
#define VB_MAX_RD_ATOMIC   128
#define VB_MAX_DM	   (16u << 20) /* bytes of device memory, of all its objects */
#define VB_MAX_MSG	   (1u << 31)
#define VB_PORT_MTU	   4096 /* active_mtu of the port; the shm wire's own packets are larger */
#define VB_GID_TABLE	   4	/* GIDs that a port can have */
#define VB_GID_ROOM	   8	/* entries of its table, as an adapter's: the others are empty */
#define VB_PKEY_TABLE	   1
#define VB_MAX_DEVICES	   16 /* of a process; a power of two, since GUIDs and LIDs of a host stand in a row */
#define VB_ADAPTER_BITS	   12 /* a QPN is adapter number << 12 | index */
#define VB_ADAPTERS	   (1 << VB_ADAPTER_BITS)
#define VB_QPN_INDEX_BITS  12
#define VB_QPN_INDICES	   (1 << VB_QPN_INDEX_BITS)
#define VB_ADAPTER_NUMBERS 32	/* numbers that one adapter may hold: room for VB_MAX_QP and the unusable */
#define VB_TAGGED_KEYS	   1024 /* keys of domains that a peer made that one number can carry (mem/keys.h) */
#define VB_KEY_PLAIN \
	(VB_MAX_MR + VB_MAX_MW + 1) /* entries of keys without a tag; the others stand behind them */
#define VB_KEY_ENTRIES	  (VB_KEY_PLAIN + VB_ADAPTER_NUMBERS * VB_TAGGED_KEYS)
#define VB_KEY_BITS	  22 /* of a key without a tag: its index and the table's offset together */
#define VB_KEY_OFFSET_MAX ((1u << VB_KEY_BITS) - VB_KEY_PLAIN)
#define VB_MAX_PEERS	  1020 /* peers of one adapter, itself included */
#define VB_LANES	  4    /* most ways between two adapters, a ring there and one back each */
#define VB_MAX_RINGS	  4096 /* VB_SET_SIZE (base/set.h): those of peers, */
#define VB_NET_RINGS	  (VB_MAX_PEERS * VB_LANES) /* and from here on other receive queues */

#endif
