/* A context without an adapter: enough for CQs, channels, SRQs and events, and nothing makes progress. */
#ifndef OBJ_FIXTURE_H
#define OBJ_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cmocka.h>

#include "iba/limits.h"
#include "verbs/verbs.h"

struct fixture {
	struct vb_context ctx;
	struct ibv_context *ibctx;
	struct vb_pd pd;
};

static inline void fixture_open(struct fixture *f)
{
	memset(f, 0, sizeof(*f));
	f->ibctx = &f->ctx.v.context;
	f->ibctx->num_comp_vectors = 2;
	vb_live_enter(f->ibctx, VB_LIVE_CONTEXT);
	f->pd.ibv.context = f->ibctx;
	assert_int_equal(vb_evq_init(&f->ctx.async), 0);
	f->ibctx->async_fd = f->ctx.async.fd;
}

/* Everything that a test made is gone again. */
static inline void fixture_close(struct fixture *f)
{
	assert_int_equal(vb_live_leave("fixture_close", f->ibctx, VB_LIVE_CONTEXT), 0);
	assert_int_equal(f->ctx.cqs, 0);
	assert_int_equal(f->ctx.channels, 0);
	assert_int_equal(f->pd.refs, 0);
	vb_evq_fini(&f->ctx.async);
}

static inline bool readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

static inline void set_nonblocking(int fd)
{
	assert_int_equal(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
}

static inline int edge_triggered(int fd)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLET};
	int ep = epoll_create1(EPOLL_CLOEXEC);

	assert_true(ep >= 0);
	assert_int_equal(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
	return ep;
}

static inline int edges(int ep)
{
	struct epoll_event e;

	return epoll_wait(ep, &e, 1, 0);
}

static inline void expect_async(struct fixture *f, enum ibv_event_type type, void *element)
{
	struct ibv_async_event ev;

	assert_true(readable(f->ibctx->async_fd));
	assert_int_equal(ibv_get_async_event(f->ibctx, &ev), 0);
	assert_int_equal(ev.event_type, type);
	assert_ptr_equal(ev.element.cq, element);
	ibv_ack_async_event(&ev);
}

#endif
