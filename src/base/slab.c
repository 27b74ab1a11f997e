#include "base/slab.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A piece stands at a multiple of its length, so that each object knows its piece. */
#define PIECE ((size_t)64 << 10)

struct piece {
	struct vb_list on; /* s->room, or nothing: the piece is full */
	uint32_t used;
	uint32_t begun; /* bytes of `at` that have ever been used */
	void *free;	/* objects given back; the first word of each leads to the next */
	_Alignas(16) char at[];
};

#define ROOM (PIECE - offsetof(struct piece, at))

/* The sanitizer sees what is used after it was freed only if it comes from the heap. */
#if defined(__SANITIZE_ADDRESS__)
#define ON_HEAP 1
#elif defined(__has_feature)
#define ON_HEAP __has_feature(address_sanitizer)
#else
#define ON_HEAP 0
#endif

void vb_slab_init(struct vb_slab *s, size_t size)
{
	*s = (struct vb_slab){.size = (size + 15) & ~(size_t)15};
	assert(s->size && s->size <= 1024);
	vb_list_init(&s->room);
}

static struct piece *map_piece(void)
{
	char *p = mmap(NULL, 2 * PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t before;

	if (p == MAP_FAILED)
		return NULL;
	before = -(uintptr_t)p & (PIECE - 1);
	if (before)
		munmap(p, before);
	munmap(p + before + PIECE, PIECE - before);
	return (struct piece *)(void *)(p + before);
}

/* An object of a piece that has room. */
static void *take_from(struct vb_slab *s, struct piece *p)
{
	char *object = p->free;

	vb_lock_assert_held(&s->lock);
	if (object) {
		memcpy(&p->free, object, sizeof(p->free));
	} else {
		object = p->at + p->begun;
		p->begun += (uint32_t)s->size;
	}
	p->used++;
	if (!p->free && ROOM - p->begun < s->size)
		vb_list_unlink(&p->on);
	return object;
}

void *vb_slab_take(struct vb_slab *s)
{
	struct piece *p = NULL;
	void *object;

	if (ON_HEAP)
		return calloc(1, s->size);
	vb_lock_take(&s->lock);
	if (vb_list_empty(&s->room)) {
		vb_lock_give(&s->lock); /* mapping takes time */
		p = map_piece();	/* vb_slab_give() */
		if (!p)
			return NULL;
		vb_lock_take(&s->lock);
		vb_list_append(&s->room, &p->on);
	} else {
		p = vb_list_entry(s->room.next, struct piece, on);
		s->spare &= p->used > 0;
	}
	object = take_from(s, p); /* given below */
	vb_lock_give(&s->lock);
	return memset(object, 0, s->size);
}

void vb_slab_give(struct vb_slab *s, void *object)
{
	struct piece *p = (struct piece *)((uintptr_t)object & ~(PIECE - 1));
	bool empty = false;

	if (ON_HEAP) {
		free(object);
		return;
	}
	vb_lock_take(&s->lock);			   /* given below */
	if (!p->free && ROOM - p->begun < s->size) /* it was full */
		vb_list_append(&s->room, &p->on);
	memcpy(object, &p->free, sizeof(p->free));
	p->free = object;
	if (!--p->used) {
		empty = s->spare; /* one is kept, for a program that has one region now and then */
		s->spare = true;
	}
	if (empty)
		vb_list_unlink(&p->on);
	vb_lock_give(&s->lock);
	if (empty)
		munmap(p, PIECE);
}

void vb_slab_fini(struct vb_slab *s)
{
	struct vb_list *n;

	while ((n = vb_list_pop(&s->room)))
		munmap(vb_list_entry(n, struct piece, on), PIECE);
}
