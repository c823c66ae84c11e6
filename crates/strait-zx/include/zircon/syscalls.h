// The functions, which are system calls in Zircon.
#ifndef ZIRCON_SYSCALLS_H_
#define ZIRCON_SYSCALLS_H_

#include <zircon/compiler.h>
#include <zircon/syscalls/object.h>
#include <zircon/syscalls/port.h>
#include <zircon/types.h>

__BEGIN_CDECLS

// Channels.
zx_status_t zx_channel_create(uint32_t options, zx_handle_t* out0, zx_handle_t* out1);
zx_status_t zx_channel_read(zx_handle_t handle, uint32_t options, void* bytes, zx_handle_t* handles,
                            uint32_t num_bytes, uint32_t num_handles, uint32_t* actual_bytes,
                            uint32_t* actual_handles);
zx_status_t zx_channel_read_etc(zx_handle_t handle, uint32_t options, void* bytes, zx_handle_info_t* handles,
                                uint32_t num_bytes, uint32_t num_handles, uint32_t* actual_bytes,
                                uint32_t* actual_handles);
zx_status_t zx_channel_write(zx_handle_t handle, uint32_t options, const void* bytes, uint32_t num_bytes,
                             const zx_handle_t* handles, uint32_t num_handles);
zx_status_t zx_channel_write_etc(zx_handle_t handle, uint32_t options, const void* bytes, uint32_t num_bytes,
                                 zx_handle_disposition_t* handles, uint32_t num_handles);
zx_status_t zx_channel_call(zx_handle_t handle, uint32_t options, zx_time_t deadline,
                            const zx_channel_call_args_t* args, uint32_t* actual_bytes, uint32_t* actual_handles);
zx_status_t zx_channel_call_etc(zx_handle_t handle, uint32_t options, zx_time_t deadline,
                                zx_channel_call_etc_args_t* args, uint32_t* actual_bytes, uint32_t* actual_handles);
zx_status_t zx_channel_call_noretry(zx_handle_t handle, uint32_t options, zx_time_t deadline,
                                    const zx_channel_call_args_t* args, uint32_t* actual_bytes,
                                    uint32_t* actual_handles);

// Handles.
zx_status_t zx_handle_close(zx_handle_t handle);
zx_status_t zx_handle_close_many(const zx_handle_t* handles, size_t num_handles);
zx_status_t zx_handle_check_valid(zx_handle_t handle);
zx_status_t zx_handle_duplicate(zx_handle_t handle, zx_rights_t rights, zx_handle_t* out);
zx_status_t zx_handle_replace(zx_handle_t handle, zx_rights_t rights, zx_handle_t* out);

// Objects.
zx_status_t zx_object_wait_one(zx_handle_t handle, zx_signals_t signals, zx_time_t deadline, zx_signals_t* observed);
zx_status_t zx_object_wait_many(zx_wait_item_t* items, size_t num_items, zx_time_t deadline);
zx_status_t zx_object_wait_async(zx_handle_t handle, zx_handle_t port, uint64_t key, zx_signals_t signals,
                                 uint32_t options);
zx_status_t zx_object_signal(zx_handle_t handle, uint32_t clear_mask, uint32_t set_mask);
zx_status_t zx_object_signal_peer(zx_handle_t handle, uint32_t clear_mask, uint32_t set_mask);
zx_status_t zx_object_get_info(zx_handle_t handle, uint32_t topic, void* buffer, size_t buffer_size,
                               size_t* actual_count, size_t* avail_count);

// Ports.
zx_status_t zx_port_create(uint32_t options, zx_handle_t* out);
zx_status_t zx_port_queue(zx_handle_t handle, const zx_port_packet_t* packet);
zx_status_t zx_port_wait(zx_handle_t handle, zx_time_t deadline, zx_port_packet_t* packet);
zx_status_t zx_port_cancel(zx_handle_t handle, zx_handle_t source, uint64_t key);
zx_status_t zx_port_cancel_key(zx_handle_t handle, uint32_t options, uint64_t key);

// Events, eventpairs, memory.
zx_status_t zx_event_create(uint32_t options, zx_handle_t* out);
zx_status_t zx_eventpair_create(uint32_t options, zx_handle_t* out0, zx_handle_t* out1);
zx_status_t zx_vmo_create(uint64_t size, uint32_t options, zx_handle_t* out);
zx_status_t zx_vmo_read(zx_handle_t handle, void* buffer, uint64_t offset, size_t buffer_size);
zx_status_t zx_vmo_write(zx_handle_t handle, const void* buffer, uint64_t offset, size_t buffer_size);
zx_status_t zx_vmo_get_size(zx_handle_t handle, uint64_t* size);

// Time.
zx_time_t zx_clock_get_monotonic(void);
zx_time_t zx_deadline_after(zx_duration_t nanoseconds);
zx_status_t zx_nanosleep(zx_time_t deadline);

__END_CDECLS

#endif  // ZIRCON_SYSCALLS_H_
