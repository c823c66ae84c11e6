// Strait for C++20: message channels between processes on one Linux machine.
//
// The library is in headers only, over the C interface in strait/strait.h, where comments explain each function.
// Objects own their resources and can be moved. No function throws: each returns a strait::result, which has a value,
// or an error whose text has advice. The headers work with -fno-exceptions -fno-rtti. For functions that throw
// exceptions include strait/throwing.hpp.

#ifndef STRAIT_HPP
#define STRAIT_HPP

#include <strait/calls.hpp>
#include <strait/channel.hpp>
#include <strait/halves.hpp>
#include <strait/meeting.hpp>
#include <strait/pipe.hpp>
#include <strait/region.hpp>
#include <strait/result.hpp>
#include <strait/sandbox.hpp>
#include <strait/signals.hpp>
#include <strait/values.hpp>
#include <strait/wait_set.hpp>

#endif
