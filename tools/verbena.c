/* verbena: the command.  Chooses a subcommand. */
#include <argp.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools.h"
#include "host/identity.h"

static const struct command {
	const char *name;
	int (*main)(int argc, char **argv);
	const char *doc;
} commands[] = {
    {"run", vb_run, "run a program on Verbena's RDMA verbs"},
    {"explain", vb_explain, "why calls and requests of a running process failed"},
    {"mr", vb_mr, "the memory regions of a running process"},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

__attribute__((visibility("default"))) const char *argp_program_version = "verbena " VB_VERSION;

struct choice {
	const struct command *command;
	int argc; /* the subcommand's, itself included */
	char **argv;
};

void vb_say(const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	fprintf(stderr, "verbena: %s\n", line);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct choice *c = state->input;

	switch (key) {
	case ARGP_KEY_ARG:
		for (size_t i = 0; i < COMMANDS; i++)
			if (!strcmp(arg, commands[i].name))
				c->command = &commands[i];
		if (!c->command)
			argp_error(state, "there is no command \"%s\"", arg);
		c->argc = state->argc - state->next + 1;
		c->argv = state->argv + state->next - 1;
		state->next = state->argc; /* the rest is the subcommand's */
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_usage(state);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* The list of commands behind the options in --help. */
static char *list_commands(int key, const char *text, void *input)
{
	char *out = NULL;
	size_t size;
	FILE *f;

	(void)input;
	if (key != ARGP_KEY_HELP_POST_DOC || !(f = open_memstream(&out, &size)))
		return (char *)(uintptr_t)text;
	fprintf(f, "Commands:\n");
	for (size_t i = 0; i < COMMANDS; i++)
		fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].doc);
	fprintf(f, "\n`verbena COMMAND --help' says more of each.");
	fclose(f);
	return out;
}

/* At exit, also that of --help: what could not be written in full is no success. */
static void written(void)
{
	errno = 0;
	if (!fflush(stdout) && !ferror(stdout))
		return;
	vb_say("cannot write what it says: %s", errno ? strerror(errno) : "an earlier part is lost");
	_exit(VB_EXIT_SELF);
}

int main(int argc, char **argv)
{
	static const struct argp argp = {
	    .parser = parse,
	    .args_doc = "COMMAND [ARGS...]",
	    .doc = "RDMA verbs on any Linux machine, in user space.\v ",
	    .help_filter = list_commands,
	};
	struct choice c = {0};
	char name[64];

	atexit(written);
	argp_err_exit_status = VB_EXIT_SELF;
	argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &c);
	snprintf(name, sizeof(name), "verbena %s", c.command->name);
	c.argv[0] = name;
	return c.command->main(c.argc, c.argv);
}
