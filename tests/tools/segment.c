/* A process that only shows an adapter's segment, as if it were in the middle of things that last
 * nanoseconds: a thread uses a region, a peer uses another one's, an entry is being changed.   segment NUMBER
 * [OTHER] shows adapter NUMBER; with OTHER a thread of it is using key index 1 of that adapter.   segment ids
 * says where the ids of rdma_cm stand. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host/segment.h"
#include "mem/peer_mem.h"
#include "mem/keys.h"

#define CHECK(c)                                                   \
	do {                                                       \
		if (!(c)) {                                        \
			fprintf(stderr, "%d: %s\n", __LINE__, #c); \
			exit(1);                                   \
		}                                                  \
	} while (0)

static void set(uint8_t *base, uint32_t index, const struct vb_key_entry *e)
{
	((struct vb_key_entry *)(void *)(base + VB_SEG_KEYS))[index] = *e;
}

int main(int argc, char **argv)
{
	int fd = memfd_create("verbena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct vb_seg_head *h;
	struct vb_key_marks *marks;
	struct vb_key_slot *slots;
	uint8_t *base;
	uint64_t pd;
	char c;

	if (argc > 1 && !strcmp(argv[1], "ids"))
		return printf("%llu\n", (unsigned long long)VB_SEG_IDS) < 0;
	CHECK(argc > 1 && fd >= 0 && !ftruncate(fd, VB_SEG_SIZE));
	base = mmap(NULL, VB_SEG_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	CHECK(base != MAP_FAILED && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
	h = (void *)base;
	*h = (struct vb_seg_head){.magic = VB_SEG_MAGIC,
				  .version = VB_SEG_VERSION,
				  .size = VB_SEG_SIZE,
				  .number = (uint32_t)atoi(argv[1]),
				  .pid = (uint32_t)getpid(),
				  .profile = "rxe"};
	pd = (uint64_t)h->number << 52 | 5;
	set(base, 1,
	    &(struct vb_key_entry){.seq = 2,
				   .key = 0x107,
				   .pd = pd,
				   .access = 7,
				   .iova = 0x9000,
				   .length = 0x1000,
				   .addr = 0x9000,
				   .told = 1,
				   .tied = 1});
	set(base, 2,
	    &(struct vb_key_entry){.seq = 4,
				   .key = 0x201,
				   .pd = pd,
				   .access = 2,
				   .kind = VB_KEY_WINDOW,
				   .iova = 0,
				   .length = 16,
				   .addr = 0x9010,
				   .qpn = 0x123,
				   .tied = 0x107});
	set(base, 3, &(struct vb_key_entry){.seq = 7, .key = 0x301, .length = 16}); /* odd: being changed */
	set(base, 4,
	    &(struct vb_key_entry){.seq = 2,
				   .key = 0x400,
				   .pd = 77ull << 52 | 6,
				   .kind = VB_KEY_ON_DEMAND,
				   .length = UINT64_MAX});
	marks = (void *)(base + VB_SEG_KEY_MARKS);
	marks->keys = 5;
	marks->slots = 2;
	atomic_store(&((struct vb_history *)(void *)(base + VB_SEG_HISTORY))->used, 0); /* has its page */
	slots = (void *)(base + VB_SEG_KEY_SLOTS);
	slots[1].index = 2;
	if (argc > 2)
		slots[0].placing = vb_announce_word((uint32_t)atoi(argv[2]), 0, 1);
	printf("ready\n");
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	return 0;
}
