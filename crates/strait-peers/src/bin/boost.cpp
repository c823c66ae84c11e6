// The message queue of Boost.Interprocess, for peer-boost.
#include <boost/interprocess/ipc/message_queue.hpp>

#include <cstddef>

using boost::interprocess::message_queue;

extern "C" {

void *queue_make(const char *name, std::size_t size) try {
    return new message_queue(boost::interprocess::create_only, name, 4, size);
} catch (...) {
    return nullptr;
}

void *queue_open(const char *name) try {
    return new message_queue(boost::interprocess::open_only, name);
} catch (...) {
    return nullptr;
}

void queue_remove(const char *name) {
    message_queue::remove(name);
}

int queue_send(void *queue, const unsigned char *bytes, std::size_t len, int polled) try {
    auto *to = static_cast<message_queue *>(queue);
    if (polled) {
        while (!to->try_send(bytes, len, 0)) {
        }
    } else {
        to->send(bytes, len, 0);
    }
    return 0;
} catch (...) {
    return -1;
}

int queue_receive(void *queue, unsigned char *bytes, std::size_t room, std::size_t *len, int polled) try {
    auto *from = static_cast<message_queue *>(queue);
    message_queue::size_type received = 0;
    unsigned priority = 0;
    if (polled) {
        while (!from->try_receive(bytes, room, received, priority)) {
        }
    } else {
        from->receive(bytes, room, received, priority);
    }
    *len = received;
    return 0;
} catch (...) {
    return -1;
}
}
