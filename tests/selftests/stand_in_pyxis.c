/* Stands in for pyxis: a SPANK plugin with its options, its order of events and its words.

   plugstack.conf: required .../spank_pyxis.so RUNTIME, where RUNTIME is a program that stands in for
   enroot: `RUNTIME create IMAGE`, `RUNTIME start IMAGE MOUNTS` in a mount namespace of its own, which
   ends with the line "root DIR" on its standard output. As the real one it starts the container once
   per node and step, keeps its failure until a task begins, and lets each task enter it; without
   --container-workdir a task stands in /app, as the image's WORKDIR has it. User namespaces it does
   not use: the sandbox's jobs are root's. Declared here is what slurm/spank.h has, which not every
   host has. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct spank_handle *spank_t;
struct spank_option {
    char *name, *arginfo, *usage;
    int has_arg, val;
    int (*cb)(int, const char *, int);
};
extern int spank_option_register(spank_t, struct spank_option *);
extern int spank_remote(spank_t);
extern void slurm_error(const char *, ...);
extern void slurm_info(const char *, ...);

const char plugin_name[] = "pyxis";
const char plugin_type[] = "spank";
const unsigned int plugin_version = SLURM_VERSION_NUMBER;
const unsigned int spank_plugin_version = 1;

enum { IMAGE, MOUNTS, WORKDIR, OPTIONS };
static char *given[OPTIONS];
static int failed, space = -1, root = -1;

static int keep(int which, const char *value, int remote) {
    size_t had = given[which] ? strlen(given[which]) : 0;
    /* Slurm gives an option twice: once to each of the plug-in's two stacks. */
    if (had && strstr(given[which], value)) return 0;
    char *whole = malloc(had + strlen(value) + 2);
    sprintf(whole, "%s%s%s", had ? given[which] : "", had ? "," : "", value);
    free(given[which]);
    given[which] = whole;
    return 0;
}

static struct spank_option options[] = {
    {"container-image", "IMAGE", "[pyxis] the image of the container", 1, IMAGE, keep},
    {"container-mounts", "SRC:DST[,...]", "[pyxis] bind mounts", 1, MOUNTS, keep},
    {"container-workdir", "PATH", "[pyxis] working directory", 1, WORKDIR, keep},
};

int slurm_spank_init(spank_t sp, int argc, char **argv) {
    for (int k = 0; k < OPTIONS; k++)
        if (spank_option_register(sp, &options[k])) return -1;
    return 0;
}

static void print_log(FILE *log) {
    char line[1024];
    slurm_error("pyxis: printing enroot log file:");
    rewind(log);
    while (fgets(line, sizeof line, log)) {
        line[strcspn(line, "\n")] = 0;
        slurm_error("pyxis:     %s", line);
    }
}

/* Run the runtime; its standard error is the log, its standard output goes to a pipe. */
static pid_t run(char **argv, FILE *log, int out, int stays) {
    pid_t pid = fork();
    if (pid) return pid;
    if (stays && unshare(CLONE_NEWNS)) _exit(120);
    pid_t inner = stays ? fork() : 0;
    if (!inner) {
        dup2(open("/dev/null", O_RDWR), 0);
        dup2(out, 1);
        dup2(fileno(log), 2);
        execv(argv[0], argv);
        _exit(127);
    }
    int status;
    waitpid(inner, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 121);
    raise(SIGSTOP);
    _exit(0);
}

int slurm_spank_user_init(spank_t sp, int argc, char **argv) {
    char *create[] = {argv[0], "create", given[IMAGE], NULL};
    char *start[] = {argv[0], "start", given[IMAGE], given[MOUNTS] ? given[MOUNTS] : "", NULL};
    int status, ends[2];
    char said[4096] = "", path[64];
    if (!given[IMAGE] || !spank_remote(sp)) return 0;
    FILE *log = tmpfile();
    if (!log || pipe2(ends, O_CLOEXEC)) return -1;
    failed = -1; /* An error here would not reach srun: it is told when a task begins. */
    slurm_info("pyxis: importing docker image: %s", given[IMAGE]);
    pid_t pid = run(create, log, ends[1], 0);
    waitpid(pid, &status, 0);
    if (status) {
        slurm_error("pyxis: child %d failed with error code: %d", pid, WEXITSTATUS(status));
        slurm_error("pyxis: failed to import docker image");
        print_log(log);
        return 0;
    }
    slurm_info("pyxis: starting container: %s", given[IMAGE]);
    pid = run(start, log, ends[1], 1);
    waitpid(pid, &status, WUNTRACED);
    if (!WIFSTOPPED(status)) {
        slurm_error("pyxis: container start failed with error code: %d", WEXITSTATUS(status));
        print_log(log);
        slurm_error("pyxis: couldn't start container");
        return 0;
    }
    ssize_t length = read(ends[0], said, sizeof said - 1);
    said[length < 0 ? 0 : length] = 0;
    said[strcspn(said, "\n")] = 0;
    snprintf(path, sizeof path, "/proc/%d/ns/mnt", pid);
    space = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/root", pid);
    char *inside = malloc(strlen(path) + strlen(said) + 1);
    sprintf(inside, "%s%s", path, said + strlen("root "));
    root = open(inside, O_PATH | O_DIRECTORY | O_CLOEXEC);
    free(inside);
    kill(pid, SIGCONT);
    waitpid(pid, &status, 0);
    if (space >= 0 && root >= 0) failed = 0;
    else slurm_error("pyxis: couldn't get container attributes");
    return 0;
}

int slurm_spank_task_init_privileged(spank_t sp, int argc, char **argv) {
    const char *there = given[WORKDIR] ? given[WORKDIR] : "/app";
    if (!given[IMAGE]) return 0;
    if (failed) return failed;
    if (setns(space, CLONE_NEWNS) || fchdir(root) || chroot(".")) {
        slurm_error("pyxis: couldn't join mount namespace: %s", strerror(errno));
        return -1;
    }
    if (chdir(there)) {
        slurm_error("pyxis: couldn't chdir to %s: %s", there, strerror(errno));
        return -1;
    }
    return 0;
}
