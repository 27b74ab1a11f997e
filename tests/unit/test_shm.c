/* The shm ring between two ends in one process. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bytes.h"
#include "wire/shm.h"

enum { SENDER = 77, HINT = 130, LIST = 8 };

struct ends {
	struct vb_ring *ring;
	struct vb_peer peer;
	struct vb_shm *tx, *rx;
	_Atomic uint32_t consumed, awake, unused;
	_Atomic uint32_t cold, uncold; /* whether nobody looks at the ring; and that of the other direction */
	struct vb_set hints;
};

static struct vb_wire_parts parts_of(struct ends *e, bool sends, uint64_t incarnation)
{
	return (struct vb_wire_parts){.to = e->ring,
				      .from = e->ring,
				      .consumed = sends ? &e->unused : &e->consumed,
				      .peer_consumed = sends ? &e->consumed : &e->unused,
				      .peer_awake = &e->awake,
				      .cold = sends ? &e->uncold : &e->cold,
				      .peer_cold = sends ? &e->cold : &e->uncold,
				      .peer_hints = &e->hints,
				      .hint = HINT,
				      .incarnation = incarnation};
}

/* A ring as the adapter would place it; the far end is another object over the same ring. */
static int setup(void **state)
{
	struct ends *e = aligned_alloc(_Alignof(struct ends), sizeof(*e));
	struct vb_wire_parts tx, rx;

	memset(e, 0, sizeof(*e));
	e->ring = aligned_alloc(PAGE, sizeof(*e->ring));
	memset(e->ring, 0, sizeof(*e->ring));
	e->awake = VB_POLLING; /* no doorbell */
	e->peer.left = true;   /* no adapter looks after what lies */
	tx = parts_of(e, true, 1);
	rx = parts_of(e, false, SENDER);
	e->tx = vb_shm_new(&e->peer, &tx);
	e->rx = vb_shm_new(&e->peer, &rx);
	*state = e;
	return 0;
}

static int teardown(void **state)
{
	struct ends *e = *state;

	vb_shm_free(e->tx);
	vb_shm_free(e->rx);
	free(e->ring);
	free(e);
	return 0;
}

static int peek(struct ends *e, struct vb_arrival *p)
{
	int ret;

	vb_lock_take(&e->rx->rxq.rx);
	ret = e->rx->rxq.ops->peek(&e->rx->rxq, p);
	vb_lock_give(&e->rx->rxq.rx);
	return ret;
}

static void next(struct ends *e)
{
	vb_lock_take(&e->rx->rxq.rx);
	e->rx->rxq.ops->next(&e->rx->rxq);
	vb_lock_give(&e->rx->rxq.rx);
}

static uint8_t byte_at(uint32_t id, uint32_t i)
{
	return (uint8_t)(id * 31 + i * 7 + (i >> 8));
}

static bool send_one(struct ends *e, uint32_t id, uint32_t hdr, uint32_t len, enum vb_out_class cls)
{
	struct vb_out *o = &e->tx->out;
	struct vb_outbuf b;

	if (!o->ops->reserve(o, &b, hdr, len, cls))
		return false;
	memset(b.hdr, (int)(id & 0xff), hdr);
	memcpy(b.hdr, &id, sizeof(id));
	for (uint32_t i = 0; i < len; i++)
		b.payload[i] = byte_at(id, i);
	o->ops->commit(o, &b);
	return true;
}

static bool take_one(struct ends *e, uint32_t id, uint32_t hdr, uint32_t len)
{
	struct vb_arrival p;
	uint32_t got;
	int r = peek(e, &p);

	if (!r)
		return false;
	assert_int_equal(r, 1);
	memcpy(&got, p.b.bytes, sizeof(got));
	assert_int_equal(got, id);
	assert_int_equal(p.b.hdr_len, hdr);
	assert_true(vb_source_is(p.source, &(struct vb_origin){VB_SOURCE_PEER, SENDER}));
	assert_int_equal(p.payload_len, len);
	for (uint32_t i = 0; i < len; i++) {
		if (p.payload[i] != byte_at(id, i))
			fail_msg("packet %u: byte %u of %u is wrong", id, i, len);
	}
	next(e);
	return true;
}

static void small_packet_takes_one_line(void **state)
{
	struct ends *e = *state;
	struct vb_out *o = &e->tx->out;
	struct vb_outbuf b;

	assert_false(vb_rxq_ready(&e->rx->rxq));
	assert_true(o->ops->reserve(o, &b, 12, 40, VB_OUT_REQUEST));
	assert_ptr_equal(b.payload, b.hdr + 12);
	assert_true((uintptr_t)b.payload + 40 <= ((uintptr_t)b.hdr | 63) + 1);
	o->ops->cancel(o, &b);
	assert_false(vb_rxq_ready(&e->rx->rxq));
	assert_true(send_one(e, 1, 12, 40, VB_OUT_REQUEST));
	assert_true(vb_rxq_ready(&e->rx->rxq));
	assert_true(take_one(e, 1, 12, 40));
	assert_false(vb_rxq_ready(&e->rx->rxq));
}

/* What no header says, with the payload in the slot and in the ring; and not of the packet behind it. */
static void marks_travel(void **state)
{
	struct ends *e = *state;
	struct vb_out *o = &e->tx->out;

	for (unsigned i = 0; i < 16; i++) {
		struct vb_arrival p;
		struct vb_outbuf b;

		assert_true(o->ops->reserve(o, &b, 12, i & 8 ? 300 : 8, VB_OUT_REQUEST));
		assert_true(!b.placed && !b.lent && !b.path_mtu && !b.ack);
		b.placed = i & 1;
		b.lent = i & 2;
		b.path_mtu = i & 4 ? 5 : 0;
		o->ops->commit(o, &b);
		assert_int_equal(peek(e, &p), 1);
		assert_int_equal(p.b.flags, (i & 1) * VB_BRIEF_PLACED | !!(i & 2) * VB_BRIEF_LENT |
						(i & 4 ? 5 : 0) * VB_BRIEF_MTU | !!(i & 8) * VB_BRIEF_APART);
		next(e);
	}
}

static bool is_zero(const void *at, size_t n)
{
	const uint8_t *p = at;

	while (n && !p[n - 1])
		n--;
	return !n;
}

/* A peer that polls would take the half-written line away. */
static void a_slot_is_written_at_once(void **state)
{
	struct ends *e = *state;
	struct vb_out *o = &e->tx->out;
	const struct vb_slot *slot = &e->ring->slots[0];
	struct vb_outbuf b;

	for (uint32_t len = 40; len <= 400; len += 360) { /* in the slot, and beside it */
		assert_true(o->ops->reserve(o, &b, 12, len, VB_OUT_REQUEST));
		memset(b.hdr, 1, 12);
		memset(b.payload, 2, len);
		assert_true(is_zero(slot, sizeof *slot));
		o->ops->cancel(o, &b);
		assert_true(is_zero(slot, sizeof *slot));
	}
	assert_true(send_one(e, 1, 12, 40, VB_OUT_REQUEST));
	assert_false(is_zero(slot, sizeof *slot));
	assert_true(take_one(e, 1, 12, 40));
}

/* What one peer was sent stands nowhere in what the next one is. */
static void the_next_peer_sees_nothing_of_it(void **state)
{
	struct ends *e = *state;
	const struct vb_slot *slot = &e->ring->slots[0];
	struct vb_wire_parts next_one = parts_of(e, true, 2);

	assert_true(send_one(e, 1, 12, 40, VB_OUT_REQUEST));
	memset(e->ring->slots, 0, sizeof e->ring->slots);
	vb_shm_attach(e->tx, &next_one);
	assert_true(send_one(e, 1, 12, 0, VB_OUT_REQUEST));
	assert_true(is_zero(slot->bytes + 12, sizeof slot->bytes - 12));
	assert_true(take_one(e, 1, 12, 0));
}

/* Where nobody looks, a packet leaves a hint; and nowhere else, since that costs two lines. */
static void a_cold_ring_takes_hints(void **state)
{
	struct ends *e = *state;

	assert_true(send_one(e, 1, 12, 40, VB_OUT_REQUEST));
	assert_true(vb_set_is_empty(&e->hints));
	atomic_store(&e->cold, 1);
	assert_true(send_one(e, 2, 12, 40, VB_OUT_REQUEST));
	assert_true(vb_set_take_any(&e->hints) == 1ull << HINT / 64);
	assert_true(vb_set_take_word(&e->hints, HINT / 64) == 1ull << HINT % 64);
	atomic_store(&e->cold, 0);
	assert_true(send_one(e, 3, 12, 40, VB_OUT_REQUEST));
	assert_true(vb_set_is_empty(&e->hints));
}

static void cancelled_data_is_room_again(void **state)
{
	struct ends *e = *state;
	struct vb_out *o = &e->tx->out;
	struct vb_outbuf b;

	for (uint32_t i = 0; i < 1000; i++) {
		assert_true(o->ops->reserve(o, &b, 12, VB_RING_MTU, VB_OUT_REQUEST));
		o->ops->cancel(o, &b);
	}
	assert_true(send_one(e, 5, 12, VB_RING_MTU, VB_OUT_REQUEST));
	assert_true(take_one(e, 5, 12, VB_RING_MTU));
}

static void every_length_arrives(void **state)
{
	struct ends *e = *state;
	uint32_t id = 0;

	for (uint32_t hdr = 12; hdr <= 40; hdr += 4) {
		for (uint32_t len = 0; len <= VB_RING_MTU; len = len < 200 ? len + 1 : len * 2 - 57) {
			assert_true(send_one(e, ++id, hdr, len, VB_OUT_REQUEST));
			assert_true(take_one(e, id, hdr, len));
		}
		assert_true(send_one(e, ++id, hdr, VB_RING_MTU, VB_OUT_REQUEST));
		assert_true(take_one(e, id, hdr, VB_RING_MTU));
	}
}

/* Fills it; returns how many packets fitted. */
static uint32_t send_all_that_fit(struct ends *e, uint32_t id, uint32_t len, enum vb_out_class cls)
{
	uint32_t n = 0;

	while (send_one(e, id + n, 12, len, cls))
		n++;
	return n;
}

/* Packets of 12 and 8 bytes as take_one() expects them; how many there was room for. */
static uint32_t send_list(struct ends *e, uint32_t id, uint32_t n, enum vb_out_class cls)
{
	struct vb_out *o = &e->tx->out;
	struct vb_brief b[LIST];

	memset(b, 0, sizeof(b));
	for (uint32_t k = 0; k < n; k++) {
		b[k].hdr_len = 12;
		b[k].payload_len = 8;
		memset(b[k].bytes, (int)(id + k), 12);
		memcpy(b[k].bytes, &(uint32_t){id + k}, 4);
		for (uint32_t i = 0; i < 8; i++)
			b[k].bytes[12 + i] = byte_at(id + k, i);
	}
	return o->ops->send_list(o, b, n, cls);
}

static void a_list_goes_as_far_as_there_is_room(void **state)
{
	struct ends *e = *state;
	struct vb_out *o = &e->tx->out;
	uint32_t sent = 0, got = 0, room = VB_RING_SLOTS - VB_RING_SLOTS / 8, n, fit;
	uint64_t before;

	for (uint32_t round = 0; round < 5000; round++) {
		n = 1 + round % LIST;
		fit = room - (sent - got) < n ? room - (sent - got) : n;
		before = o->ops->mark(o);
		assert_int_equal(send_list(e, sent, n, VB_OUT_REQUEST), fit);
		assert_int_equal(o->ops->mark(o), before + fit);
		sent += fit;
		if (fit < n) /* a response has room all the same */
			assert_int_equal(send_list(e, sent++, 1, VB_OUT_RESPONSE), 1);
		for (uint32_t k = fit < n ? 17 : round % 4; k && got < sent; k--)
			assert_true(take_one(e, got++, 12, 8));
		assert_int_equal(o->ops->taken(o, o->ops->mark(o)), got == sent);
	}
	while (got < sent)
		assert_true(take_one(e, got++, 12, 8));
	assert_false(vb_rxq_ready(&e->rx->rxq));
	assert_true(o->ops->taken(o, o->ops->mark(o)));
}

/* Whichever packet of a list was taken last: the data before it is room again, and no other is. */
static void a_list_keeps_count_of_data(void **state)
{
	struct ends *e = *state;
	uint32_t all = VB_RING_DATA / VB_RING_MTU, id = 0, taken = 0;

	for (uint32_t k = 0; k < 3 * VB_RING_SLOTS; k++) {
		assert_true(send_one(e, id++, 12, VB_RING_MTU, VB_OUT_RESPONSE));
		assert_int_equal(send_list(e, id, LIST, VB_OUT_RESPONSE), LIST);
		id += LIST;
		assert_true(take_one(e, taken++, 12, VB_RING_MTU));
		for (uint32_t i = 0; i <= k % LIST; i++)
			assert_true(take_one(e, taken++, 12, 8));
		assert_int_equal(send_all_that_fit(e, id, VB_RING_MTU, VB_OUT_RESPONSE), all);
		for (uint32_t i = k % LIST + 1; i < LIST; i++)
			assert_true(take_one(e, taken++, 12, 8));
		for (uint32_t i = 0; i < all; i++)
			assert_true(take_one(e, taken++, 12, VB_RING_MTU));
		id += all;
	}
}

/* One hint and one bell are enough for all of it. */
static void a_list_to_a_cold_ring_leaves_a_hint(void **state)
{
	struct ends *e = *state;

	atomic_store(&e->cold, 1);
	assert_int_equal(send_list(e, 0, LIST, VB_OUT_REQUEST), LIST);
	assert_true(vb_set_take_any(&e->hints) == 1ull << HINT / 64);
	for (uint32_t i = 0; i < LIST; i++)
		assert_true(take_one(e, i, 12, 8));
}

static void requests_leave_room_for_responses(void **state)
{
	struct ends *e = *state;
	uint32_t n = send_all_that_fit(e, 0, 8, VB_OUT_REQUEST), m;

	assert_int_equal(n, VB_RING_SLOTS - VB_RING_SLOTS / 8);
	assert_false(e->tx->out.ops->room(&e->tx->out));
	m = send_all_that_fit(e, n, 8, VB_OUT_RESPONSE);
	assert_int_equal(n + m, VB_RING_SLOTS);
	assert_true(take_one(e, 0, 12, 8));
	assert_false(send_one(e, 0, 12, 8, VB_OUT_REQUEST));
	assert_true(send_one(e, n + m, 12, 8, VB_OUT_RESPONSE));
	for (uint32_t i = 1; i <= n + m; i++)
		assert_true(take_one(e, i, 12, 8));
	assert_true(e->tx->out.ops->room(&e->tx->out));
	assert_false(vb_rxq_ready(&e->rx->rxq));
}

static void requests_leave_data_for_responses(void **state)
{
	struct ends *e = *state;
	uint32_t n = send_all_that_fit(e, 0, VB_RING_MTU, VB_OUT_REQUEST), m;

	assert_int_equal(n, (VB_RING_DATA - VB_RING_DATA / 8) / VB_RING_MTU);
	assert_false(e->tx->out.ops->room(&e->tx->out));
	m = send_all_that_fit(e, n, VB_RING_MTU, VB_OUT_RESPONSE);
	assert_int_equal(n + m, VB_RING_DATA / VB_RING_MTU);
	for (uint32_t i = 0; i < n + m; i++)
		assert_true(take_one(e, i, 12, VB_RING_MTU));
	assert_true(e->tx->out.ops->room(&e->tx->out));
}

static void data_wraps_with_every_remainder(void **state)
{
	struct ends *e = *state;
	uint32_t sent = 0, got = 0, x = 12345, lens[VB_RING_SLOTS];

	while (sent < 20000) {
		x = x * 1664525u + 1013904223u;
		lens[sent % VB_RING_SLOTS] = x % 7 ? (x >> 8) % 3000 : (x >> 8) % (VB_RING_MTU + 1);
		if (send_one(e, sent, 12, lens[sent % VB_RING_SLOTS], VB_OUT_REQUEST)) {
			sent++;
			continue;
		}
		for (uint32_t n = (x >> 4) % 20 + 1; n && got < sent; n--, got++)
			assert_true(take_one(e, got, 12, lens[got % VB_RING_SLOTS]));
	}
	for (; got < sent; got++)
		assert_true(take_one(e, got, 12, lens[got % VB_RING_SLOTS]));
}

/* What is left over at the end counts as used too: else what begins anew would overwrite what nobody has
 * read. */
static void what_is_left_at_the_end_is_used(void **state)
{
	struct ends *e = *state;
	uint32_t half = VB_RING_MTU / 2, n = VB_RING_DATA / VB_RING_MTU;

	assert_true(send_one(e, 0, 12, half, VB_OUT_RESPONSE));
	for (uint32_t i = 1; i < n; i++)
		assert_true(send_one(e, i, 12, VB_RING_MTU, VB_OUT_RESPONSE));
	assert_true(take_one(e, 0, 12, half)); /* half at either end */
	assert_false(send_one(e, n, 12, VB_RING_MTU, VB_OUT_RESPONSE));
	assert_true(take_one(e, 1, 12, VB_RING_MTU));
	assert_true(send_one(e, n, 12, VB_RING_MTU, VB_OUT_RESPONSE));
	for (uint32_t i = 2; i <= n; i++)
		assert_true(take_one(e, i, 12, VB_RING_MTU));
}

static void positions_run_over(void **state)
{
	struct ends *e = *state;
	uint32_t start = UINT32_MAX - 3 * VB_RING_SLOTS + 1;
	struct vb_out *o = &e->tx->out;
	struct vb_arrival p;
	uint64_t m;

	/* As after 2^32 packets. */
	atomic_store(&e->tx->head, start);
	e->tx->seen = start;
	atomic_store(&e->rx->rxq.at, start);
	atomic_store(&e->consumed, start);
	for (uint32_t i = 0; i < VB_RING_SLOTS; i++)
		atomic_store(&e->ring->slots[i].seq, start + i + 1 - VB_RING_SLOTS);
	for (uint32_t i = 0; i < 6 * VB_RING_SLOTS; i++) {
		assert_false(vb_rxq_ready(&e->rx->rxq));
		assert_int_equal(peek(e, &p), 0);
		assert_true(send_one(e, i, 12, 100, VB_OUT_REQUEST));
		m = o->ops->mark(o);
		assert_false(o->ops->taken(o, m));
		assert_true(take_one(e, i, 12, 100));
		assert_true(o->ops->taken(o, m));
	}
}

static void mark_tells_what_was_taken(void **state)
{
	struct ends *e = *state;
	struct vb_out *o = &e->tx->out;
	uint64_t first, second;

	assert_true(o->ops->taken(o, o->ops->mark(o)));
	send_one(e, 1, 12, 8, VB_OUT_REQUEST);
	first = o->ops->mark(o);
	send_one(e, 2, 12, 8, VB_OUT_REQUEST);
	second = o->ops->mark(o);
	assert_false(o->ops->taken(o, first));
	take_one(e, 1, 12, 8);
	assert_true(o->ops->taken(o, first));
	assert_false(o->ops->taken(o, second));
	take_one(e, 2, 12, 8);
	assert_true(o->ops->taken(o, second));
}

/* A hostile peer changes a packet that was looked at: what was checked is what is used. */
static void a_slot_is_read_once(void **state)
{
	struct ends *e = *state;
	struct vb_slot *s = &e->ring->slots[0];
	struct vb_arrival p;
	struct vb_brief was;

	assert_true(send_one(e, 1, 12, 40, VB_OUT_REQUEST));
	assert_int_equal(peek(e, &p), 1);
	was = p.b;
	memset((uint8_t *)s + sizeof(s->seq), 0xff, sizeof(*s) - sizeof(s->seq));
	assert_memory_equal(&p.b, &was, sizeof(was));
	assert_int_equal(p.payload_len, 40);
	for (uint32_t i = 0; i < 40; i++)
		assert_int_equal(p.payload[i], byte_at(1, i));
}

/* A hostile peer writes what it likes; the reader stays within the ring. */
static void insane_packets_are_refused(void **state)
{
	struct ends *e = *state;
	struct vb_slot *s = &e->ring->slots[0];
	struct vb_arrival p;

	atomic_store(&s->seq, 1);
	s->hdr_len = 49;
	assert_int_equal(peek(e, &p), -1);
	s->hdr_len = 12;
	s->inline_len = VB_SLOT_INLINE - 12 + 1;
	assert_int_equal(peek(e, &p), -1);
	s->inline_len = VB_SLOT_INLINE - 12;
	assert_int_equal(peek(e, &p), 1);
	s->flags = VB_SLOT_DATA;
	s->data_len = 1;
	s->data_off = VB_RING_DATA;
	assert_int_equal(peek(e, &p), -1);
	s->data_off = UINT32_MAX;
	assert_int_equal(peek(e, &p), -1);
	s->data_off = VB_RING_DATA - 1;
	assert_int_equal(peek(e, &p), 1);
	s->data_len = VB_RING_MTU + 1;
	s->data_off = 0;
	assert_int_equal(peek(e, &p), -1);
	s->data_len = UINT32_MAX;
	assert_int_equal(peek(e, &p), -1);
}

/* A counter that no reader can have reached frees nothing. */
static void insane_counter_frees_nothing(void **state)
{
	struct ends *e = *state;
	uint32_t n = send_all_that_fit(e, 0, 8, VB_OUT_RESPONSE);

	assert_int_equal(n, VB_RING_SLOTS);
	atomic_store(&e->consumed, n + 1);
	assert_false(send_one(e, 0, 12, 8, VB_OUT_RESPONSE));
	atomic_store(&e->consumed, UINT32_MAX - 7);
	assert_false(send_one(e, 0, 12, 8, VB_OUT_RESPONSE));
	atomic_store(&e->consumed, 1);
	assert_true(send_one(e, 0, 12, 8, VB_OUT_RESPONSE));
}

enum { STREAM = 1000000 };

static uint32_t stream_len(uint32_t i)
{
	return i % 97 == 0 ? 1 + i % 4096 : i % 40;
}

static void *stream(void *arg)
{
	struct ends *e = arg;

	for (uint32_t i = 0; i < STREAM; i++) {
		while (!send_one(e, i, 12, stream_len(i), i % 3 ? VB_OUT_REQUEST : VB_OUT_RESPONSE))
			sched_yield();
	}
	return NULL;
}

static void two_threads_stream_a_million(void **state)
{
	struct ends *e = *state;
	pthread_t t;

	assert_int_equal(pthread_create(&t, NULL, stream, e), 0);
	for (uint32_t i = 0; i < STREAM; i++) {
		while (!take_one(e, i, 12, stream_len(i)))
			sched_yield();
	}
	pthread_join(t, NULL);
	assert_false(vb_rxq_ready(&e->rx->rxq));
}

static void *stream_many(void *arg)
{
	struct ends *e = arg;

	for (uint32_t i = 0; i < 50000; i++) {
		while (!send_one(e, 7, 12, 200, VB_OUT_REQUEST))
			sched_yield();
	}
	return NULL;
}

static void *stream_lists(void *arg)
{
	for (uint32_t i = 0; i < 50000;) {
		uint32_t n = 1 + i % LIST,
			 sent = send_list(arg, i, n < 50000 - i ? n : 50000 - i, VB_OUT_REQUEST);

		i += sent;
		if (!sent)
			sched_yield();
	}
	return NULL;
}

static void lists_are_taken_as_they_come(void **state)
{
	struct ends *e = *state;
	pthread_t t;

	assert_int_equal(pthread_create(&t, NULL, stream_lists, e), 0);
	for (uint32_t i = 0; i < 50000; i++) {
		while (!take_one(e, i, 12, 8))
			sched_yield();
	}
	pthread_join(t, NULL);
	assert_false(vb_rxq_ready(&e->rx->rxq));
}

static void senders_share_a_ring(void **state)
{
	struct ends *e = *state;
	pthread_t t[3];

	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&t[i], NULL, stream_many, e), 0);
	for (uint32_t i = 0; i < 150000; i++) {
		while (!take_one(e, 7, 12, 200))
			sched_yield();
	}
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    T(small_packet_takes_one_line),
	    T(marks_travel),
	    T(a_slot_is_written_at_once),
	    T(the_next_peer_sees_nothing_of_it),
	    T(a_cold_ring_takes_hints),
	    T(cancelled_data_is_room_again),
	    T(every_length_arrives),
	    T(a_list_goes_as_far_as_there_is_room),
	    T(a_list_keeps_count_of_data),
	    T(a_list_to_a_cold_ring_leaves_a_hint),
	    T(requests_leave_room_for_responses),
	    T(requests_leave_data_for_responses),
	    T(data_wraps_with_every_remainder),
	    T(what_is_left_at_the_end_is_used),
	    T(positions_run_over),
	    T(mark_tells_what_was_taken),
	    T(a_slot_is_read_once),
	    T(insane_packets_are_refused),
	    T(insane_counter_frees_nothing),
	    T(two_threads_stream_a_million),
	    T(lists_are_taken_as_they_come),
	    T(senders_share_a_ring),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
