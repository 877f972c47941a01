// The functions of the CUDA driver that a session over NCCL calls, all doing nothing at once.
#define OK(name, ...) \
  int name(__VA_ARGS__) { return 0; }
typedef void* Handle;
static int retained, released;
OK(cuInit, unsigned flags)
int cuDeviceGet(int* device, int ordinal) { return (*device = ordinal) < 4 ? 0 : 101; }
int cuDevicePrimaryCtxRetain(Handle* context, int device) {
  ++retained;
  *context = &retained;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return ++released, 0; }
OK(cuCtxSetCurrent, Handle context)
int cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0; }
int cuStreamCreateWithPriority(Handle* stream, unsigned flags, int priority) {
  *stream = &released;
  return 0;
}
OK(cuStreamDestroy_v2, Handle stream)
OK(cuStreamWaitEvent, Handle stream, Handle event, unsigned flags)
int cuEventCreate(Handle* event, unsigned flags) { return *event = &released, 0; }
OK(cuEventDestroy_v2, Handle event)
OK(cuEventRecord, Handle event, Handle stream)
OK(cuEventQuery, Handle event)
int cuEventElapsedTime(float* ms, Handle start, Handle finish) { return *ms = 1, 0; }
int cuGetErrorString(int code, const char** text) { return *text = "invalid device ordinal", 0; }
