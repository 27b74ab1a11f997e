#include "base/msan.h"

#include "base/symbol.h"

enum { STACK = 32 << 10 }; /* as much of it as calls mostly need */

bool vb_msan_on;

static struct {
	void (*unpoison)(const volatile void *at, size_t n);
	void (*unpoison_param)(size_t n);
	void (*disable_checks)(void); /* of arguments, in this thread; counted */
	void (*enable_checks)(void);
} msan;

void vb_msan_unpoison(const void *at, size_t n)
{
	msan.unpoison(at, n);
}

void vb_msan_begin(void)
{
	const char *here = __builtin_frame_address(0);

	msan.disable_checks();
	msan.unpoison(here - STACK, STACK); /* where calls from here on have their variables */
}

void vb_msan_end(void)
{
	msan.enable_checks();
}

void vb_msan_calls_back(size_t arguments)
{
	if (vb_msan_on)
		msan.unpoison_param(arguments);
}

static __attribute__((constructor)) void look(void)
{
	vb_msan_on = vb_symbol_find("__msan_unpoison", &msan.unpoison) &&
		     vb_symbol_find("__msan_unpoison_param", &msan.unpoison_param) &&
		     vb_symbol_find("__msan_scoped_disable_interceptor_checks", &msan.disable_checks) &&
		     vb_symbol_find("__msan_scoped_enable_interceptor_checks", &msan.enable_checks);
}
