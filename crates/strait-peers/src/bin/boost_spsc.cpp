// The lock-free queue of Boost for one producer and one consumer, in shared memory, for peer-boost-spsc.

#include <boost/interprocess/managed_shared_memory.hpp>
#include <boost/lockfree/spsc_queue.hpp>

#include <cstddef>

namespace ipc = boost::interprocess;

// The room of a queue is part of its type: only such a queue has no pointers, and can be in shared memory.
using Queue = boost::lockfree::spsc_queue<unsigned char, boost::lockfree::capacity<256 * 1024>>;

extern "C" {

void *spsc_make(const char *name) try {
    auto *memory = new ipc::managed_shared_memory(ipc::create_only, name, 2 * sizeof(Queue));
    return memory->construct<Queue>("queue")();
} catch (...) {
    return nullptr;
}

void *spsc_open(const char *name) try {
    auto *memory = new ipc::managed_shared_memory(ipc::open_only, name);
    return memory->find<Queue>("queue").first;
} catch (...) {
    return nullptr;
}

void spsc_remove(const char *name) {
    ipc::shared_memory_object::remove(name);
}

std::size_t spsc_push(void *queue, const unsigned char *bytes, std::size_t len) {
    return static_cast<Queue *>(queue)->push(bytes, len);
}

std::size_t spsc_pop(void *queue, unsigned char *bytes, std::size_t room) {
    return static_cast<Queue *>(queue)->pop(bytes, room);
}
}
