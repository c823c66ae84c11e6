// Regions: shared memory as an object for messages.

#ifndef STRAIT_REGION_HPP
#define STRAIT_REGION_HPP

#include <strait/values.hpp>

namespace strait {

// A mapped part of a region, for reading and writing, or for reading memory that others may be writing. Read each byte
// once, and decide on the copy.
class SharedMapping {
public:
    explicit SharedMapping(strait_mapping *mapping) noexcept : mapping_(mapping) {}

    // For code that takes plain memory, such as an image library. Only for memory whose other users are trusted, and do not
    // write while this process reads or writes: a change during an access is a data race, and the compiler may read a byte
    // twice. Writing through a mapping of map(), which is for reading, ends the process by SIGSEGV.
    std::span<std::byte> trusted() const noexcept {
        return {static_cast<std::byte *>(strait_mapping_data(mapping_.get())), size()};
    }
    volatile std::byte *data() const noexcept { return static_cast<volatile std::byte *>(strait_mapping_data(mapping_.get())); }
    std::size_t size() const noexcept { return strait_mapping_len(mapping_.get()); }

private:
    detail::Owned<strait_mapping, strait_mapping_free> mapping_;
};

// A mapping that no other process changes: of a sealed region, either directly or as a private copy.
template <class Byte> class PlainMapping {
public:
    explicit PlainMapping(strait_mapping *mapping) noexcept : mapping_(mapping) {}

    std::span<Byte> bytes() const noexcept {
        return {static_cast<Byte *>(strait_mapping_data(mapping_.get())), strait_mapping_len(mapping_.get())};
    }

private:
    detail::Owned<strait_mapping, strait_mapping_free> mapping_;
};

using SealedMapping = PlainMapping<const std::byte>;
using CopyMapping = PlainMapping<std::byte>;

// Options of a region.
struct RegionOptions {
    // The name for debugging, which /proc/*/maps shows; empty for the default.
    std::string name = {};
    // Whether to ask the kernel for huge pages when this process maps the region.
    bool huge_pages = false;
};

enum class Access : strait_access { writable = STRAIT_WRITABLE_REGION, read_only = STRAIT_READ_ONLY_REGION, sealed = STRAIT_SEALED_REGION };

class Region;

// Memory of a future sealed region, without a copy. `seal` returns the region; the bytes keep their address, as private
// memory of this process.
class WriterMapping {
public:
    explicit WriterMapping(strait_mapping *mapping) noexcept : mapping_(mapping) {}

    std::span<std::byte> bytes() const noexcept {
        return {static_cast<std::byte *>(strait_mapping_data(mapping_.get())), strait_mapping_len(mapping_.get())};
    }
    // Fails with STRAIT_INVALID_ARGUMENT the second time.
    inline result<Region> seal();

private:
    detail::Owned<strait_mapping, strait_mapping_free> mapping_;
};

// Shared memory of a fixed size. Mappings stay when the region is destroyed or sent.
class Region {
public:
    // An empty object: every function fails with STRAIT_INVALID_ARGUMENT.
    Region() noexcept = default;
    explicit Region(strait_region *region) noexcept : region_(region) {}

    // Makes a writable region of `size` zero bytes.
    static result<Region> create(std::size_t size, const RegionOptions &options = {}) {
        const auto given = raw(options);
        return make([&](auto **out) { return strait_region_create(&given, size, out); });
    }
    // Makes a sealed region with a copy of the bytes, which no process can ever change.
    static result<Region> sealed(Bytes bytes) {
        return make([&](auto **out) { return strait_region_sealed(bytes.data(), bytes.size(), out); });
    }
    // Makes memory of `size` zero bytes that no other process has, to be filled and then sealed without a copy.
    static result<WriterMapping> writer(std::size_t size, const RegionOptions &options = {}) {
        const auto given = raw(options);
        strait_mapping *mapping = nullptr;
        if (const auto status = strait_region_create_writer(&given, size, &mapping); status != STRAIT_OK) {
            return Error::last(status);
        }
        return WriterMapping(mapping);
    }
    // Makes a region from a memfd. If this succeeds, the region owns the descriptor.
    static result<Region> from_fd(Fd &&fd) {
        auto made = make([&](auto **out) { return strait_region_from_fd(fd.get(), out); });
        if (made) {
            fd.release();
        }
        return made;
    }

    result<Fd> to_fd() const {
        int fd;
        if (const auto status = strait_region_to_fd(region_.get(), &fd); status != STRAIT_OK) {
            return Error::last(status);
        }
        return Fd(fd);
    }
    // Returns another object for the same memory, to send to one more process.
    Region duplicate() const noexcept { return Region(strait_region_duplicate(region_.get())); }
    // Returns a read-only object for the same memory.
    result<Region> reader() const {
        return make([this](auto **out) { return strait_region_reader(region_.get(), out); });
    }

    std::size_t size() const noexcept { return strait_region_len(region_.get()); }
    result<Access> access() const {
        strait_access access;
        if (const auto status = strait_region_access(region_.get(), &access); status != STRAIT_OK) {
            return Error::last(status);
        }
        return static_cast<Access>(access);
    }
    result<void> seal() const { return detail::done(strait_region_seal(region_.get())); }
    result<void> admit_no_writer() const { return detail::done(strait_region_admit_no_writer(region_.get())); }

    // Copies bytes from `offset` on until `out` is full, without mapping the region.
    result<void> read_at(std::span<std::byte> out, std::size_t offset) const {
        return detail::done(strait_region_read_at(region_.get(), out.data(), out.size(), offset));
    }
    // Copies `bytes` into the region at `offset`, without mapping the region.
    result<void> write_at(Bytes bytes, std::size_t offset) const {
        return detail::done(strait_region_write_at(region_.get(), bytes.data(), bytes.size(), offset));
    }

    // Map the whole region.
    result<SharedMapping> map() const { return map(0, size()); }
    result<SharedMapping> map_writable() const { return map_writable(0, size()); }
    result<SealedMapping> view() const { return view(0, size()); }
    result<CopyMapping> copy_on_write() const { return copy_on_write(0, size()); }
    // Map `size` bytes of the region, from `offset` on. Fail with STRAIT_OUT_OF_RANGE if the region has fewer.
    result<SharedMapping> map(std::size_t offset, std::size_t size) const { return map_as<SharedMapping>(STRAIT_MAP_READ, offset, size); }
    result<SharedMapping> map_writable(std::size_t offset, std::size_t size) const {
        return map_as<SharedMapping>(STRAIT_MAP_WRITE, offset, size);
    }
    result<SealedMapping> view(std::size_t offset, std::size_t size) const { return map_as<SealedMapping>(STRAIT_MAP_SEALED, offset, size); }
    result<CopyMapping> copy_on_write(std::size_t offset, std::size_t size) const {
        return map_as<CopyMapping>(STRAIT_MAP_COPY, offset, size);
    }

    explicit operator bool() const noexcept { return region_.get() != nullptr; }
    strait_region *get() const noexcept { return region_.get(); }
    strait_region *release() noexcept { return region_.release(); }

private:
    template <class Call> static result<Region> make(Call call) {
        strait_region *region = nullptr;
        if (const auto status = call(&region); status != STRAIT_OK) {
            return Error::last(status);
        }
        return Region(region);
    }

    // The options as C takes them, with a pointer to the name in `options`.
    static strait_region_options raw(const RegionOptions &options) noexcept {
        strait_region_options raw{};
        raw.name = options.name.empty() ? nullptr : options.name.c_str();
        raw.huge_pages = options.huge_pages;
        return raw;
    }

    template <class Mapping> result<Mapping> map_as(strait_map how, std::size_t offset, std::size_t size) const {
        strait_mapping *mapping;
        if (const auto status = strait_region_map(region_.get(), how, offset, size, &mapping); status != STRAIT_OK) {
            return Error::last(status);
        }
        return Mapping(mapping);
    }

    detail::Owned<strait_region, strait_region_free> region_;
};

inline result<Region> WriterMapping::seal() {
    strait_region *region = nullptr;
    if (const auto status = strait_mapping_seal(mapping_.get(), &region); status != STRAIT_OK) {
        return Error::last(status);
    }
    return Region(region);
}

} // namespace strait

#endif
