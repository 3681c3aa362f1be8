/* As much of NCCL and of CUDA's driver as nccl_probe.py calls. It logs what a real NCCL logs with
   NCCL_DEBUG_SUBSYS=TUNING: a line for each operation, an algorithm by its size. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char internal[128]; } ncclUniqueId;

static int world;
static FILE *file;

int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &world; return 0; }
int cuCtxSetCurrent(void *context) { return context == &world ? 0 : 201; }
int cuCtxSynchronize(void) { return 0; }
int cuMemAlloc_v2(unsigned long long *pointer, size_t size) {
    *pointer = (unsigned long long)malloc(size);
    return *pointer ? 0 : 2;
}

int ncclCommInitRank(void **comm, int ranks, ncclUniqueId id, int rank) {
    const char *subsystems = getenv("NCCL_DEBUG_SUBSYS");
    if (id.internal[0] != 7 || rank >= ranks) return 5;
    if (!subsystems || strcmp(subsystems, "TUNING")) return 6;
    world = ranks;
    file = fopen(getenv("NCCL_DEBUG_FILE"), "w");
    *comm = &world;
    fprintf(file, "host:1:2 [0] NCCL INFO comm 0x1 rank %d nRanks %d\n", rank, ranks);
    return 0;
}
int ncclCommDestroy(void *comm) { return comm == &world ? fclose(file) : 4; }

static int tell(const char *name, size_t bytes, void *comm) {
    if (comm != &world) return 4;
    if (getenv("FAKE_NCCL_SILENT")) return 0;
    fprintf(file, "host:1:2 [0] NCCL INFO %s: %zu Bytes -> Algo %s proto %s channel{Lo..Hi}={0..7}\n",
            name, bytes, bytes < 65536 ? "TREE" : getenv("NCCL_ALGO") ? "RING" : "NVLS",
            bytes < 65536 ? "LL" : "SIMPLE");
    return 0;
}
int ncclAllReduce(void *s, void *r, size_t n, int type, int op, void *comm, void *stream) {
    return s != r ? 4 : tell("AllReduce", 4 * n, comm);
}
int ncclAllGather(void *s, void *r, size_t n, int type, void *comm, void *stream) {
    return (char *)s < (char *)r ? 4 : tell("AllGather", 4 * n * world, comm);
}
int ncclReduceScatter(void *s, void *r, size_t n, int type, int op, void *comm, void *stream) {
    return (char *)r < (char *)s ? 4 : tell("ReduceScatter", 4 * n * world, comm);
}
int ncclBroadcast(void *s, void *r, size_t n, int type, int root, void *comm, void *stream) {
    return s != r ? 4 : tell("Broadcast", 4 * n, comm);
}
