/* verbena: the command.  Chooses a subcommand. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "tools.h"

static int help(const struct vb_command *c, int argc, char **argv);

static const struct vb_command help_command = {
    .name = "help",
    .brief = "print this help, or the help of a command",
    .main = help,
    .usage = "[COMMAND]",
    .text = "Prints the help of a command. Without COMMAND it lists the commands.",
    .example = "verbena help run",
};

static const struct vb_command *const commands[] = {&vb_run,	 &vb_list,	     &vb_top,
						    &vb_explain, &vb_qp_command,     &vb_mr,
						    &vb_bundle,	 &vb_doctor_command, &help_command};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

void (*vb_said)(const char *sentence);

void vb_say(const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (vb_said)
		vb_said(line);
	else
		fprintf(stderr, "verbena: %s\n", line);
}

static void print_help(void)
{
	signal(SIGPIPE, SIG_DFL); /* a reader may have enough */
	printf("Usage: verbena COMMAND [ARGUMENT...]\n\n");
	vb_wrap("Verbena runs RDMA verbs in user space, on any Linux machine. It needs no RDMA "
		"hardware.\n\nCommands:",
		0);
	for (size_t i = 0; i < COMMANDS; i++)
		printf("  %-8s %s\n", commands[i]->name, commands[i]->brief);
	vb_options_print(NULL, 0);
	printf("\nExample:\n  verbena run -- ibv_rc_pingpong\n\n");
	vb_wrap("\"verbena help COMMAND\" describes a command. The manual page is verbena(1).", 0);
}

static const struct vb_command *find(const char *name)
{
	for (size_t i = 0; i < COMMANDS; i++)
		if (!strcmp(name, commands[i]->name))
			return commands[i];
	return NULL;
}

static int no_such_command(const char *word)
{
	char names[200] = "", near[100], list[200], path[PATH_MAX], run[PATH_MAX + 64] = "";
	struct vb_text t = {names, sizeof(names)};

	for (size_t i = 0; i < COMMANDS; i++)
		vb_text_add(&t, "%s%s", i ? "|" : "", commands[i]->name);
	if (!vb_find_program(word, path, sizeof(path)))
		snprintf(run, sizeof(run), ". To run the program of that name, type: verbena run -- %s",
			 word);
	vb_say("there is no command \"%s\".%s The commands are %s%s", word,
	       *run ? "" : vb_near(near, sizeof(near), word, names, ""),
	       vb_list_words(list, sizeof(list), names, ""), run);
	return VB_EXIT_SELF;
}

static int help(const struct vb_command *c, int argc, char **argv)
{
	struct vb_words w = {.command = c, .argc = argc, .argv = argv};
	const struct vb_command *about;

	if (vb_words_next(&w) != VB_WORDS_WORD) {
		print_help();
		return 0;
	}
	about = find(w.value);
	if (!about)
		return no_such_command(w.value);
	vb_command_help(about);
	return 0;
}

/* At exit, also that of --help: what could not be written in full is no success. */
static void written(void)
{
	errno = 0;
	if (!fflush(stdout) && !ferror(stdout))
		return;
	vb_say("the output could not be written: %s", errno ? strerror(errno) : "an earlier part is lost");
	_exit(VB_EXIT_SELF);
}

int main(int argc, char **argv)
{
	/* Options in front of the command. */
	static const struct vb_command none = {.name = ""};
	struct vb_words w = {.command = &none, .argc = argc, .argv = argv};
	const struct vb_command *c;

	atexit(written);
	if (argc < 2 || !strcmp(argv[1], "-h") || !strcmp(argv[1], "--help")) {
		print_help();
		return 0;
	}
	if (vb_words_next(&w) != VB_WORDS_WORD)
		return VB_EXIT_SELF;
	c = find(w.value);
	if (!c)
		return no_such_command(w.value);
	if (c != &vb_run)		  /* whose program inherits it */
		signal(SIGPIPE, SIG_DFL); /* a reader may have enough */
	return c->main(c, argc - w.next + 1, argv + w.next - 1);
}
