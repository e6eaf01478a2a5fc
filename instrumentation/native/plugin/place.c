/* Where a process writes: the folder of its job, by the rules of the rank page (page/writer.py, identity/). */
#include "plugin.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum { MOST_ROWS = 16384, LEAST_ROWS = 1024, NODE_RANKS = 8, SHARE = 4, ID_CHARACTERS = 100, BIRTH_MS = 2000, MOST_RANKS = 1 << 20 };
enum { TMPFS = 0x01021994, RAMFS = (int)0x858458f6 };

static char problem[512];

static __attribute__((format(printf, 1, 2))) const char *fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem, sizeof problem, format, arguments);
    va_end(arguments);
    return problem;
}

static const char *text_of(const char *name)
{
    const char *text = getenv(name);
    return text == NULL ? "" : text;
}

static bool number_of(const char *name, long *number)
{
    const char *text = text_of(name);
    char *end = NULL;
    errno = 0;
    long parsed = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || errno || parsed < 0 || parsed > INT32_MAX)
        return false;
    *number = parsed;
    return true;
}

static void copy(char *target, size_t size, const char *text)
{
    size_t length = strnlen(text, size);
    memset(target, 0, size);
    memcpy(target, text, length);
    for (size_t n = 0; n < length; n++) /* readers take printable ones only */
        if (target[n] < ' ' || target[n] > '~')
            target[n] = '?';
}

#define COPY(field, text) copy(field, sizeof field, text)

static uint32_t crc_of(const char *text)
{
    uint32_t crc = ~0u;
    for (; *text; text++) {
        crc ^= (uint8_t)*text;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
    }
    return ~crc;
}

static void read_text(const char *path, char *text, size_t size)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = descriptor < 0 ? 0 : read(descriptor, text, size - 1);
    text[length > 0 ? length : 0] = 0;
    if (descriptor >= 0)
        close(descriptor);
    text[strcspn(text, "\n")] = 0;
}

/* As process_key of identity/requeues.py: PID namespace, id and start of a process. */
static bool process_key(int pid, char *key, size_t size)
{
    char space[64] = "", path[64], stat[1024], *fields;
    ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    read_text(path, stat, sizeof stat);
    if (length <= 0 || (fields = strrchr(stat, ')')) == NULL)
        return false;
    char *rest = NULL, *field = strtok_r(fields + 1, " ", &rest);
    for (int n = 0; field != NULL && n < 19; n++)
        field = strtok_r(NULL, " ", &rest);
    if (field == NULL)
        return false;
    snprintf(key, size, "%s %d %s", space, pid, field);
    return true;
}

typedef struct {
    long rank, world, local;
    bool is_launched;
} Position;

/* As identity/ranks.py, and by the communicator where no launcher says it. */
static const char *find_position(Position *position, const Group *group)
{
    static const char *const LAUNCHERS[][4] = {
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", NULL},
        {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_ID"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", NULL},
        {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", NULL},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", NULL},
    };
    for (size_t n = 0; n < sizeof LAUNCHERS / sizeof *LAUNCHERS; n++) {
        const char *const *names = LAUNCHERS[n];
        if (names[3] != NULL && *text_of(names[3]) == 0)
            continue;
        if (!number_of(names[0], &position->rank) || !number_of(names[1], &position->world))
            continue;
        number_of(names[2], &position->local);
        position->is_launched = true;
        return NULL;
    }
    if (group->ranks <= 0 || group->rank < 0)
        return "neither the environment (RANK, WORLD_SIZE) nor this NCCL says which rank this is";
    *position = (Position){group->rank, group->ranks, group->rank, group->ranks > 1};
    return NULL;
}

static bool is_id(const char *text)
{
    static const char LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._+-";
    size_t length = strlen(text);
    return length && length <= ID_CHARACTERS && strspn(text, LETTERS) == length && !strchr("._+-", *text);
}

/* As identity/job_id.py: what the user says, then Slurm, torchrun's run, and a job of this node. */
static const char *find_job(char *job, size_t size, const Position *position, const Group *group, int launcher)
{
    const char *given = text_of("LOCKSTEP_JOB_ID"), *slurm = text_of("SLURM_JOB_ID");
    const char *array = text_of("SLURM_ARRAY_JOB_ID"), *task = text_of("SLURM_ARRAY_TASK_ID");
    const char *allocation = text_of("LOCKSTEP_ALLOCATION"), *run = text_of("TORCHELASTIC_RUN_ID");
    bool is_other = *allocation && strcmp(allocation, slurm) != 0;
    char key[256], boot[64];
    long local = position->world;
    number_of("LOCAL_WORLD_SIZE", &local);
    if (*given && !is_other)
        snprintf(job, size, "%s", given);
    else if (*slurm && *array && *task)
        snprintf(job, size, "%s_%s", array, task);
    else if (*slurm)
        snprintf(job, size, "%s", slurm);
    else if (*run && strcmp(run, "none") != 0)
        snprintf(job, size, "%s", run);
    else if (group->nodes > 1 || local < position->world)
        return "nothing names the job of several nodes; set LOCKSTEP_JOB_ID, the same on all of them";
    else if (process_key(launcher, key, sizeof key)) {
        char text[400];
        read_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
        snprintf(text, sizeof text, "%s %s", boot, key);
        snprintf(job, size, "local-%d-%08x", launcher, crc_of(text));
    }
    if (!is_id(job))
        return fail("job id \"%.100s\" cannot be the name of a folder; set LOCKSTEP_JOB_ID", job);
    return NULL;
}

static int open_folder(int parent, const char *name, bool is_own, const char **why)
{
    if (mkdirat(parent, name, is_own ? 02750 : 0777) < 0 && errno != EEXIST) {
        *why = fail("folder %.200s cannot be made (%s); set LOCKSTEP_DIR to a folder on a tmpfs", name, strerror(errno));
        return -1;
    }
    int folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (is_own ? O_NOFOLLOW : 0));
    struct stat status;
    struct statfs system;
    if (folder < 0 || fstat(folder, &status) < 0 || fstatfs(folder, &system) < 0)
        *why = fail("folder %.200s cannot be opened (%s)", name, strerror(errno));
    else if (system.f_type != TMPFS && (int)system.f_type != RAMFS)
        *why = fail("folder %.200s is on no tmpfs, where a store can block; set LOCKSTEP_DIR", name);
    else if (is_own && status.st_uid != geteuid())
        *why = fail("folder %.200s belongs to user %u; set another LOCKSTEP_JOB_ID", name, status.st_uid);
    else if (is_own && status.st_mode & 022)
        *why = fail("others may write to folder %.200s; chmod go-w it", name);
    else
        return folder;
    if (folder >= 0)
        close(folder);
    return -1;
}

static int open_root(const char **why)
{
    static const char *const CANDIDATES[] = {"/run/lockstep", "/dev/shm/lockstep"};
    struct stat status;
    const char *root = text_of("LOCKSTEP_DIR");
    if (*root == 0)
        root = stat(CANDIDATES[0], &status) == 0 && S_ISDIR(status.st_mode) ? CANDIDATES[0] : CANDIDATES[1];
    /* The folder above must be in memory too, or a folder would be made on a disk. */
    char above[4096], *slash;
    struct statfs system = {0};
    snprintf(above, sizeof above, "%s", root);
    while (statfs(above, &system) < 0 && (slash = strrchr(above, '/')) != NULL && slash != above)
        *slash = 0;
    if (system.f_type != TMPFS && (int)system.f_type != RAMFS) {
        *why = fail("folder %.300s is on no tmpfs, where a store can block; set LOCKSTEP_DIR", root);
        return -1;
    }
    return open_folder(AT_FDCWD, root, false, why);
}

/* Whether a name is that of a rank's page, and what it is followed by after the number. */
static const char *page_suffix(const char *name)
{
    const char *digits = name + strlen("rank-");
    if (strncmp(name, "rank-", strlen("rank-")) != 0 || strspn(digits, "0123456789") < 5)
        return NULL;
    const char *suffix = digits + strspn(digits, "0123456789");
    return strcmp(suffix, ".page") == 0 || strcmp(suffix, PLUGIN_PAGE) == 0 ? suffix : NULL;
}

/* 1 where an attempt is of this launch, or a page of it runs; -1 while a page is being born. */
static int is_joined(int attempt, uint32_t launch_key, const char *own_number)
{
    int listed = openat(attempt, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), answer = 0;
    DIR *entries = listed < 0 ? NULL : fdopendir(listed);
    if (entries == NULL)
        return 0;
    bool has_own = false, runs = false, is_born = true;
    for (struct dirent *entry; answer != 1 && (entry = readdir(entries)) != NULL;) {
        Identity identity = {0};
        if (page_suffix(entry->d_name) == NULL)
            continue;
        int page = openat(attempt, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (page < 0)
            continue;
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        if (pread(page, &identity, sizeof identity, 0) != sizeof identity || identity.magic[0] == 0)
            is_born = false;
        else if (identity.launch_key == launch_key)
            answer = 1;
        bool is_held = fcntl(page, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
        runs |= is_held;
        has_own |= strncmp(entry->d_name, own_number, strlen(own_number)) == 0 && !is_held;
        close(page);
    }
    closedir(entries);
    return answer ? answer : !is_born ? -1 : runs && !has_own;
}

static long newest_attempt(int job)
{
    int listed = openat(job, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = listed < 0 ? NULL : fdopendir(listed);
    long newest = -1;
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        size_t length = strlen(entry->d_name);
        if (length && length <= 9 && strspn(entry->d_name, "0123456789") == length)
            newest = atol(entry->d_name) > newest ? atol(entry->d_name) : newest;
    }
    if (entries != NULL)
        closedir(entries);
    return newest;
}

/* As with_attempt of identity/requeues.py. */
static long find_attempt(int job, uint32_t launch_key, const char *own_number)
{
    long first = 0, restarts = 0;
    bool is_given = number_of("LOCKSTEP_FIRST_ATTEMPT", &first);
    if (!is_given && !number_of("LOCKSTEP_RESTART_COUNT", &first))
        number_of("SLURM_RESTART_COUNT", &first);
    number_of("TORCHELASTIC_RESTART_COUNT", &restarts);
    long newest = is_given ? -1 : newest_attempt(job), attempt = first + restarts;
    if (newest < 0)
        return attempt;
    char name[24];
    snprintf(name, sizeof name, "%ld", newest);
    int joined = -1;
    for (int waited_ms = 0; joined < 0 && waited_ms < BIRTH_MS; waited_ms += 10) {
        int folder = openat(job, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        joined = folder < 0 ? 0 : is_joined(folder, launch_key, own_number);
        if (folder >= 0)
            close(folder);
        if (joined < 0)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    newest += joined != 1;
    return newest > attempt ? newest : attempt;
}

static char *create(int folder, const char *name, size_t size, int *descriptor, const char **why)
{
    int file = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640);
    if (file < 0) {
        *why = fail("page %s cannot be made (%s); give the job another LOCKSTEP_JOB_ID", name, strerror(errno));
        return NULL;
    }
    struct group *readers = getgrnam("lockstep");
    struct rlimit most;
    bool is_allowed = getrlimit(RLIMIT_FSIZE, &most) == 0 && size <= most.rlim_cur; /* else a signal kills */
    int error = !is_allowed || posix_fallocate(file, 0, (off_t)size); /* so does a store into a full tmpfs */
    char *mapped = error ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
        *why = fail("page %s needs %zu bytes and its file system or the limit of files has no room", name, size);
        unlinkat(folder, name, 0);
        close(file);
        return NULL;
    }
    if (readers != NULL && (fchown(file, (uid_t)-1, readers->gr_gid) || fchown(folder, (uid_t)-1, readers->gr_gid)))
        errno = 0; /* who is not of the group lets nobody else read */
    *descriptor = file;
    return mapped;
}

static uint64_t rows_for(int folder)
{
    struct statvfs status;
    long num_ranks = NODE_RANKS;
    if (!number_of("LOCAL_WORLD_SIZE", &num_ranks) || num_ranks == 0)
        num_ranks = NODE_RANKS;
    uint64_t rows = MOST_ROWS;
    if (fstatvfs(folder, &status) == 0)
        while (rows > LEAST_ROWS
               && rows * sizeof(Row) * SHARE * (uint64_t)num_ranks > status.f_bavail * status.f_frsize)
            rows /= 2;
    return rows;
}

static int names_rccl(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    *(uint32_t *)found |= info->dlpi_name != NULL && strstr(info->dlpi_name, "librccl") != NULL;
    return 0;
}

static void fill_identity(Identity *identity, const Position *position, const char *job, long attempt,
                          uint32_t launch_key, uint64_t rows)
{
    struct timespec now;
    char node[128] = "";
    clock_gettime(CLOCK_REALTIME, &now);
    gethostname(node, sizeof node - 1);
    memcpy(identity->magic, "LKSTPAGE", sizeof identity->magic);
    identity->version = PAGE_VERSION;
    identity->row_count = (uint32_t)rows;
    identity->row_bytes = sizeof(Row);
    identity->slot_bytes = sizeof(Slot);
    identity->periodic_bytes = sizeof(Periodic);
    identity->rank = identity->dp = (int32_t)position->rank;
    identity->fsdp = identity->pp = identity->tp = identity->cp = identity->ep = -1;
    identity->local_rank = (int32_t)position->local;
    identity->world_size = (int32_t)position->world;
    identity->attempt = (int32_t)attempt;
    identity->pid = place.pid;
    identity->start_monotonic_ns = now_ns();
    identity->start_wall_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    COPY(identity->job_id, job);
    COPY(identity->cluster, *text_of("LOCKSTEP_CLUSTER") ? text_of("LOCKSTEP_CLUSTER") : "local");
    COPY(identity->project, text_of(*text_of("LOCKSTEP_PROJECT") ? "LOCKSTEP_PROJECT" : "SLURM_JOB_ACCOUNT"));
    COPY(identity->queue, text_of(*text_of("LOCKSTEP_QUEUE") ? "LOCKSTEP_QUEUE" : "SLURM_JOB_PARTITION"));
    COPY(identity->job_class, text_of(*text_of("LOCKSTEP_JOB_CLASS") ? "LOCKSTEP_JOB_CLASS" : "SLURM_JOB_QOS"));
    COPY(identity->node, *text_of("LOCKSTEP_NODE") ? text_of("LOCKSTEP_NODE") : node);
    identity->launch_key = launch_key;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    identity->locked = fcntl(place.descriptor, F_SETLK, &lock) == 0;
    identity->checksum = checksum_of(identity, offsetof(Identity, checksum) / 4);
}

static const char *fill(int attempt_folder, const Position *position, const char *job, long attempt,
                        uint32_t launch_key, int version)
{
    const char *why = NULL;
    char name[64];
    int descriptor = -1;
    place.rows = rows_for(attempt_folder);
    snprintf(name, sizeof name, "rank-%05ld%s", position->rank, PLUGIN_PAGE);
    char *page = create(attempt_folder, name, RING_OFFSET + place.rows * sizeof(Row), &place.descriptor, &why);
    if (page == NULL)
        return why;
    snprintf(name, sizeof name, "rank-%05ld.nccl.launches", position->rank);
    place.launches = create(attempt_folder, name, LAUNCHES_OFFSET + MOST_COLLECTIVES * sizeof(Collective),
                            &descriptor, &why);
    if (place.launches == NULL) {
        snprintf(name, sizeof name, "rank-%05ld%s", position->rank, PLUGIN_PAGE);
        unlinkat(attempt_folder, name, 0);
        return why;
    }
    close(descriptor);
    LaunchesHeader head = {.version = LAUNCHES_VERSION, .collectives = MOST_COLLECTIVES, .pid = place.pid,
                           .rank = (int32_t)position->rank, .interface = (uint32_t)version};
    uint32_t is_rccl = 0;
    dl_iterate_phdr(names_rccl, &is_rccl);
    head.is_rccl = is_rccl;
    memcpy(head.magic, "LKSTNCCL", sizeof head.magic);
    head.checksum = checksum_of(&head, offsetof(LaunchesHeader, checksum) / 4);
    memcpy(place.launches, &head, sizeof head);
    Identity identity = {0};
    fill_identity(&identity, position, job, attempt, launch_key, place.rows);
    memcpy(page, &identity, sizeof identity);
    place.page = page;
    beat(now_ns(), PHASE_INIT);
    return NULL;
}

const char *make_place(const Group *group, int version)
{
    Position position = {0};
    char job[128] = "", key[256], text[400], number[32], name[24];
    const char *why = find_position(&position, group);
    if (why == NULL && (position.rank >= position.world || position.world > MOST_RANKS))
        why = fail("rank %ld is outside of its world of %ld", position.rank, position.world);
    place.pid = getpid();
    prepare_checksum();
    int launcher = position.is_launched && getppid() > 0 ? getppid() : getpid();
    if (why == NULL)
        why = find_job(job, sizeof job, &position, group, launcher);
    if (why != NULL)
        return why;
    if (!process_key(launcher, key, sizeof key))
        return "/proc does not tell of the process that started this one";
    snprintf(text, sizeof text, "%s %s", key, text_of("TORCHELASTIC_RESTART_COUNT"));
    uint32_t launch_key = crc_of(text) ? crc_of(text) : 1;
    snprintf(number, sizeof number, "rank-%05ld.", position.rank);
    int root = open_root(&why);
    int jobs = root < 0 ? -1 : open_folder(root, "jobs", false, &why);
    int folder = jobs < 0 ? -1 : open_folder(jobs, job, true, &why);
    if (folder >= 0) {
        long attempt = find_attempt(folder, launch_key, number);
        snprintf(name, sizeof name, "%ld", attempt);
        int attempt_folder = open_folder(folder, name, true, &why);
        if (attempt_folder >= 0) {
            why = fill(attempt_folder, &position, job, attempt, launch_key, version);
            close(attempt_folder);
        }
        close(folder);
    }
    if (jobs >= 0)
        close(jobs);
    if (root >= 0)
        close(root);
    return why;
}
