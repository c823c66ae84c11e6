// Names of statuses.
#ifndef ZIRCON_STATUS_H_
#define ZIRCON_STATUS_H_

#include <zircon/compiler.h>
#include <zircon/types.h>

__BEGIN_CDECLS

// Returns the name of a status, as a constant text.
const char* zx_status_get_string(zx_status_t status);

__END_CDECLS

#endif  // ZIRCON_STATUS_H_
