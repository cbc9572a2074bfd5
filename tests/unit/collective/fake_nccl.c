/* A libnccl.so.2 that notes how it is called, and answers as test_nccl.py tells it to. Signatures and codes are nccl.h's:
 * an argument in the wrong place or of the wrong width is noted as what NCCL would have got. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct { char internal[128]; } ncclUniqueId;
typedef void *ncclComm_t;
typedef void *cudaStream_t;

/* What the next call of `fake_failing` returns; the asynchronous error, once it was asked for `fake_after` times. */
char fake_failing[64];
int fake_code, fake_version = 22809, fake_async, fake_after, fake_polls;
static char notes[1 << 14];
static int opened;
static char communicators[8];

static int note(const char *name, const char *format, ...) {
    size_t used = strlen(notes);
    used += snprintf(notes + used, sizeof notes - used, "%s ", name);
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(notes + used, sizeof notes - used, format, arguments);
    va_end(arguments);
    snprintf(notes + used, sizeof notes - used, "\n");
    return strcmp(fake_failing, name) ? 0 : fake_code;
}

const char *fake_notes(void) { return notes; }

void fake_forget(void) { notes[0] = 0; }

void fake_reset(void) {
    fake_forget();
    fake_failing[0] = 0;
    opened = fake_code = fake_async = fake_after = fake_polls = 0;
    fake_version = 22809;
}

int ncclGetVersion(int *version) {
    *version = fake_version;
    return note("ncclGetVersion", "");
}

int ncclGetUniqueId(ncclUniqueId *id) {
    for (int i = 0; i < 128; i++) id->internal[i] = (char)(i * 2);
    return note("ncclGetUniqueId", "");
}

int ncclCommInitRank(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank) {
    int sum = 0;
    for (int i = 0; i < 128; i++) sum += (i + 1) * (unsigned char)id.internal[i];
    *communicator = &communicators[opened++];
    return note("ncclCommInitRank", "%p %d %d %d", *communicator, ranks, sum, rank);
}

int ncclCommDestroy(ncclComm_t communicator) { return note("ncclCommDestroy", "%p", communicator); }

int ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation, ncclComm_t communicator,
                  cudaStream_t stream) {
    return note("ncclAllReduce", "%p %p %zu %d %d %p %p", send, receive, count, type, operation, communicator,
                stream);
}

int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int operation, ncclComm_t communicator,
                      cudaStream_t stream) {
    return note("ncclReduceScatter", "%p %p %zu %d %d %p %p", send, receive, count, type, operation,
                communicator, stream);
}

int ncclAllGather(const void *send, void *receive, size_t count, int type, ncclComm_t communicator,
                  cudaStream_t stream) {
    return note("ncclAllGather", "%p %p %zu %d %p %p", send, receive, count, type, communicator, stream);
}

int ncclBroadcast(const void *send, void *receive, size_t count, int type, int root, ncclComm_t communicator,
                  cudaStream_t stream) {
    return note("ncclBroadcast", "%p %p %zu %d %d %p %p", send, receive, count, type, root, communicator,
                stream);
}

int ncclCommGetAsyncError(ncclComm_t communicator, int *error) {
    *error = fake_polls++ < fake_after ? 0 : fake_async;
    return note("ncclCommGetAsyncError", "%p", communicator);
}

const char *ncclGetErrorString(int code) {
    static char words[32];
    snprintf(words, sizeof words, "code %d in words", code);
    return words;
}

const char *ncclGetLastError(ncclComm_t communicator) { return communicator ? "" : "what happened last\n"; }
