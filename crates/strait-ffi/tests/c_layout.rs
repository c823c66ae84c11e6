//! Checks that Rust and C agree on the layout of every public structure and on every constant: with each compiler, as C
//! and as C++.

mod common;

use std::fmt::Write;
use std::mem::{align_of, offset_of, size_of};
use std::process::Command;

use common::{STRICT, c_compilers, cxx_compilers, installed, run};
use strait_ffi::status::strait_status::*;
use strait_ffi::{
    deadline::*, handle::*, meeting::*, options::*, peer::*, receive::*, region::*, sandbox::*, send::*, spawn::*,
    status::*, wait_set::*,
};

/// Returns assertions in C of the layout of structures in Rust. The macro compiles only if all fields are named.
macro_rules! structures {
    ($($name:ident { $($field:ident),* $(,)? })*) => {{
        let mut out = String::new();
        $(
            let _ = |all: $name| { let $name { $($field: _),* } = all; };
            writeln!(out, "ASSERT(sizeof(struct {0}) == {1});", stringify!($name), size_of::<$name>()).unwrap();
            writeln!(out, "ASSERT(ALIGNOF(struct {0}) == {1});", stringify!($name), align_of::<$name>()).unwrap();
            $(
                writeln!(out, "ASSERT(offsetof(struct {0}, {1}) == {2});",
                    stringify!($name), stringify!($field), offset_of!($name, $field)).unwrap();
            )*
        )*
        out
    }};
}

/// Returns assertions in C of the values of constants in Rust.
macro_rules! numbers {
    ($($name:ident)*) => {{
        let mut out = String::new();
        $( writeln!(out, "ASSERT({0} == {1});", stringify!($name), number($name as i128)).unwrap(); )*
        out
    }};
}

fn number(number: i128) -> String {
    if number > i64::MAX.into() { format!("{number}ull") } else { format!("{number}") }
}

fn assertions() -> String {
    let mut all = String::from(
        "#include <stddef.h>\n#include <strait/strait.h>\n\
         #ifdef __cplusplus\n#define ASSERT(what) static_assert(what, #what)\n#define ALIGNOF alignof\n\
         #else\n#define ASSERT(what) _Static_assert(what, #what)\n#define ALIGNOF _Alignof\n#endif\n",
    );
    all += &structures! {
        strait_error { status, os_error, asked, limit }
        strait_options {
            wait, refuse_descriptors, spin, ring, ring_max, inline_max, queue_bytes, queue_messages, max_message, max_handles,
            pool, peer_memory, queue_handles, reserved,
        }
        strait_handle { kind, fd, object }
        strait_message_info { len, handles, reserved }
        strait_outgoing { parts, part_count, handles, handle_count }
        strait_event { key, events, reserved }
        strait_peer { pid, uid, gid, is_alive }
        strait_counters {
            messages_sent, bytes_sent, messages_received, bytes_received, wake_ups, sleeps, out_of_line, pool_hits, grown,
            stalls, limits_reached, used_once, reserved,
        }
        strait_channel_state { messages, bytes, arrived, has_room, peer_closed, reserved }
        strait_level { held, limit, reached }
        strait_usage { peer, user, processes, idle_wake_ups, pauses, uid, has_uid }
        strait_bad_peer { peer, reason, link_lost, introduced }
        strait_listener_options {
            directory, mode, invited_only, waiting_of_a_user, waiting_of_all, policy, on_refused, context, channel, reserved,
        }
        strait_connect_options { directory, channel, server, has_server, wait_for_listener, reserved_flags, reserved }
        strait_region_options { name, huge_pages, reserved_flags, reserved }
        strait_listening { name, since, uid, pid, is_live, reserved }
    };
    all += &numbers! {
        STRAIT_OK STRAIT_WOULD_BLOCK STRAIT_TIMED_OUT STRAIT_PEER_CLOSED STRAIT_MESSAGE_TOO_LARGE STRAIT_TOO_MANY_HANDLES
        STRAIT_BUFFER_TOO_SMALL STRAIT_BAD_HANDLE STRAIT_OWN_CHANNEL STRAIT_IN_SET STRAIT_NOT_IN_SET STRAIT_HANDLES_LOST
        STRAIT_NO_DESCRIPTORS STRAIT_NO_MEMORY STRAIT_LIMIT_REACHED STRAIT_BAD_PEER STRAIT_REFUSED STRAIT_FORKED
        STRAIT_NOT_A_SOCKET STRAIT_BAD_NAME STRAIT_NAME_TAKEN STRAIT_NOBODY_THERE STRAIT_UNSAFE_DIRECTORY STRAIT_WRONG_SERVER
        STRAIT_NO_INVITATION STRAIT_NOT_ACTIVATED STRAIT_NO_PARENT STRAIT_PARENT_TAKEN STRAIT_SYSTEM STRAIT_CLOSED STRAIT_MOVED
        STRAIT_IN_USE STRAIT_INVALID_ARGUMENT STRAIT_PANICKED STRAIT_OTHER
        STRAIT_READ_ONLY STRAIT_NOT_SEALED STRAIT_STILL_MAPPED STRAIT_OUT_OF_RANGE STRAIT_NOT_A_REGION STRAIT_NOT_ELEMENTS STRAIT_OUTCOME_UNKNOWN
        STRAIT_NOT_ANSWERED STRAIT_SIGNALLED STRAIT_ABORTED
        STRAIT_NOW STRAIT_NEVER STRAIT_ZERO STRAIT_WAIT_ADAPTIVE STRAIT_WAIT_SPIN STRAIT_WAIT_BLOCK
        STRAIT_HANDLE_NONE STRAIT_HANDLE_FD STRAIT_HANDLE_CHANNEL STRAIT_HANDLE_REGION STRAIT_HANDLE_PRODUCER
        STRAIT_HANDLE_CONSUMER STRAIT_HANDLE_OTHER
        STRAIT_WRITABLE_REGION STRAIT_READ_ONLY_REGION STRAIT_SEALED_REGION
        STRAIT_PHASE_RUNNING STRAIT_PHASE_WITH_REGIONS STRAIT_PHASE_CONNECTING STRAIT_PHASE_DISPENSABLE STRAIT_MAP_READ STRAIT_MAP_WRITE STRAIT_MAP_SEALED STRAIT_MAP_COPY
        STRAIT_MAX_PARTS STRAIT_MAX_MESSAGES STRAIT_MAX_HANDLES STRAIT_MAX_MESSAGE STRAIT_INHERITANCE_LEN
        STRAIT_READABLE STRAIT_WRITABLE STRAIT_HAS_MOVED STRAIT_LEVEL STRAIT_ONE_SHOT
        STRAIT_MEMORY STRAIT_MAPPINGS STRAIT_DESCRIPTORS STRAIT_LANES STRAIT_QUEUED_BYTES STRAIT_QUEUED_MESSAGES STRAIT_REGIONS
        STRAIT_REPORTED_CLOSED STRAIT_REPORTED_GONE STRAIT_REPORTED_WITHIN STRAIT_REPORTED_BROUGHT
    };
    all += "ASSERT(sizeof(strait_status) == 4);\nint nothing(void);\nint nothing(void) { return 0; }\n";
    all
}

/// Checks that the file asserts each structure and each constant of the header. A new structure or constant has to be
/// added here too.
#[test]
fn every_structure_and_number_is_looked_at() {
    let assertions = assertions();
    let header = std::fs::read_to_string(common::root().join("include/strait/strait.h")).expect("the header");
    for line in header.lines() {
        let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        let wanted = match words[..] {
            ["typedef", "struct", name, "{"] => format!("sizeof(struct {name})"),
            ["#define", name, _value] if !name.starts_with("STRAIT_VERSION") => format!("ASSERT({name} =="),
            [name, "=", _value] if name.starts_with("STRAIT_") => format!("ASSERT({name} =="),
            _ => continue,
        };
        assert!(assertions.contains(&wanted), "{line}");
    }
}

#[test]
fn rust_and_c_agree_on_every_layout_and_number() {
    let source = installed().join("layout.c");
    std::fs::write(&source, assertions()).expect("the assertions are written");
    let include = installed().join("include");
    for compiler in c_compilers().iter().filter(|compiler| compiler.standard != "-std=c99").chain(&cxx_compilers()) {
        let language = if compiler.standard.contains("++") { "c++" } else { "c" };
        let mut command = Command::new(compiler.program);
        command
            .args([compiler.standard, "-x", language, "-fsyntax-only", "-I"])
            .arg(&include)
            .args(STRICT)
            .arg(&source);
        run(&mut command);
    }
}
