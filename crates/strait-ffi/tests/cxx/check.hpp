// Helpers of the C++ tests.

#ifndef CHECK_HPP
#define CHECK_HPP

#include <strait/strait.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
            std::exit(1); \
        } \
    } while (false)

inline long descriptors() {
    using std::filesystem::directory_iterator;
    return std::distance(directory_iterator("/proc/self/fd"), directory_iterator());
}

#endif
