#include "base/pcapng.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/own.h"
#include "base/quiet.h"

/* Numbers of the format: blocks (draft, section 4), their options (3.5, 4.1 to 4.3). */
enum {
	SECTION = 0x0a0d0d0a,
	INTERFACE = 1,
	PACKET = 6,
	MAGIC = 0x1a2b3c4d,
	OPT_END = 0,
	OPT_COMMENT = 1,
	OPT_APPLICATION = 4, /* of a section */
	OPT_NAME = 2,	     /* of an interface */
	OPT_RESOLUTION = 9,  /* of an interface: */
	RESOLUTION_NS = 9,   /* 10^-9 s */
	LINK_ETHERNET = 1,
};

enum { BUFFER = 65536, NAME = 64, PATH = 4096 };

struct vb_pcapng {
	int fd; /* -1: none */
	struct vb_own own;
	bool alone;
	int err; /* why nothing is written any more, 0: it is */
	uint32_t snap, files, file;
	uint64_t file_size, size; /* of the present file, with what is in the buffer */
	uint32_t packets;	  /* in the buffer */
	size_t used;
	char path[PATH], interface[NAME], application[NAME];
	uint8_t *buffer;
};

/* A block while it is put together: its bytes go to `at`, whose room has been asked for. */
struct block {
	uint8_t *start, *at;
};

static void put(struct block *b, const void *data, size_t n)
{
	if (n)
		memcpy(b->at, data, n);
	b->at += n;
}

static void put_padded(struct block *b, const void *data, size_t n)
{
	put(b, data, n);
	memset(b->at, 0, -n & 3);
	b->at += -n & 3;
}

static void put16(struct block *b, uint16_t v)
{
	put(b, &v, sizeof(v)); /* in this machine's order, which MAGIC tells */
}

static void put32(struct block *b, uint32_t v)
{
	put(b, &v, sizeof(v));
}

static void begin(struct block *b, uint8_t *at, uint32_t type)
{
	b->start = b->at = at;
	put32(b, type);
	put32(b, 0); /* end_block() */
}

static void put_option(struct block *b, uint16_t code, const void *data, size_t n)
{
	put16(b, code);
	put16(b, (uint16_t)n);
	put_padded(b, data, n);
}

/* Its length stands at both ends. */
static size_t end_block(struct block *b)
{
	uint32_t len = (uint32_t)(b->at - b->start) + 4;

	put32(b, len);
	memcpy(b->start + 4, &len, sizeof(len));
	return len;
}

static void put_beginning(struct vb_pcapng *w)
{
	const uint8_t resolution = RESOLUTION_NS;
	struct block b;

	begin(&b, w->buffer + w->used, SECTION);
	put32(&b, MAGIC);
	put16(&b, 1); /* version 1.0 */
	put16(&b, 0);
	put32(&b, UINT32_MAX); /* of any length */
	put32(&b, UINT32_MAX);
	put_option(&b, OPT_APPLICATION, w->application, strlen(w->application));
	put_option(&b, OPT_END, NULL, 0);
	w->used += end_block(&b);
	begin(&b, w->buffer + w->used, INTERFACE);
	put16(&b, LINK_ETHERNET);
	put16(&b, 0);
	put32(&b, w->snap);
	put_option(&b, OPT_NAME, w->interface, strlen(w->interface));
	put_option(&b, OPT_RESOLUTION, &resolution, 1);
	put_option(&b, OPT_END, NULL, 0);
	w->used += end_block(&b);
	w->size += w->used;
}

/* A write ended in the middle of a block: takes away what it wrote, unless others have written behind it. */
static void take_back(struct vb_pcapng *w, size_t written)
{
	off_t end = lseek(w->fd, 0, SEEK_CUR);
	struct stat st;

	if (end >= (off_t)written && !fstat(w->fd, &st) && st.st_size == end)
		(void)!ftruncate(w->fd, end - (off_t)written);
}

static int fail(struct vb_pcapng *w, int err)
{
	w->err = err;
	w->packets = 0;
	w->used = 0;
	return err;
}

/* Under a disabled cancellation. */
static int write_out(struct vb_pcapng *w)
{
	size_t done = 0;
	int err;

	if (w->err)
		return w->err;
	if (!vb_own_is(&w->own,
		       w->fd)) /* the program has closed it, and the number may be a file of its own */
		return fail(w, EIO);
	while (done < w->used) {
		ssize_t n = vb_write_quietly(w->fd, w->buffer + done, w->used - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			err = n ? errno : EIO;
			take_back(w, done);
			return fail(w, err);
		}
		done += (size_t)n;
	}
	w->used = 0;
	w->packets = 0;
	return 0;
}

/* The length of the block at `at`, 0: there is no whole one of ours. */
static uint32_t block_at(int fd, off_t at, off_t size)
{
	uint32_t head[2], tail;

	if (size - at < 12 || pread(fd, head, sizeof(head), at) != sizeof(head))
		return 0;
	if ((head[0] != SECTION && head[0] != INTERFACE && head[0] != PACKET) || head[1] < 12 ||
	    head[1] % 4 || head[1] > size - at ||
	    pread(fd, &tail, sizeof(tail), at + head[1] - 4) != sizeof(tail))
		return 0;
	return tail == head[1] ? head[1] : 0;
}

/* What is appended to ends with a whole block: a writer that was killed in write() may have left half of one,
 * which is taken away.  EINVAL: the file is no capture. */
static int mend(struct vb_pcapng *w, off_t size)
{
	uint32_t last, n;
	off_t at = 0;

	if (!size)
		return 0;
	if (pread(w->fd, &n, sizeof(n), 0) != sizeof(n) || n != SECTION || !block_at(w->fd, 0, size))
		return EINVAL;
	if (pread(w->fd, &last, sizeof(last), size - 4) == sizeof(last) && last && last <= size &&
	    block_at(w->fd, size - last, size) == last)
		return 0;
	while ((n = block_at(w->fd, at, size)))
		at += n;
	return ftruncate(w->fd, at) ? errno : 0;
}

/* Closes what was opened in vain. */
static int give_up(struct vb_pcapng *w, int err)
{
	close(w->fd);
	w->fd = -1;
	return err;
}

static int open_file(struct vb_pcapng *w, bool fresh)
{
	char path[PATH + 16];
	struct stat st;
	int err;

	snprintf(path, sizeof(path), w->files ? "%s.%u" : "%s", w->path, w->file);
	/* Not to wait for a reader, should it be a pipe, which it may not be. */
	w->fd = open(path,
		     O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (fresh ? O_TRUNC : 0),
		     0666);
	if (w->fd < 0)
		return errno;
	w->fd = vb_own_high(w->fd);
	w->own = vb_own_of(w->fd);
	if (fstat(w->fd, &st) || !S_ISREG(st.st_mode))
		return give_up(w, EINVAL);
	/* It ends with the descriptor, that is with the process at the latest.  Where the file system knows
	 * no such locks there is nothing to wait for. */
	if (w->alone && flock(w->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
		return give_up(w, EBUSY);
	if (w->alone && !fresh) { /* nobody else is writing to it */
		err = mend(w, st.st_size);
		if (err || fstat(w->fd, &st))
			return give_up(w, err ? err : EIO);
	}
	w->size = (uint64_t)st.st_size;
	put_beginning(w);
	return 0;
}

/* The next file of the ring. */
static int turn(struct vb_pcapng *w)
{
	int err = write_out(w);

	if (err)
		return err;
	vb_own_close(&w->own, w->fd);
	w->fd = -1;
	w->file = (w->file + 1) % w->files;
	err = open_file(w, true);
	return err ? fail(w, err) : 0;
}

int vb_pcapng_open(struct vb_pcapng **out, const struct vb_pcapng_cfg *cfg)
{
	struct vb_pcapng *w;
	int err, cancel;

	if (strlen(cfg->path) >= PATH)
		return ENAMETOOLONG;
	if (cfg->files && cfg->file_size < VB_PCAPNG_SMALLEST)
		return EINVAL;
	w = calloc(1, sizeof(*w)); /* vb_pcapng_close() */
	if (!w)
		return ENOMEM;
	w->buffer = malloc(BUFFER);
	w->alone = cfg->alone;
	w->snap = cfg->snap;
	w->files = cfg->files;
	w->file_size = cfg->file_size;
	snprintf(w->path, sizeof(w->path), "%s", cfg->path);
	snprintf(w->interface, sizeof(w->interface), "%s", cfg->interface);
	snprintf(w->application, sizeof(w->application), "%s", cfg->application);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	err = w->buffer ? open_file(w, cfg->fresh || cfg->files) : ENOMEM;
	if (!err) {
		err = write_out(w);
		if (err)
			vb_own_close(&w->own, w->fd);
	}
	pthread_setcancelstate(cancel, NULL);
	if (err) {
		free(w->buffer);
		free(w);
		return err;
	}
	*out = w;
	return 0;
}

int vb_pcapng_flush(struct vb_pcapng *w)
{
	int err, cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	err = write_out(w);
	pthread_setcancelstate(cancel, NULL);
	return err;
}

int vb_pcapng_close(struct vb_pcapng *w)
{
	int err = vb_pcapng_flush(w), cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	vb_own_close(&w->own, w->fd);
	pthread_setcancelstate(cancel, NULL);
	free(w->buffer);
	free(w);
	return err;
}

/* Room for a block of `n` bytes in the buffer, and in the file. */
static int make_room(struct vb_pcapng *w, size_t n)
{
	int err = 0, cancel;

	if (w->err)
		return w->err;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	if (w->files && w->size + n > w->file_size)
		err = turn(w);
	if (!err && w->used + n > BUFFER)
		err = write_out(w);
	pthread_setcancelstate(cancel, NULL);
	return err;
}

/* Cut where a character of UTF-8 begins. */
static size_t comment_len(const char *comment)
{
	size_t n = strnlen(comment, VB_PCAPNG_COMMENT + 1);

	if (n <= VB_PCAPNG_COMMENT)
		return n;
	n = VB_PCAPNG_COMMENT;
	while (n && (comment[n] & 0xc0) == 0x80)
		n--;
	return n;
}

int vb_pcapng_packet(struct vb_pcapng *w, uint64_t when, const void *frame, size_t kept, size_t len,
		     const char *comment)
{
	enum { REST = 64 }; /* more than a packet's block has besides data and comment */
	size_t said = comment ? comment_len(comment) : 0;
	struct block b;
	int err;

	if (w->snap && kept > w->snap)
		kept = w->snap;
	if (kept > BUFFER - VB_PCAPNG_COMMENT - 4 * REST)
		kept = BUFFER - VB_PCAPNG_COMMENT - 4 * REST;
	err = make_room(w, kept + said + REST);
	if (err)
		return err;
	begin(&b, w->buffer + w->used, PACKET);
	put32(&b, 0); /* the interface */
	put32(&b, (uint32_t)(when >> 32));
	put32(&b, (uint32_t)when);
	put32(&b, (uint32_t)kept);
	put32(&b, (uint32_t)len);
	put_padded(&b, frame, kept);
	if (said) {
		put_option(&b, OPT_COMMENT, comment, said);
		put_option(&b, OPT_END, NULL, 0);
	}
	len = end_block(&b);
	w->used += len;
	w->size += len;
	w->packets++;
	return 0;
}

void vb_pcapng_forked(struct vb_pcapng *w)
{
	vb_own_close(&w->own, w->fd);
	w->fd = -1;
	w->err = EIO;
	w->used = 0;
	w->packets = 0;
}
