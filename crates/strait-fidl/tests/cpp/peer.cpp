// Reads a message that Rust has encoded, checks every byte of it by the layout of the C++ structs below, signals the event
// in it, writes the message anew, and sends it back. It ends when the other end is closed.
#include <cstddef>
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

struct Padded {
  uint8_t a;
  uint32_t b;
};

// A field of each kind of the format.
struct Kinds {
  uint8_t truth;
  int8_t tiny;
  uint8_t byte;
  uint8_t empty_struct;
  int16_t small;
  uint16_t word;
  int32_t medium;
  uint32_t dword;
  int64_t large;
  uint64_t quad;
  float single;
  uint16_t strict_enum;
  uint8_t flexible_enum;
  uint8_t strict_bits;
  double real;
  uint32_t flexible_bits;
  uint16_t array[3];
  Padded padded;
  Counted text;
  Counted bounded_text;
  Counted absent_text;
  Counted bytes;
  Counted numbers;
  Counted flags;
  Counted names;
  Counted vectors;
  Counted absent_vector;
  uint64_t box;
  uint64_t absent_box;
  Counted table;
  Counted empty_table;
  uint64_t strict_union;
  Envelope strict_envelope;
  uint64_t flexible_union;
  Envelope flexible_envelope;
  uint64_t absent_union;
  Envelope absent_envelope;
  Point points[2];
  uint32_t event;
  uint32_t absent_event;
};

static_assert(sizeof(Header) == 16, "layout");
static_assert(offsetof(Kinds, padded) == 60 && offsetof(Kinds, text) == 72 && sizeof(Kinds) == 336, "layout");
static_assert(sizeof(Drawing) == 80, "layout");

constexpr uint32_t kPoints = 100;
constexpr uint32_t kPixels = 1021;
constexpr uint64_t kKinds = 0x1122334455667799;

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

// The bytes of a long vector.
void PutPixels(Writer& out) {
  for (uint32_t index = 0; index < kPixels; index++) {
    out.Put(static_cast<uint8_t>(index));
  }
  out.Pad();
}

// The envelopes of a table: the width is inside, the second field is absent, the name is behind.
void PutStyle(Writer& out) {
  out.Put(Envelope{3, 0, 1});
  out.Put(Envelope{0, 0, 0});
  out.Put(Envelope{24, 0, 0});
  out.Put(Counted{6, kPresent});
  out.Text("dashed");
}

// The whole message with a drawing, as the wire format says.
std::vector<uint8_t> DrawingMessage() {
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
  PutStyle(out);
  out.Put(Counted{kPixels, kPresent});
  PutPixels(out);
  return out.bytes();
}

// The whole message with a field of each kind.
std::vector<uint8_t> KindsMessage() {
  Writer out;
  out.Put(Header{7, {2, 0, 0x80}, 1, kKinds});
  Kinds kinds;
  std::memset(&kinds, 0, sizeof(kinds));
  kinds.truth = 1;
  kinds.tiny = INT8_MIN;
  kinds.byte = UINT8_MAX;
  kinds.small = INT16_MIN;
  kinds.word = UINT16_MAX;
  kinds.medium = INT32_MIN;
  kinds.dword = UINT32_MAX;
  kinds.large = INT64_MIN;
  kinds.quad = UINT64_MAX;
  kinds.single = 0.5f;
  kinds.strict_enum = 0x102;
  kinds.flexible_enum = 200;
  kinds.strict_bits = 5;
  kinds.real = -2.5;
  kinds.flexible_bits = 0x80000001;
  kinds.array[0] = 1;
  kinds.array[1] = 256;
  kinds.array[2] = UINT16_MAX;
  kinds.padded.a = 7;
  kinds.padded.b = 8;
  kinds.text = {9, kPresent};
  kinds.bounded_text = {3, kPresent};
  kinds.bytes = {kPixels, kPresent};
  kinds.numbers = {3, kPresent};
  kinds.flags = {3, kPresent};
  kinds.names = {3, kPresent};
  kinds.vectors = {2, kPresent};
  kinds.box = kPresent;
  kinds.table = {3, kPresent};
  kinds.empty_table = {0, kPresent};
  kinds.strict_union = 1;
  kinds.strict_envelope = {8, 0, 0};
  kinds.flexible_union = 1;
  kinds.flexible_envelope = {0xff00ff, 0, 1};
  kinds.points[0] = {1, 2};
  kinds.points[1] = {-1, -2};
  kinds.event = 0xffffffff;
  out.Put(kinds);
  out.Text("two lines");
  out.Text("abc");
  PutPixels(out);
  for (uint64_t number : {uint64_t{1}, uint64_t{1} << 63, UINT64_MAX}) {
    out.Put(number);
  }
  for (uint8_t flag : {1, 0, 1}) {
    out.Put(flag);
  }
  out.Pad();
  out.Put(Counted{1, kPresent});
  out.Put(Counted{0, kPresent});
  out.Put(Counted{5, kPresent});
  out.Text("a");
  out.Text("gr\xc3\xbcn");
  out.Put(Counted{1, kPresent});
  out.Put(Counted{0, kPresent});
  out.Put(uint8_t{9});
  out.Pad();
  out.Put(Point{3, 4});
  PutStyle(out);
  out.Put(Point{5, 6});
  return out.bytes();
}

}  // namespace

int main() {
  zx_handle_t parent;
  EXPECT(strait_zx_channel_from_parent(&parent) == ZX_OK);
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
    Header header;
    EXPECT(num_bytes > sizeof(header));
    std::memcpy(&header, bytes.data(), sizeof(header));
    std::vector<uint8_t> expected = header.ordinal == kKinds ? KindsMessage() : DrawingMessage();
    EXPECT(bytes == expected);
    EXPECT(zx_object_signal(event, 0, ZX_EVENT_SIGNALED) == ZX_OK);
    // Sent back in two pieces.
    uint32_t half = num_bytes / 2;
    zx_channel_iovec_t pieces[2] = {{expected.data(), half, 0}, {expected.data() + half, num_bytes - half, 0}};
    EXPECT(zx_channel_write(parent, ZX_CHANNEL_WRITE_USE_IOVEC, pieces, 2, &event, 1) == ZX_OK);
  }
}
