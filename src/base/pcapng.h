/* Writes captures in the format pcapng (draft-ietf-opsawg-pcapng): one section, one Ethernet interface,
 * packets with times in nanoseconds and comments.  libpcap cannot write comments, and nothing else in
 * distributions can that a C program may link to, hence this.
 *
 * What is written is put into a buffer of fixed size, and goes to the file by write(2) in whole blocks: when
 * the buffer is full, by vb_pcapng_flush(), and at the end.  Each file begins with its own section, and all
 * sections are alike, so several processes may append to one file.  Not for several threads at once: the
 * caller has a lock. Functions return 0 or a positive errno; none is a cancellation point.
 *
 * After a write that failed the file ends with a whole block, as far as that can be had, and nothing is
 * written any more: what comes is counted. */
#ifndef VB_BASE_PCAPNG_H
#define VB_BASE_PCAPNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vb_pcapng;

struct vb_pcapng_cfg {
	const char *path;
	const char *interface;	 /* its name in the file */
	const char *application; /* who writes */
	uint32_t snap;		 /* bytes kept of a packet; 0: all */
	bool fresh;		 /* what the file has is removed; else it is appended to */
	/* Not while another process writes to it by such a writer: EBUSY then.  Half a block at its end,
	 * which one left that was killed in write(), goes; EINVAL: what is there is no capture. */
	bool alone;
	/* A ring: `files` of `file_size` bytes at most, PATH.0 and so on, the oldest being written anew.  0:
	 * one file of any size, PATH. */
	uint32_t files;
	uint64_t file_size;
};

enum { VB_PCAPNG_COMMENT = 1024 }; /* bytes of a comment; the rest is cut */
#define VB_PCAPNG_SMALLEST 65536   /* least file_size of a ring */

/* Opens the file, or the first of the ring, and writes its beginning; one descriptor.  EINVAL: a ring's size
 * is too small, or the path leads to no regular file; EBUSY; ENOMEM, or what open() and write() say.  Pairs
 * with vb_pcapng_close(), which flushes. */
int vb_pcapng_open(struct vb_pcapng **out, const struct vb_pcapng_cfg *cfg);
int vb_pcapng_close(struct vb_pcapng *w);
/* One packet: `len` bytes, of which `kept` are at `frame` and no more than the snap length goes to the file;
 * when it was (CLOCK_REALTIME, ns); NULL, or what is said of it, in UTF-8.  May write to the file, and so
 * block for it. */
int vb_pcapng_packet(struct vb_pcapng *w, uint64_t when, const void *frame, size_t kept, size_t len,
		     const char *comment);
/* Writes what is in the buffer. */
int vb_pcapng_flush(struct vb_pcapng *w);
/* In a forked child: closes the descriptor, and forgets what is in the buffer, which the parent writes.
 * Nothing is written by this writer any more. */
void vb_pcapng_forked(struct vb_pcapng *w);

#endif
