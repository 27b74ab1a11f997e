#include "base/symbol.h"

#include <dlfcn.h>
#include <string.h>

bool vb_symbol_find_in(void *library, const char *name, void *function)
{
	void *found = dlsym(library, name);

	if (!found) { /* the first call takes the text, the second one frees it, which a search for leaks
			 would find */
		dlerror();
		dlerror();
	}
	memcpy(function, &found, sizeof(found));
	return found;
}

bool vb_symbol_find(const char *name, void *function)
{
	return vb_symbol_find_in(RTLD_DEFAULT, name, function);
}
