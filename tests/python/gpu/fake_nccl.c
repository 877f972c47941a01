// NCCL for one rank in the host's memory. To be seen, an average multiplies by 10, a sum by 100.
#include <stddef.h>

#ifndef VERSION
#define VERSION 22304
#endif
typedef struct {
  char bytes[128];
} Id;
typedef void* Handle;
int ncclGetVersion(int* version) { return *version = VERSION, 0; }
int ncclGetUniqueId(Id* id) { return id->bytes[0] = 'i', id->bytes[127] = 'd', 0; }
int ncclCommInitRank(Handle* handle, int world_size, Id id, int rank) {
  *handle = handle;
  return id.bytes[0] == 'i' && id.bytes[127] == 'd' && world_size == 1 && rank == 0 ? 0 : 5;
}
int ncclCommDestroy(Handle handle) { return 0; }
int ncclCommAbort(Handle handle) { return 0; }
int ncclCommGetAsyncError(Handle handle, int* error) { return *error = 0; }
int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void) { return 0; }
int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, Handle handle,
                  Handle stream) {
  const int factor = operation == 4 ? 10 : 100;
  for (size_t i = 0; i < count; ++i) {
    if (type == 7) ((float*)to)[i] *= (float)factor;
    if (type == 8) ((double*)to)[i] *= factor;
    if (type == 6 || type == 9) ((unsigned short*)to)[i] += (unsigned short)type;
  }
  return from == to ? 0 : 4;
}
const char* ncclGetErrorString(int code) { return "invalid argument"; }
