//! The driver's functions that Fornax calls, on a device that is the host: of compute capability 8.0 or 9.0, whose memory
//! is the host's, and for whom all is done when it is asked for.

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"

namespace {

enum Result { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500 };
enum Attribute { MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76, SHARED_MEMORY = 97 };

constexpr size_t MEMORY = size_t(8) << 30;
/// Bytes behind each piece of memory that nobody may write, and what they are.
constexpr size_t GUARD = 4096;
constexpr char GUARDED = char(0xa5);

using Work = std::function<void()>;
struct Graph { std::vector<Work> works; };
struct Stream { Graph* captured = nullptr; };
struct Function {
    void (*call)(void**);
    std::vector<size_t> sizes; // of its arguments
};
struct Module {
    void* library;
    std::map<std::string, Function> functions;
};
struct Config {
    unsigned grid[3], threads[3], shared;
    Stream* stream;
    const struct LaunchAttribute* attributes;
    unsigned count;
};
struct LaunchAttribute { unsigned id, spare, values[16]; };
constexpr unsigned CLUSTER_DIMENSION = 4;

/// Blocks of a cluster, which lie one behind the other along the first side.
unsigned cluster_of(const Config& config) {
    for (unsigned i = 0; i < config.count; i++)
        if (config.attributes[i].id == CLUSTER_DIMENSION) return config.attributes[i].values[0];
    return 1;
}

using Event = std::chrono::steady_clock::time_point;

std::mutex memory_lock;
std::map<char*, size_t> pieces;
size_t taken = 0;

} // namespace

bool emu_is_taken(const char* from, size_t bytes) {
    std::lock_guard<std::mutex> held(memory_lock);
    auto behind = pieces.upper_bound((char*)from);
    if (behind == pieces.begin()) return false;
    const auto& [begin, room] = *std::prev(behind);
    return from + bytes <= begin + room;
}

int emu_capability() {
    static const int capability = [] {
        const char* named = getenv("EMULATED_CAPABILITY");
        const std::string capability = named ? named : "8.0";
        if (capability != "8.0" && capability != "9.0") emu_fail("EMULATED_CAPABILITY is neither 8.0 nor 9.0");
        return capability == "9.0" ? 9 : 8;
    }();
    return capability;
}

/// Bytes of it that a launch may ask for.
int shared_memory() { return (emu_capability() == 9 ? 227 : 163) << 10; }

void emu_take(void* stream, Work work) {
    Graph* captured = ((Stream*)stream)->captured;
    if (captured) captured->works.push_back(std::move(work));
    else work();
}

extern "C" {

int cuInit(unsigned) { return SUCCESS; }
int cuGetErrorString(int, const char** text) { *text = "an error of the emulated device"; return SUCCESS; }
int cuGetErrorName(int, const char** text) { return cuGetErrorString(0, text); }
int cuDeviceGetCount(int* count) { *count = 1; return SUCCESS; }
int cuDeviceGet(int* device, int) { *device = 0; return SUCCESS; }
int cuDeviceGetName(char* name, int bytes, int) { snprintf(name, size_t(bytes), "an emulated device"); return SUCCESS; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
    case MULTIPROCESSORS: *value = int(emu_multiprocessors()); return SUCCESS;
    case MAJOR: *value = emu_capability(); return SUCCESS;
    case MINOR: *value = 0; return SUCCESS;
    case SHARED_MEMORY: *value = shared_memory(); return SUCCESS;
    default: return INVALID_VALUE;
    }
}
int cuDevicePrimaryCtxRetain(void** context, int) { *context = (void*)&pieces; return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
int cuCtxSetCurrent(void*) { return SUCCESS; }

// Memory: what is taken holds no numbers, and when it is given back nothing behind it has been written.
int cuMemAlloc_v2(char** to, size_t bytes) {
    std::lock_guard<std::mutex> held(memory_lock);
    if (taken + bytes > MEMORY) return OUT_OF_MEMORY;
    if (posix_memalign((void**)to, 256, bytes + GUARD)) return OUT_OF_MEMORY;
    memset(*to, 0xff, bytes);
    memset(*to + bytes, GUARDED, GUARD);
    pieces[*to] = bytes;
    taken += bytes;
    return SUCCESS;
}
int cuMemFree_v2(char* from) {
    std::lock_guard<std::mutex> held(memory_lock);
    auto piece = pieces.find(from);
    if (piece == pieces.end()) return INVALID_VALUE;
    const char* behind = from + piece->second;
    if (std::count(behind, behind + GUARD, GUARDED) != GUARD) emu_fail("a kernel wrote behind a piece of memory");
    taken -= piece->second;
    pieces.erase(piece);
    free(from);
    return SUCCESS;
}
int cuMemGetInfo_v2(size_t* left, size_t* all) {
    std::lock_guard<std::mutex> held(memory_lock);
    *left = MEMORY - taken;
    *all = MEMORY;
    return SUCCESS;
}
int cuMemHostAlloc(void** to, size_t bytes, unsigned) { *to = malloc(bytes); return *to ? SUCCESS : OUT_OF_MEMORY; }
int cuMemFreeHost(void* from) { free(from); return SUCCESS; }
int cuMemcpyHtoDAsync_v2(char* to, const char* from, size_t bytes, Stream* stream) { emu_take(stream, [=] { memcpy(to, from, bytes); }); return SUCCESS; }
int cuMemcpyDtoHAsync_v2(char* to, const char* from, size_t bytes, Stream* stream) { emu_take(stream, [=] { memcpy(to, from, bytes); }); return SUCCESS; }
int cuMemsetD8Async(char* to, unsigned char value, size_t bytes, Stream* stream) { emu_take(stream, [=] { memset(to, value, bytes); }); return SUCCESS; }

// Modules are libraries, each loaded under a name of its own.
int cuModuleLoadData(Module** module, const char* code) {
    uint64_t size;
    memcpy(&size, code, 8);
    char path[] = "/tmp/emulated-XXXXXX";
    close(mkstemp(path));
    std::ofstream(path, std::ios::binary).write(code + 8, long(size));
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    unlink(path);
    if (!library) emu_fail(dlerror());
    *module = new Module{library, {}};
    return SUCCESS;
}
int cuModuleUnload(Module* module) {
    dlclose(module->library);
    delete module;
    return SUCCESS;
}
int cuModuleGetFunction(Function** function, Module* module, const char* name) {
    auto call = (void (*)(void**))dlsym(module->library, (std::string("emu_call_") + name).c_str());
    auto sizes = (size_t(*)(size_t*))dlsym(module->library, (std::string("emu_sizes_") + name).c_str());
    if (!call || !sizes) return NOT_FOUND;
    Function& found = module->functions[name];
    found = {call, std::vector<size_t>(64)};
    found.sizes.resize(sizes(found.sizes.data()));
    *function = &found;
    return SUCCESS;
}
int cuFuncGetAttribute(int* value, int, Function*) { *value = 0; return SUCCESS; }
int cuFuncSetAttribute(Function*, int, int) { return SUCCESS; }
int cuOccupancyMaxActiveClusters(int* count, Function*, const Config* config) {
    *count = emu_capability() == 9 ? int(emu_multiprocessors() / cluster_of(*config)) : 0;
    return SUCCESS;
}

int cuLaunchKernelEx(const Config* config, Function* function, void** arguments, void**) {
    EmuLaunch launch = {{config->grid[0], config->grid[1], config->grid[2]}, {config->threads[0], config->threads[1], config->threads[2]}, config->shared, cluster_of(*config)};
    if (launch.dynamic > size_t(shared_memory()) || launch.threads.x > 1024) return INVALID_VALUE;
    // A graph launches with what the arguments were when it was captured.
    std::vector<std::vector<char>> kept;
    for (size_t i = 0; i < function->sizes.size(); i++) kept.emplace_back((char*)arguments[i], (char*)arguments[i] + function->sizes[i]);
    emu_take(config->stream, [launch, call = function->call, kept]() mutable {
        std::vector<void*> with;
        for (auto& argument : kept) with.push_back(argument.data());
        emu_launch(launch, call, with.data());
    });
    return SUCCESS;
}

int cuStreamCreate(Stream** stream, unsigned) { *stream = new Stream; return SUCCESS; }
int cuStreamDestroy_v2(Stream* stream) { delete stream; return SUCCESS; }
int cuStreamSynchronize(Stream*) { return SUCCESS; }
int cuStreamBeginCapture_v2(Stream* stream, int) { stream->captured = new Graph; return SUCCESS; }
int cuStreamEndCapture(Stream* stream, Graph** graph) { *graph = stream->captured; stream->captured = nullptr; return SUCCESS; }
int cuGraphInstantiateWithFlags(Graph** ready, Graph* graph, unsigned long long) { *ready = new Graph(*graph); return SUCCESS; }
int cuGraphLaunch(Graph* ready, Stream*) { for (Work& work : ready->works) work(); return SUCCESS; }
int cuGraphExecDestroy(Graph* ready) { delete ready; return SUCCESS; }
int cuGraphDestroy(Graph* graph) { delete graph; return SUCCESS; }

int cuEventCreate(Event** event, unsigned) { *event = new Event; return SUCCESS; }
int cuEventDestroy_v2(Event* event) { delete event; return SUCCESS; }
int cuEventRecord(Event* event, Stream*) { *event = std::chrono::steady_clock::now(); return SUCCESS; }
int cuEventSynchronize(Event*) { return SUCCESS; }
int cuEventElapsedTime_v2(float* milliseconds, Event* from, Event* to) { *milliseconds = std::chrono::duration<float, std::milli>(*to - *from).count(); return SUCCESS; }
}
