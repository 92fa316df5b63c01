// SPDX-License-Identifier: Apache-2.0
// Runs grids of translated kernels, a thread after the other, and takes the place of what nvcc's objects call to
// launch them. What a kernel may not do ends the program, with words that say what and where.
#include "emulator.h"

extern "C" {
#include "../fake_work.h"
}

#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <algorithm>
#include <cfenv>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace emulator {

static std::string readable(const char *name) {
    char *plain = abi::__cxa_demangle(name, nullptr, nullptr, nullptr);
    std::string out = plain ? plain : name;
    free(plain);
    out.resize(out.rfind('(') == std::string::npos ? out.size() : out.rfind('('));
    return out.compare(0, 5, "void ") ? out : out.substr(5); // what a template returns
}

void Thread::fault(const char *what, const char *does, uint64_t address, unsigned n) const {
    fprintf(stderr, "emulator: %s: block %u of %u, thread %u of %u %s %u bytes at %#" PRIx64 ": %s\n",
            readable(block->grid->kernel->name).c_str(), block->index, block->grid->blocks, thread,
            block->grid->threads, does, n, address, what);
    abort();
}

// ---- global memory

unsigned char *Thread::global(uint64_t address, unsigned n, const char *does, bool reads, bool writes) {
    unsigned char *memory = reinterpret_cast<unsigned char *>(static_cast<uintptr_t>(address));
    if (address % n) fault("its address is no multiple of its size", does, address, n);
    unsigned char *shadow = fake_shadow(memory);
    if (!shadow) fault("this is no memory of a device", does, address, n);
    for (unsigned i = 0; i < n; i++) {
        if (shadow[i] == FAKE_NOBODYS) fault("that is beyond a block, or in one that was freed", does, address, n);
        if (reads && shadow[i] == FAKE_UNWRITTEN) fault("nobody wrote what is there", does, address, n);
    }
    if (writes) memset(shadow, FAKE_WRITTEN, n);
    return memory;
}

const unsigned char *Thread::read_global(uint64_t address, unsigned n) {
    return global(address, n, "reads", true, false);
}
unsigned char *Thread::write_global(uint64_t address, unsigned n) { return global(address, n, "writes", false, true); }
unsigned char *Thread::update_global(uint64_t address, unsigned n) { return global(address, n, "updates", true, true); }

// ---- shared memory: two threads may touch a byte between the same barriers if both read it, or both atomically

static const char WRITES[] = "another thread writes it: a race", READS[] = "another thread reads it: a race";

Touched *Thread::shared(uint64_t offset, unsigned n, const char *does) {
    if (offset + n > block->grid->kernel->shared_bytes) fault("beyond the block's shared memory", does, offset, n);
    if (offset % n) fault("its address is no multiple of its size", does, offset, n);
    return block->touched + offset;
}

const unsigned char *Thread::read_shared(uint64_t offset, unsigned n) {
    Touched *touched = shared(offset, n, "reads");
    for (unsigned i = 0; i < n; i++) {
        Touched &byte = touched[i];
        if (byte.written < block->began) fault("nobody wrote what is there", "reads", offset, n);
        if (byte.written == block->now && byte.writer != thread) fault(WRITES, "reads", offset, n);
        byte.reader = byte.read == block->now && byte.reader != thread ? UINT32_MAX : thread;
        byte.read = block->now;
    }
    return block->shared + offset;
}

unsigned char *Thread::write_shared(uint64_t offset, unsigned n) {
    Touched *touched = shared(offset, n, "writes");
    for (unsigned i = 0; i < n; i++) {
        Touched &byte = touched[i];
        if (byte.written == block->now && byte.writer != thread) fault(WRITES, "writes", offset, n);
        if (byte.read == block->now && byte.reader != thread) fault(READS, "writes", offset, n);
        byte.writer = thread, byte.written = block->now, byte.atomic = false;
    }
    return block->shared + offset;
}

unsigned char *Thread::update_shared(uint64_t offset, unsigned n) {
    Touched *touched = shared(offset, n, "updates");
    for (unsigned i = 0; i < n; i++) {
        Touched &byte = touched[i];
        if (byte.written < block->began) fault("nobody wrote what is there", "updates", offset, n);
        if (byte.written == block->now && byte.writer != thread && !byte.atomic)
            fault(WRITES, "updates", offset, n);
        if (byte.read == block->now && byte.reader != thread) fault(READS, "updates", offset, n);
        byte.writer = byte.written == block->now && byte.writer != thread ? UINT32_MAX : thread;
        byte.written = block->now, byte.atomic = true;
    }
    return block->shared + offset;
}

// ---- order

enum class Order { ascending, descending, shuffled };

static Order order() {
    const char *given = getenv("EMULATOR_ORDER");
    if (!given || !strcmp(given, "ascending")) return Order::ascending;
    if (!strcmp(given, "descending")) return Order::descending;
    if (!strcmp(given, "shuffled")) return Order::shuffled;
    fprintf(stderr, "emulator: EMULATOR_ORDER is %s: ascending, descending or shuffled\n", given);
    abort();
}

static std::mt19937 &chance() {
    static std::mt19937 generator(getenv("EMULATOR_SEED") ? static_cast<unsigned>(atoi(getenv("EMULATOR_SEED"))) : 1u);
    return generator;
}

static void arrange(std::vector<uint32_t> &order_of, Order how) {
    for (uint32_t i = 0; i < order_of.size(); i++) order_of[i] = i;
    if (how == Order::descending) std::reverse(order_of.begin(), order_of.end());
    if (how == Order::shuffled) std::shuffle(order_of.begin(), order_of.end(), chance());
}

// ---- a grid

// Threads run to their next barrier in turns. All that have not ended must come to it.
static void run_waiting(Block &block, const std::vector<uint32_t> &threads, std::vector<unsigned char> &registers) {
    const Kernel &kernel = *block.grid->kernel;
    std::vector<char> ended(threads.size());
    for (uint32_t i : threads) memset(&registers[kernel.registers * i], 0, sizeof(int)); // `at`: the beginning
    for (size_t live = threads.size(); live;) {
        size_t waiting = 0;
        block.any_next = false;
        for (uint32_t i : threads) {
            if (ended[i]) continue;
            Thread thread = {&block, i};
            if (kernel.call(thread, &registers[kernel.registers * i]) == WAITS) waiting++;
            else ended[i] = 1;
        }
        if (waiting && waiting < live) {
            fprintf(stderr, "emulator: %s: block %u: %zu of %zu threads came to a barrier, and the others ended\n",
                    readable(kernel.name).c_str(), block.index, waiting, live);
            abort();
        }
        live = waiting;
        block.any = block.any_next;
        block.now++;
    }
}

static void run_grid(const void *given) {
    static uint64_t barriers = 1;
    static std::vector<unsigned char> shared, registers;
    static std::vector<Touched> touched;
    static std::vector<uint32_t> blocks, threads;
    Grid grid;
    memcpy(&grid, given, sizeof grid); // a thread may be given addresses in it
    const Kernel &kernel = *grid.kernel;
    const Order how = order();
    blocks.resize(grid.blocks), threads.resize(grid.threads);
    arrange(blocks, how), arrange(threads, how);
    if (shared.size() < kernel.shared_bytes) shared.resize(kernel.shared_bytes), touched.resize(kernel.shared_bytes);
    if (registers.size() < kernel.registers * grid.threads) registers.resize(kernel.registers * grid.threads);
    for (uint32_t index : blocks) {
        Block block = {&grid, index, false, false, barriers, barriers, shared.data(), touched.data()};
        if (how == Order::shuffled) std::shuffle(threads.begin(), threads.end(), chance());
        if (kernel.registers) {
            run_waiting(block, threads, registers);
        } else {
            for (uint32_t i : threads) {
                Thread thread = {&block, i};
                (void)kernel.call(thread, nullptr);
            }
        }
        barriers = block.now + 1;
    }
}

__attribute__((optimize("rounding-math"))) float multiply_add_down(float a, float b, float c) {
    volatile float x = a, y = b, z = c;
    const int before = fegetround();
    fesetround(FE_DOWNWARD);
    volatile float result = std::fma(x, y, z);
    fesetround(before);
    return result;
}

// ---- kernels by their names, and by what nvcc's objects call them

static std::map<std::string, const Kernel *> &by_name() {
    static auto &kernels = *new std::map<std::string, const Kernel *>;
    return kernels;
}
static std::map<const void *, std::string> &names() {
    static auto &functions = *new std::map<const void *, std::string>;
    return functions;
}

Registered::Registered(const Kernel *kernels, size_t n) {
    for (size_t i = 0; i < n; i++) by_name()[kernels[i].name] = &kernels[i];
}

static const Kernel *kernel_of(const void *function) {
    const auto name = names().find(function);
    const auto kernel = name == names().end() ? by_name().end() : by_name().find(name->second);
    if (kernel != by_name().end()) return kernel->second;
    const char *const asked = name == names().end() ? "of this address" : name->second.c_str();
    fprintf(stderr, "emulator: no kernel %s was translated\n", asked);
    abort();
}

} // namespace emulator

using namespace emulator;

extern "C" {
// The runtime's entries that nvcc's objects call before main, and at the end.
void **__cudaRegisterFatBinary(void *) {
    static void *handle;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterFunction(void **, const char *function, char *, const char *name, int, void *, void *, void *,
                            void *, int *) {
    names()[function] = name;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
    Grid grid = {};
    grid.kernel = kernel_of(function);
    grid.blocks = config->gridDim.x, grid.threads = config->blockDim.x;
    if (!grid.blocks || !grid.threads || grid.threads > 1024 || config->gridDim.y != 1 || config->gridDim.z != 1 ||
        config->blockDim.y != 1 || config->blockDim.z != 1 || config->dynamicSmemBytes) {
        fprintf(stderr, "emulator: %s: %u x %u x %u blocks of %u threads, %zu bytes of shared memory: "
                "only one dimension is emulated, and no dynamic memory\n", readable(grid.kernel->name).c_str(),
                config->gridDim.x, config->gridDim.y, config->gridDim.z, config->blockDim.x, config->dynamicSmemBytes);
        abort();
    }
    if (grid.kernel->parameter_bytes > static_cast<int>(sizeof grid.parameters)) abort();
    for (int i = 0; i < grid.kernel->n_parameters; i++)
        memcpy(grid.parameters + grid.kernel->parameters[i].offset, arguments[i],
               static_cast<size_t>(grid.kernel->parameters[i].bytes));
    fake_on_stream(config->stream);
    amp_fake_cuda.launches++;
    const cudaError_t error = fake_called();
    if (error == cudaSuccess) fake_work(run_grid, &grid, sizeof grid);
    return error;
}

// What nvcc's stubs refer to, and libamp's launches never call.
cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t) { abort(); }
cudaError_t __cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t) { abort(); }
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, struct CUstream_st *) { abort(); }
cudaError_t __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *) { abort(); }
char __cudaInitModule(void **) { return 0; }
cudaError_t cudaGetKernel(cudaKernel_t *, const void *) { abort(); }
cudaError_t __cudaGetKernel(cudaKernel_t *, const void *) { abort(); }
}
