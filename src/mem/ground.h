/* What lies under a range of addresses that could not be registered, and where in it the trouble is: for the
 * sentence that refuses.  Reads this process's mappings, which takes milliseconds in a process with many. */
#ifndef VB_MEM_GROUND_H
#define VB_MEM_GROUND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum vb_ground_trouble {
	VB_GROUND_FINE,	    /* none was found: it may have been mended meanwhile */
	VB_GROUND_HOLE,	    /* nothing is mapped there */
	VB_GROUND_NO_READ,  /* PROT_NONE */
	VB_GROUND_NO_WRITE, /* and writing was wanted */
	VB_GROUND_FILE_END, /* a page behind the end of the file */
	VB_GROUND_NO_HUGE,  /* the pool of huge pages is empty */
	VB_GROUND_DEVICE,   /* memory of a device */
	VB_GROUND_OTHER,    /* a page that cannot be had, for instance after a memory error */
	VB_GROUND_UNKNOWN,  /* the mappings cannot be read */
};

struct vb_ground_spot {	     /* a mapping */
	uint64_t start, end; /* end 0: there is none */
	uint64_t offset;     /* in the file */
	uint64_t ino;
	uint64_t page; /* bytes of a page, 0: not known */
	bool readable, writable, executable, shared;
	char name[200]; /* as the kernel shows it, perhaps cut */
};

struct vb_ground {
	enum vb_ground_trouble trouble;
	uint64_t bad, bad_end;		   /* first address that is in the way, and where that stretch ends */
	uint64_t before, behind;	   /* bytes of the range before and behind it that are fine */
	struct vb_ground_spot at;	   /* the mapping in the way; none for a hole */
	struct vb_ground_spot below, next; /* a hole: the nearest mappings */
};

/* Looks at [addr, addr+length), which does not wrap. */
void vb_ground_look(struct vb_ground *g, uint64_t addr, uint64_t length, bool write);

/* What is wrong there and what to change, without the range's own numbers; returns buf. */
const char *vb_ground_say(char *buf, size_t size, const struct vb_ground *g);

#endif
