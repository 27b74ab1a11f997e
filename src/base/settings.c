#include "base/settings.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/log.h"
#include "base/tally.h"
#include "base/text.h"

#define PREFIX "VERBENA_"

enum { NAME = 24, FAR = 3 }; /* bytes of the longest name, its end included; a name so far off is not meant */

/* verbena_environment(7) has them, without PREFIX; the last are for those who test Verbena. */
static const char names[][NAME] = {
    "LOG",	 "LOG_LEVEL",	  "LOG_FORMAT",	    "PROFILE", "DEVICE",    "DEVICES",
    "LINK",	 "DIRECT",	  "PTRACE",	    "PCAP",    "PCAP_SNAP", "PCAP_RING",
    "WIRE",	 "VENDOR_ID",	  "VENDOR_PART_ID", "FAIL_ON", "NETDEV",    "UDP_CHECKSUM",
    "UDP_GSO",	 "SUMMARY",	  "WAIT_WARN",	    "TALLY",   "FAULT",	    "SOAK",
    "TEST_TALK", "SHARE_BUFFERS", "CHECK"};
enum { NAMES = sizeof(names) / sizeof(names[0]) };

static void look_at(const char *name, size_t len)
{
	unsigned least = FAR, i, d;
	const char *meant = NULL;

	for (i = 0; i < NAMES; i++) {
		d = vb_text_distance(name, len, names[i]);
		if (d < least) {
			least = d;
			meant = names[i];
		}
	}
	if (!least)
		return;
	if (meant)
		vb_log_complain(PREFIX
				"%.*s is not a setting of Verbena and has no effect: did you mean " PREFIX
				"%s? (verbena_environment(7) lists all)",
				(int)len, name, meant);
	else /* a container's service of our name sets such, too: only for who asked for a log */
		vb_log(VB_LOG_WARN,
		       PREFIX
		       "%.*s is not a setting of Verbena and has no effect (verbena_environment(7) lists "
		       "all)",
		       (int)len, name);
}

static void check_tally(void)
{
	int err = vb_tally_map();

	if (err)
		vb_log_complain("the errors and warnings of this process are not counted: the table %s of "
				"\"verbena run\" "
				"cannot be opened (%s). A process of another user, in another PID namespace "
				"or in a sandbox "
				"cannot open it",
				secure_getenv(VB_TALLY_ENV),
				err == EBADF ? "it is not such a table" : strerror(err));
}

static void check(void)
{
	if (getauxval(AT_SECURE)) /* none of them is read */
		return;
	for (char **e = environ; e && *e; e++)
		if (!strncmp(*e, PREFIX, sizeof(PREFIX) - 1))
			look_at(*e + sizeof(PREFIX) - 1, strcspn(*e + sizeof(PREFIX) - 1, "="));
	vb_log_check();
	check_tally();
}

void vb_settings_check(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, check);
}
