/* A libnvidia-ml.so.1 that answers from a text file ($FAKE_NVML), read when it is opened; conftest.py writes the file.
 * Return codes, structures and names are NVML's; a call while closed is NVML_ERROR_UNINITIALIZED, as in the real one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15, VERSION = 25 };
enum { GPUS = 16, LINKS = 36, SLOTS = 7, PROCESSES = 8, WORDS = 16 };
typedef unsigned long long u64;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
typedef struct { unsigned pid; u64 used; unsigned gi, ci; } Process;
typedef struct Device {
    char uuid[96], name[96], bus_id[32];
    u64 total, used, reserved, cpus[WORDS], numa[WORDS];
    int mig, lost, process_count, link_type[LINKS];
    char link_end[LINKS][32];
    Process processes[PROCESSES];
    struct Device *instances[SLOTS];
} Device;

static int open_count, gpu_count, cuda, init_code;
static char driver[80];
static Device *gpus[GPUS], *all[GPUS * (SLOTS + 1)];
static int all_count, level[GPUS][GPUS], p2p[GPUS][GPUS][2];

#define OPEN if (!open_count) return UNINITIALIZED
#define ALIVE OPEN; if (d->lost) return LOST

static Device *fresh(void) { return all[all_count++] = calloc(1, sizeof(Device)); }
static int place(Device *d) { int i = 0; while (gpus[i] != d) i++; return i; }

static void load(void) {
    char line[512], key[32];
    FILE *f = fopen(getenv("FAKE_NVML"), "r");
    gpu_count = all_count = init_code = 0;
    while (fgets(line, sizeof line, f)) {
        int i, j, k, v, n = 0;
        u64 word;
        sscanf(line, "%31s %n", key, &n);
        char *rest = line + n;
        if (!strcmp(key, "driver")) sscanf(rest, "%79s", driver);
        else if (!strcmp(key, "cuda")) cuda = atoi(rest);
        else if (!strcmp(key, "init")) init_code = atoi(rest);
        else if (!strcmp(key, "gpu")) {
            Device *d = gpus[gpu_count++] = fresh();
            sscanf(rest, "%95s %31s %llu %llu %llu %d %d %95[^\n]", d->uuid, d->bus_id, &d->total, &d->used, &d->reserved,
                   &d->mig, &d->lost, d->name);
            for (k = 0; k < LINKS; k++) d->link_type[k] = -1;
        } else if (!strcmp(key, "instance")) {
            sscanf(rest, "%d %d %n", &i, &k, &n);
            Device *d = gpus[i]->instances[k] = fresh();
            sscanf(rest + n, "%95s %llu %llu %95[^\n]", d->uuid, &d->total, &d->used, d->name);
        } else if (!strcmp(key, "cpus") && sscanf(rest, "%d %d %llu", &i, &k, &word)) gpus[i]->cpus[k] = word;
        else if (!strcmp(key, "numa") && sscanf(rest, "%d %d %llu", &i, &k, &word)) gpus[i]->numa[k] = word;
        else if (!strcmp(key, "level") && sscanf(rest, "%d %d %d", &i, &j, &v)) level[i][j] = v;
        else if (!strcmp(key, "p2p") && sscanf(rest, "%d %d %d %d", &i, &j, &k, &v)) p2p[i][j][k] = v;
        else if (!strcmp(key, "nvlink") && sscanf(rest, "%d %d %n", &i, &k, &n))
            sscanf(rest + n, "%d %31s", &gpus[i]->link_type[k], gpus[i]->link_end[k]);
        else if (!strcmp(key, "process")) {
            sscanf(rest, "%d %n", &i, &n);
            Process *p = &gpus[i]->processes[gpus[i]->process_count++];
            sscanf(rest + n, "%u %llu", &p->pid, &p->used);
        }
    }
    fclose(f);
}

int fake_open_count(void) { return open_count; }
int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!open_count) load();
    if (init_code) return init_code;
    open_count++;
    return OK;
}
int nvmlShutdown(void) { OPEN; open_count--; return OK; }
const char *nvmlErrorString(int code) {
    return code == LOST ? "GPU is lost" : code == NOT_FOUND ? "Not Found" : code == NOT_SUPPORTED ? "Not Supported" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { OPEN; snprintf(out, size, "%s", driver); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { OPEN; *out = cuda; return OK; }
int nvmlDeviceGetCount_v2(unsigned *out) { OPEN; *out = gpu_count; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, Device **out) {
    OPEN;
    if ((int)i >= gpu_count) return INVALID;
    *out = gpus[i];
    return gpus[i]->lost ? LOST : OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out) {
    OPEN;
    for (int i = 0; i < all_count; i++)
        if (!strcmp(all[i]->uuid, uuid)) { *out = all[i]; return all[i]->lost ? LOST : OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(Device *d, char *out, unsigned size) { ALIVE; snprintf(out, size, "%s", d->uuid); return OK; }
int nvmlDeviceGetName(Device *d, char *out, unsigned size) { ALIVE; snprintf(out, size, "%s", d->name); return OK; }
int nvmlDeviceGetPciInfo_v3(Device *d, Pci *out) { ALIVE; strcpy(out->bus_id, d->bus_id); return OK; }
int nvmlDeviceGetMemoryInfo(Device *d, Memory *out) {
    ALIVE;
    out->total = d->total, out->used = d->used + d->reserved, out->free = out->total - out->used;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(Device *d, Memory2 *out) {
    ALIVE;
    if (out->version != (sizeof *out | 2 << 24)) return VERSION;
    out->total = d->total, out->used = d->used, out->reserved = d->reserved;
    out->free = d->total - d->used - d->reserved;
    return OK;
}
int nvmlDeviceGetMigMode(Device *d, unsigned *current, unsigned *pending) {
    ALIVE;
    if (d->mig < 0) return NOT_SUPPORTED;
    *current = *pending = d->mig;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *out) { ALIVE; *out = SLOTS; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned slot, Device **out) {
    ALIVE;
    *out = d->instances[slot];
    return *out ? OK : NOT_FOUND;
}
int nvmlDeviceGetCpuAffinity(Device *d, unsigned words, u64 *out) { ALIVE; memcpy(out, d->cpus, 8 * words); return OK; }
int nvmlDeviceGetMemoryAffinity(Device *d, unsigned words, u64 *out, unsigned scope) {
    ALIVE;
    if (scope != 0) return INVALID;
    memcpy(out, d->numa, 8 * words);
    return OK;
}
int nvmlDeviceGetTopologyCommonAncestor(Device *d, Device *other, int *out) {
    ALIVE;
    *out = level[place(d)][place(other)];
    return *out < 0 ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetNvLinkState(Device *d, unsigned link, unsigned *out) {
    ALIVE;
    if (link >= 18) return INVALID;
    *out = d->link_type[link] >= 0;
    return OK;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Device *d, unsigned link, unsigned *out) { ALIVE; *out = d->link_type[link]; return OK; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *d, unsigned link, Pci *out) {
    ALIVE;
    strcpy(out->bus_id, d->link_end[link]);
    return OK;
}
int nvmlDeviceGetP2PStatus(Device *d, Device *other, unsigned capability, unsigned *out) {
    ALIVE;
    if (capability > 1 || p2p[place(d)][place(other)][capability] < 0) return INVALID;
    *out = p2p[place(d)][place(other)][capability];
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *out) {
    ALIVE;
    unsigned room = *count;
    *count = d->process_count;
    if (room < *count) return TOO_SMALL;
    memcpy(out, d->processes, *count * sizeof *out);
    return OK;
}
