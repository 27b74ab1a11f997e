/* How long a thread polls in vain before it offers its CPU to whoever it waits for, which may have no other.
 */
#ifndef VB_HCA_IDLE_H
#define VB_HCA_IDLE_H

#include <stdint.h>

enum {
	/* Polls in a row that found nothing, after which the clock is looked at. */
	VB_IDLE_LOOK = 256,
	/* The same, after which the CPU is offered: where nobody else wants it, which is rare enough to cost
	 * nothing, and where others run whenever it is offered. */
	VB_IDLE_MOST = 2048,
	VB_IDLE_LEAST = 4,
	/* A poll that asks the kernel for packets counts as so many, since it takes as long. */
	VB_IDLE_CALL = 64,
	/* Nanoseconds: longer than the offer takes where nobody else runs; and longer than others keep the
	 * CPU who only wait as well, where they are few, and for each thread of this process that offers its
	 * own. */
	VB_IDLE_REFUSED = 2000,
	VB_IDLE_KEPT = 500000,
	VB_IDLE_KEPT_EACH = 100000,
};

/* One for each thread; begins as VB_IDLE_BEGIN. */
struct vb_idle {
	unsigned polls,
	    look_at; /* in a row that found nothing: since the clock was looked at, and how many */
	unsigned looked, yield_at; /* before that, since the CPU was offered; and how many in all */
	uint64_t clock;		   /* when the clock was looked at, where that has to be in time */
	unsigned others; /* polls since the caller last found what it polls for, of which some took packets in
			    for others */
};
#define VB_IDLE_BEGIN ((struct vb_idle){.look_at = VB_IDLE_LOOK, .yield_at = VB_IDLE_MOST})

/* The clock was looked at, for the time that is to be every `want` ns at the latest, and `took` ns after it
 * was before: who does other things between two polls counts fewer of them. */
static inline void vb_idle_pace(struct vb_idle *i, uint64_t took, uint64_t want)
{
	if (took > want && i->look_at > 1)
		i->look_at /= 2;
	else if (took < want / 4 && i->look_at < VB_IDLE_LOOK && i->look_at < i->yield_at)
		i->look_at *= 2;
}

/* The CPU was offered and is back after `took` ns, while `others` threads of this process offered theirs.
 * Where that brings on some that give it back soon, as threads do that wait for one another on few CPUs, it
 * is offered again the sooner; to a program that computes it goes seldom, as that keeps it long. */
static inline void vb_idle_offered(struct vb_idle *i, uint64_t took, uint32_t others)
{
	if (took < VB_IDLE_REFUSED || took > VB_IDLE_KEPT + (uint64_t)VB_IDLE_KEPT_EACH * others)
		i->yield_at = 2 * i->yield_at < VB_IDLE_MOST ? 2 * i->yield_at : VB_IDLE_MOST;
	else
		i->yield_at = i->yield_at / 2 > VB_IDLE_LEAST ? i->yield_at / 2 : VB_IDLE_LEAST;
	i->look_at = i->yield_at < VB_IDLE_LOOK ? i->yield_at : VB_IDLE_LOOK;
	i->looked = i->others = 0;
}

#endif
