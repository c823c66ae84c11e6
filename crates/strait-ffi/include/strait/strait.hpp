// Strait for C++20: message channels between processes on one Linux machine.
//
// Everything is in headers, over the C interface in strait/strait.h, where each call is explained. Objects own what they hold and can be
// moved. No call throws: it returns a strait::result, which has a value or an error whose text says what to do. It all works with
// -fno-exceptions -fno-rtti. Those who like exceptions include strait/throwing.hpp.

#ifndef STRAIT_HPP
#define STRAIT_HPP

#include <strait/calls.hpp>
#include <strait/channel.hpp>
#include <strait/meeting.hpp>
#include <strait/pipe.hpp>
#include <strait/region.hpp>
#include <strait/result.hpp>
#include <strait/values.hpp>
#include <strait/wait_set.hpp>

#endif
