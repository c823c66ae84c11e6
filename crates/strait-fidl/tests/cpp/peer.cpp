// Reads a message that Rust has encoded, checks every byte of it by the layout of the C++ structs below, signals the event
// in it, writes the message anew, and sends it back. It ends when the other end is closed.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <strait/zx.h>
#include <zircon/status.h>
#include <zircon/syscalls.h>

#define EXPECT(condition)                                                 \
  do {                                                                    \
    if (!(condition)) {                                                   \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

namespace {

constexpr uint64_t kPresent = ~uint64_t{0};

struct Header {
  uint32_t txid;
  uint8_t flags[3];
  uint8_t magic;
  uint64_t ordinal;
};

struct Counted {
  uint64_t count;
  uint64_t presence;
};

struct Envelope {
  uint32_t num_bytes;
  uint16_t num_handles;
  uint16_t flags;
};

struct Drawing {
  uint64_t number;
  Counted points;
  Counted title;
  Counted style;
  uint64_t fill_ordinal;
  Envelope fill;
  uint8_t visible;
  uint8_t padding[3];
  uint32_t event;
};

struct Point {
  int32_t x;
  int32_t y;
};

static_assert(sizeof(Header) == 16, "layout");
static_assert(sizeof(Drawing) == 80, "layout");

constexpr uint32_t kPoints = 100;
constexpr uint32_t kPixels = 1021;

class Writer {
 public:
  template <typename T>
  void Put(const T& value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
  }

  void Text(const char* text) {
    bytes_.insert(bytes_.end(), text, text + std::strlen(text));
    Pad();
  }

  void Pad() { bytes_.resize((bytes_.size() + 7) / 8 * 8); }

  std::vector<uint8_t>& bytes() { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

// The whole message, as the wire format says.
std::vector<uint8_t> Message() {
  Writer out;
  out.Put(Header{7, {2, 0, 0x80}, 1, 0x1122334455667788});
  Drawing drawing{};
  drawing.number = 5;
  drawing.points = {kPoints, kPresent};
  drawing.title = {9, kPresent};
  drawing.style = {3, kPresent};
  drawing.fill_ordinal = 2;
  drawing.fill = {16 + (kPixels + 7) / 8 * 8, 0, 0};
  drawing.visible = 1;
  drawing.event = 0xffffffff;
  out.Put(drawing);
  for (int32_t x = 0; x < static_cast<int32_t>(kPoints); x++) {
    out.Put(Point{x, -x});
  }
  out.Text("two lines");
  // The envelopes of the table: the width is inside, the second field is absent, the name is behind.
  out.Put(Envelope{3, 0, 1});
  out.Put(Envelope{0, 0, 0});
  out.Put(Envelope{24, 0, 0});
  out.Put(Counted{6, kPresent});
  out.Text("dashed");
  out.Put(Counted{kPixels, kPresent});
  for (uint32_t index = 0; index < kPixels; index++) {
    out.Put(static_cast<uint8_t>(index));
  }
  out.Pad();
  return out.bytes();
}

}  // namespace

int main() {
  zx_handle_t parent;
  EXPECT(strait_zx_channel_from_parent(&parent) == ZX_OK);
  std::vector<uint8_t> expected = Message();
  for (;;) {
    zx_signals_t observed;
    EXPECT(zx_object_wait_one(parent, ZX_CHANNEL_READABLE | ZX_CHANNEL_PEER_CLOSED, ZX_TIME_INFINITE, &observed) ==
           ZX_OK);
    if (!(observed & ZX_CHANNEL_READABLE)) {
      return 0;
    }
    std::vector<uint8_t> bytes(ZX_CHANNEL_MAX_MSG_BYTES);
    zx_handle_t event;
    uint32_t num_bytes;
    uint32_t num_handles;
    EXPECT(zx_channel_read(parent, 0, bytes.data(), &event, static_cast<uint32_t>(bytes.size()), 1, &num_bytes,
                           &num_handles) == ZX_OK);
    bytes.resize(num_bytes);
    EXPECT(num_handles == 1);
    EXPECT(bytes == expected);
    EXPECT(zx_object_signal(event, 0, ZX_EVENT_SIGNALED) == ZX_OK);
    // Sent back in two pieces.
    uint32_t half = num_bytes / 2;
    zx_channel_iovec_t pieces[2] = {{expected.data(), half, 0}, {expected.data() + half, num_bytes - half, 0}};
    EXPECT(zx_channel_write(parent, ZX_CHANNEL_WRITE_USE_IOVEC, pieces, 2, &event, 1) == ZX_OK);
  }
}
